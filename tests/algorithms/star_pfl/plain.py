"""Star-PFL once more: plain modules, one Python object for every scalar, lists for histories. And its federations."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from pfl_core.algorithms.star_pfl.masks import measure
from tests.algorithms.two_nets import named_fed
from tests.helpers import module_of

EAGER = {"threshold_global": 0.6, "threshold_local": 0.6}  # freezes plenty within a few rounds
SHORT = {"history_len_local": 2, "history_len_global": 3}
PARTS = [[0, 1, 2, 3], [0, 2], [1, 2, 3], [0, 1, 2, 3], [3], [0, 1, 2, 3], [0, 1]]


def fed_of(name="cnn with batch norm", **options):
    return named_fed(name, **{"rounds": 9} | options)


def steps(algorithm, fed, taking_part=PARTS):
    """(state before, state after, notes with the rows that were trained, clients) of each round."""
    state, out = algorithm.init(fed, fed.theta0), []
    for t, clients in enumerate(taking_part):
        rows = []
        fed.score = lambda theta, chunk, predict, rows=rows: rows.append(theta.clone()) or fed.evaluate(theta, chunk)
        new, notes = algorithm.round(fed, state, torch.tensor(clients), t)
        out.append((state, new, notes | {"trained": torch.cat(rows)}, clients))
        state = new
    return out


def masks_of(algorithm, fed, state):
    """(M_g [d], M_l [N, d]) of the round to come."""
    server, client = algorithm.rules(fed)
    return measure(state.server, server), torch.stack([measure(entries, client) for entries in state.clients])


@dataclass
class Scalar:
    """One entry of a server or a client."""

    tensor: int  # number of the tensor that it lies in
    bias: bool
    M: bool = True
    probing: bool = False
    F: int = 1
    L: int = 0
    R: list[float] = field(default_factory=list)

    def score(self) -> float:
        path = sum(map(abs, self.R))
        return abs(sum(self.R)) / path if path else 0.0


class Side:
    """A server or a client: its entries and its settings."""

    def __init__(self, algorithm, layout, local: bool) -> None:
        self.a, self.local = algorithm, local
        self.T = algorithm.threshold_local if local else algorithm.threshold_global
        self.H = algorithm.history_len_local if local else algorithm.history_len_global
        self.entries = [
            Scalar(i, "weight" not in f.name) for i, f in enumerate(layout.params) for _ in range(f.stop - f.start)
        ]

    def moving(self, looked_at: list[bool], floor: bool = True) -> list[bool]:
        """Measure for every entry; the caller uses it where it looks."""
        scores, cuts = [e.score() for e in self.entries], {}
        for tensor in {e.tensor for e in self.entries}:
            cuts[tensor] = self.T
            mine = [j for j, e in enumerate(self.entries) if e.tensor == tensor]
            eligible = [scores[j] for j in mine if looked_at[j]]
            only_frozen = self.a.stability_floor_cap == "frozen"
            apart = sum(not self.entries[j].M for j in mine) if only_frozen else len(mine) - len(eligible)
            ratio, q = apart / len(scores), self.a.stability_floor_quantile
            if self.local and floor and q is not None and ratio >= 100 * q and only_frozen:
                cuts[tensor] = -1.0
            elif self.local and floor and q is not None and eligible and ratio < 100 * q:
                cuts[tensor] = max(self.T, float(np.percentile(eligible, 100 * q - ratio)))
        out = []
        for e, score in zip(self.entries, scores, strict=True):
            cut = cuts[e.tensor]
            moving = score >= cut if self.a.threshold_rule == "inclusive" else score > cut
            if self.a.zero_update_policy == "skip" and not e.R:
                moving = moving if any(o.R for o in self.entries if o.tensor == e.tensor) else True
            elif len(e.R) < (self.H if self.a.min_history == "full" else self.a.min_history):
                moving = True
            out.append(moving)
        return out

    def start(self) -> list[bool]:
        looked_at = [e.M and not e.probing for e in self.entries]
        for e, look, moving in zip(self.entries, looked_at, self.moving(looked_at), strict=True):
            if look:
                e.M = moving
        return [e.M for e in self.entries]

    def push(self, update: torch.Tensor) -> None:
        always = self.local and self.a.record_scope == "trained" and self.a.train_mask_scope == "weights"
        for e, u in zip(self.entries, update.tolist(), strict=True):
            if (e.M or (always and e.bias)) and (u != 0 or self.a.zero_update_policy == "record"):
                e.R = [*e.R, u][-self.H :]

    def finish(self) -> None:
        moving = self.moving([e.M for e in self.entries], self.a.stability_floor_check)
        for e, moves in zip(self.entries, moving, strict=True):
            e.L += not e.M
            if e.probing and not moves:
                e.F += 1
            elif e.probing:
                halved = {"ceil": -(-e.F // 2), "floor": max(1, e.F // 2), "truncate": e.F // 2}
                e.F = halved[self.a.interval_halving]
            e.probing = max(1, e.F) <= e.L
            if e.probing:
                e.L, e.M = 0, True


def plain_client(algorithm, fed, model, shared, side, k, t):
    """One client's round; returns (its model [e], the mask that it sends by)."""
    active = side.start()
    if algorithm.history_scope == "round":
        for e in side.entries:
            e.R = []
    plain = module_of(fed, model, shared)
    trained = torch.tensor(
        [m or (e.bias and algorithm.train_mask_scope == "weights") for m, e in zip(active, side.entries, strict=True)]
    )
    for epoch in range(fed.train.epochs):
        before = torch.cat([p.detach().reshape(-1).clone() for p in plain.parameters()])
        for batch in fed.batches(torch.tensor([k]), t, epochs=range(epoch, epoch + 1)):
            params = list(plain.parameters())
            slopes = torch.autograd.grad(cross_entropy(plain(batch.x[0]), batch.y[0]), params)
            flat = torch.cat([g.reshape(-1) for g in slopes]) * trained
            for p, g in zip(params, flat.split([p.numel() for p in params]), strict=True):
                p.data -= fed.lr(t) * g.view(p.shape)
        if epoch < (algorithm.record_epochs or algorithm.history_len_local):
            side.push(torch.cat([p.detach().reshape(-1) for p in plain.parameters()]) - before)
    side.finish()
    sent = active if algorithm.upload_mask_timing == "before_check" else [e.M for e in side.entries]
    return fed.layout.flatten(dict(plain.state_dict())), torch.tensor(sent)


def plain_round(algorithm, fed, model, shared, server, sides, clients, t):
    """One round; returns (shared model [e], values sent by each client, each one's model)."""
    d, active = fed.num_params, torch.tensor(server.start())
    told = [plain_client(algorithm, fed, model, shared, sides[k], k, t) for k in clients]
    n = fed.num_train[clients]
    p, even = n / n.sum(), torch.ones(len(clients)).to(n) / len(clients)
    weight = even if algorithm.masked_aggregation == "active_mean" else p
    masks = torch.stack([active & sent for _, sent in told]).to(shared)
    deltas = torch.stack([theta[:d] - shared[:d] for theta, _ in told])
    update = (weight[:, None] * masks * deltas).sum(0)
    if algorithm.masked_aggregation != "zero_fill":
        share = (weight[:, None] * masks).sum(0)
        update = torch.where(share > 0, update / share, 0.0)
    server.push(update)
    server.finish()
    tails = torch.stack([theta[d:] for theta, _ in told])
    over = p if algorithm.buffer_aggregation == "samples" else even
    new = torch.cat([torch.where(active, shared[:d] + update, shared[:d]), (over[:, None] * tails).sum(0)])
    return new, masks.sum(1).int().tolist(), torch.stack([theta for theta, _ in told])

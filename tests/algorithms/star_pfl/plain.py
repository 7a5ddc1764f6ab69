"""A plain reference of Star-PFL: modules, one Python object for every scalar, lists for histories; and federations."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from pfl_core.algorithms.star_pfl.masks import measure
from tests.algorithms.two_nets import named_fed
from tests.helpers import module_of

EAGER = {"threshold_global": 0.6, "threshold_local": 0.6}  # freezes many entries within a few rounds
SHORT = {"history_len_local": 2, "history_len_global": 3}
PARTS = [[0, 1, 2, 3], [0, 2], [1, 2, 3], [0, 1, 2, 3], [3], [0, 1, 2, 3], [0, 1]]


def fed_of(name="cnn with batch norm", **options):
    return named_fed(name, **{"rounds": 9} | options)


def steps(algorithm, fed, taking_part=PARTS):
    """(state before, state after, notes including the trained rows, clients) of each round."""
    state, out = algorithm.init(fed, fed.theta0), []
    for t, clients in enumerate(taking_part):
        rows = []
        fed.score = lambda theta, chunk, predict, rows=rows: rows.append(theta.clone()) or fed.evaluate(theta, chunk)
        new, notes = algorithm.round(fed, state, torch.tensor(clients), t)
        out.append((state, new, notes | {"trained": torch.cat(rows)}, clients))
        state = new
    return out


def masks_of(algorithm, fed, state):
    """(M_g [d], M_l [N, d]) of the next round."""
    server, client = algorithm.rules(fed)
    return measure(state.server, server), torch.stack([measure(entries, client) for entries in state.clients])


@dataclass
class Scalar:
    """One entry of a server or a client."""

    tensor: int  # index of its tensor
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
    """The entries and settings of the server or of a client."""

    def __init__(self, algorithm, layout, local: bool) -> None:
        self.a, self.local = algorithm, local
        self.T = algorithm.threshold_local if local else algorithm.threshold_global
        self.H = algorithm.history_len_local if local else algorithm.history_len_global
        self.entries = [
            Scalar(i, "weight" not in f.name) for i, f in enumerate(layout.params) for _ in range(f.stop - f.start)
        ]

    def moving(self, measured: list[bool], floor: bool = True) -> list[bool]:
        """Measure for every entry: True if it is not stable. The caller uses the ``measured`` entries."""
        scores, cuts = [e.score() for e in self.entries], {}
        for tensor in {e.tensor for e in self.entries}:
            cuts[tensor] = self.T
            members = [j for j, e in enumerate(self.entries) if e.tensor == tensor]
            eligible = [scores[j] for j in members if measured[j]]
            only_frozen = self.a.stability_floor_cap == "frozen"
            excluded = sum(not self.entries[j].M for j in members) if only_frozen else len(members) - len(eligible)
            ratio, q = excluded / len(scores), self.a.stability_floor_quantile
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
        measured = [e.M and not e.probing for e in self.entries]
        for e, is_measured, moving in zip(self.entries, measured, self.moving(measured), strict=True):
            if is_measured:
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
    """One client's round; returns (its model [e], its mask of the upload [d])."""
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
            gradients = torch.autograd.grad(cross_entropy(plain(batch.x[0]), batch.y[0]), params)
            flat = torch.cat([g.reshape(-1) for g in gradients]) * trained
            for p, g in zip(params, flat.split([p.numel() for p in params]), strict=True):
                p.data -= fed.lr(t) * g.view(p.shape)
        if epoch < (algorithm.record_epochs or algorithm.history_len_local):
            side.push(torch.cat([p.detach().reshape(-1) for p in plain.parameters()]) - before)
    side.finish()
    sent = active if algorithm.upload_mask_timing == "before_check" else [e.M for e in side.entries]
    return fed.layout.flatten(dict(plain.state_dict())), torch.tensor(sent)


def plain_round(algorithm, fed, model, shared, server, sides, clients, t):
    """One round; returns (shared model [e], number of values that each client sent, the clients' models)."""
    d, active = fed.num_params, torch.tensor(server.start())
    updates = [plain_client(algorithm, fed, model, shared, sides[k], k, t) for k in clients]
    n = fed.num_train[clients]
    p, even = n / n.sum(), torch.ones(len(clients)).to(n) / len(clients)
    weight = even if algorithm.masked_aggregation == "active_mean" else p
    masks = torch.stack([active & sent for _, sent in updates]).to(shared)
    deltas = torch.stack([theta[:d] - shared[:d] for theta, _ in updates])
    update = (weight[:, None] * masks * deltas).sum(0)
    if algorithm.masked_aggregation != "zero_fill":
        share = (weight[:, None] * masks).sum(0)
        update = torch.where(share > 0, update / share, 0.0)
    server.push(update)
    server.finish()
    statistics = torch.stack([theta[d:] for theta, _ in updates])
    weight = p if algorithm.buffer_aggregation == "samples" else even
    new = torch.cat([torch.where(active, shared[:d] + update, shared[:d]), (weight[:, None] * statistics).sum(0)])
    return new, masks.sum(1).int().tolist(), torch.stack([theta for theta, _ in updates])

r"""What both versions of FedSelect share: alternating training of the two parts, and the mean over sharing clients.

Tamirisa et al., "FedSelect", CVPR 2024, Algorithm 2 (LocalAlt) and the server's part of Algorithm 1; the workshop
version (ICML 2023) uses both.

    client    L times: a pass over the personal entries, then a pass over the shared ones
    server    θ_g[j] = mean of θ_k⁺[j] over the clients that share j
    client    θ_k = θ_k⁺ where personal, θ_g elsewhere
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithm import ABSENT, Algorithm, MechanismCheck, State
from pfl_core.algorithms.fedavg import client_weight
from pfl_core.federation import Federation, LocalTraining
from pfl_core.ops import count_true, counts_true, differ, masked_mean, put, select, take
from pfl_core.options import NonNegativeFloat

LARGEST_RISE = 1.5
"""Bound on the training loss (mean over clients) while masks are chosen, divided by that of round 1."""
LARGEST_LOSS = math.log(100)
"""Bound on the loss of one client after round 1 while masks are chosen: that of an untrained network with 100 classes.

It detects runs that diverge from round 1 on, whose mean loss does not rise: with ResNet18 and a last batch of 4 the
mean loss is largest in round 1 (2.44).
"""
SMALLEST_PART = 0.0
"""Bound on the share of movable entries that is personal, or shared. At 0 the method is FedAvg or local training."""
NOTES = {"train_loss", "personal_share", "movable_share"}  # notes of a round that the checks need
DIVERGED = (
    "training diverged while masks were chosen; try a lower rate, or a batch size that divides the clients' images"
)


@dataclass(frozen=True)
class MaskState(State):
    """``local`` [N, e]: the clients' models θ_k; ``shared`` [e]: θ_g."""

    personal: Tensor = ABSENT  # [N, e] bool, the current masks m_k; True in the tail: statistics stay with the client
    in_force: Tensor = ABSENT  # [N, e] bool, the masks with which the last round trained and averaged
    movable: Tensor = ABSENT  # [d] bool, entries that have changed on some client so far


MaskStateT = TypeVar("MaskStateT", bound=MaskState)


@dataclass(frozen=True)
class Alternating(Algorithm[MaskStateT]):
    """The fields are choices about training and averaging that the papers leave open."""

    lr_personal: NonNegativeFloat | None = None  # γ_v; None: the federation's rate
    lr_shared: NonNegativeFloat | None = None  # γ_u
    batch_order: Literal["same_for_both_passes", "reshuffle_each_pass"] = "same_for_both_passes"
    skip_empty_pass: bool = True
    bn_mode: Literal["train", "eval_after_round_0"] = "train"
    buffer_policy: Literal["local", "average"] = "local"
    client_weighting: Literal["uniform", "samples"] = "uniform"

    def init(self, fed: Federation, theta0: Tensor) -> MaskStateT:
        local = theta0.repeat(fed.num_clients, 1)
        personal = torch.zeros_like(local, dtype=torch.bool)
        personal[:, fed.num_params :] = self.buffer_policy == "local"
        movable = torch.zeros_like(personal[0, : fed.num_params])
        state = MaskState(shared=theta0, local=local, personal=personal, in_force=personal, movable=movable)
        return cast(MaskStateT, state)

    def evaluation_models(self, fed: Federation, state: MaskStateT, clients: Tensor, t: int) -> Tensor:
        return take(state.local, clients)

    def local_alt(
        self, fed: Federation, theta: Tensor, personal: Tensor, clients: Tensor, t: int, epochs: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Algorithm 2, once per local epoch: a pass over the personal entries, then one over the shared entries.

        theta [S, e], personal [S, e] bool -> (theta⁺ [S, e], mean loss of the last pass [S]). Momentum, which the
        papers do not use, starts at zero in each pass.
        """
        loss = torch.full((len(clients),), torch.nan)
        parts = [
            (name, entries, lr, self.rows_to_train(fed, entries))
            for name, entries, lr in (("v", personal, self.lr_personal), ("u", ~personal, self.lr_shared))
        ]
        norm_mode = "eval" if self.bn_mode == "eval_after_round_0" and t > 0 else "train"
        copied = False  # whether theta is a copy, which may be trained in place
        for epoch in range(fed.train.epochs if epochs is None else epochs):
            for name, entries, lr, rows in parts:
                if len(rows):
                    one_epoch = range(epoch, epoch + 1)
                    training = LocalTraining(one_epoch, lr, take(entries, rows), norm_mode=norm_mode)
                    key = t if self.batch_order == "same_for_both_passes" else (t, name)
                    out = fed.sgd(take(theta, rows), clients[rows], training, key=key, in_place=copied)
                    theta, loss = put(theta, rows, out.theta), put(loss, rows, out.loss)
                    copied = True
        return theta, loss

    def rows_to_train(self, fed: Federation, entries: Tensor) -> Tensor:
        """Indices of the rows that make a pass over ``entries`` [S, e] bool. Default: rows with a True parameter."""
        if not self.skip_empty_pass:
            return torch.arange(len(entries))
        return counts_true(entries[:, : fed.num_params]).nonzero().squeeze(1)

    def merge(
        self,
        fed: Federation,
        state: MaskStateT,
        clients: Tensor,
        trained: Tensor,
        personal: Tensor,
        *,
        in_place: bool = False,
    ) -> MaskStateT:
        """Average each entry over the clients that share it, and update all clients' models; personal [S, e] bool.

        Absent clients receive the mean of an entry if they share it and at least one participant shares it.
        ``in_place``: the new models are written into ``trained``.
        """
        weight = client_weight(fed, clients, self.client_weighting)
        shared = masked_mean(trained, ~personal, weight, state.shared)
        local = put(state.local, clients, select(personal, trained, shared, in_place=in_place))
        absent = torch.tensor(sorted(set(range(fed.num_clients)) - set(clients.tolist())), dtype=torch.int64)
        if len(absent):
            receives = ~take(state.personal, absent) & (~personal).any(0)
            local = put(local, absent, select(~receives, take(local, absent), shared))
        return replace(state, shared=shared, local=local)

    def note_trained(self, fed: Federation, clients: Tensor, start: Tensor, trained: Tensor) -> tuple[dict, bool]:
        """The note ``trained`` of a round, and whether the trained rows [S, e] may be overwritten after it.

        Under the engine the rows are scored here. They may be overwritten unless they are those of ``start``. A
        subclass with its own prediction rule has them scored by the engine, with the new state.
        """
        if fed.keep_trained or type(self).predict is not Algorithm.predict:
            return {"trained": trained}, False
        scores = {"trained": fed.score(trained, clients, None)} if fed.score else {}
        return scores, trained is not start

    def update_movable(self, fed: Federation, state: MaskStateT, start: Tensor, trained: Tensor) -> Tensor:
        """``movable`` [d] with the entries added that differ between start and trained [S, e]."""
        movable = state.movable.clone()
        for before, row in zip(start, trained, strict=True):
            movable |= differ(row[: fed.num_params], before[: fed.num_params])
        return movable

    def shares(self, fed: Federation, personal: Tensor, movable: Tensor) -> dict:
        """The personal share [S] of all parameters, and of the movable ones; personal [S, e], movable [d]."""
        personal = personal[:, : fed.num_params]
        return {
            "personal_share": counts_true(personal) / fed.num_params,
            "movable_share": counts_true(row & movable for row in personal) / max(1, count_true(movable)),
        }

    def passes(self, count: Tensor, fed: Federation, epochs: int) -> Tensor:
        """[S] passes over a client's data in ``epochs`` alternations, for ``count`` [S] personal entries."""
        return epochs * ((count > 0).int() + (count < fed.num_params) if self.skip_empty_pass else 2 + 0 * count)

    def artifacts(self, fed: Federation, state: MaskStateT) -> dict[str, Tensor]:
        """For every tensor: for each pair of clients, the entries that are personal on both [N, N], and its size."""
        out = {}
        for f in fed.layout.params:
            masks = torch.stack([row[f.start : f.stop] for row in state.in_force]).float()
            out[f"overlap/{f.name}"] = (masks @ masks.T).round().long()
            out[f"size/{f.name}"] = torch.tensor(f.stop - f.start)
        return out


def loss_checks(series: Mapping[str, np.ndarray], choosing: np.ndarray) -> list[MechanismCheck]:
    """Whether training diverged in the rounds that chose masks; choosing [noted rounds] bool.

    A loss of NaN counts as divergence. A client took part in the rounds that have its ``personal_share``.
    """
    present, loss = ~np.isnan(series["personal_share"]), series["train_loss"]  # [noted rounds, N]
    mean = np.where(present, loss, 0.0).sum(1) / present.sum(1)
    rise = float(mean[choosing].max() / max(mean[0], np.finfo(float).tiny))
    what = "training loss while masks are chosen, relative to round 1"
    checks = [MechanismCheck(what, rise, LARGEST_RISE, rise <= LARGEST_RISE, DIVERGED)]
    later = choosing & (np.arange(len(choosing)) > 0)
    if later.any():
        worst = float(loss[later][present[later]].max())
        what = "largest loss of one client while masks are chosen"
        checks.append(MechanismCheck(what, worst, LARGEST_LOSS, worst <= LARGEST_LOSS, DIVERGED))
    return checks


def part_check(series: Mapping[str, np.ndarray]) -> MechanismCheck:
    """Whether some movable entries are personal and some are shared at the end of the run."""
    share = series["movable_share"][-1]
    part = float(np.nanmean(np.minimum(share, 1 - share)))
    what = "smaller part of the movable entries, personal or shared"
    otherwise = (
        "all movable entries are shared (FedAvg) or all are personal (local training); check p, alpha and the rounds"
    )
    return MechanismCheck(what, part, SMALLEST_PART, part > SMALLEST_PART, otherwise)

r"""What both versions of FedSelect share: training the two parts of a model in turn, and averaging over sharers.

Tamirisa et al., "FedSelect", CVPR 2024, Algorithm 2 (LocalAlt) and the server's part of Algorithm 1; the workshop
version (ICML 2023) uses both.

    client    L times: a pass over the personal entries, then one over the shared ones
    server    θ_g[j] = mean of θ_k⁺[j] over the clients that share j
    client    θ_k = θ_k⁺ where personal, θ_g elsewhere
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithm import ABSENT, Algorithm, MechanismCheck, State, check_choices
from pfl_core.algorithms.fedavg import client_weight
from pfl_core.federation import Federation, LocalTraining
from pfl_core.ops import ClientRows, count_true, counts_true, differ, masked_mean, put, select, take
from pfl_core.options import NonNegativeFloat

LARGEST_RISE = 1.5
"""Of the training loss (mean over clients) while masks are chosen, over that of round 1."""
LARGEST_LOSS = math.log(100)
"""Of one client after round 1 while masks are chosen: what an untrained network loses on 100 classes, the most here.

The rise misses a run that diverges from the start: ResNet18 with a last batch of 4 has 2.44 in round 1 and never more.
"""
SMALLEST_PART = 0.0
"""Of a client's movable entries, personal or shared; at 0 the method is FedAvg, or training alone."""
NOTES = {"train_loss", "personal_share", "movable_share"}  # of each round, which the checks read
DIVERGED = "the masks were ranked by divergence; try a lower rate, or batches that divide the clients' images"


@dataclass(frozen=True)
class MaskState(State):
    """``local`` [N, e] are the clients' models θ_k, ``shared`` [e] is θ_g."""

    personal: ClientRows = ()  # [N, e] bool, m_k as it stands; the tail tells whether statistics stay at home
    in_force: ClientRows = ()  # [N, e] bool, the masks that the last round trained and averaged with
    movable: Tensor = ABSENT  # [d] bool, entries that changed on some client so far


@dataclass(frozen=True)
class Alternating(Algorithm):
    """Fields: the readings of what the papers leave open about training and averaging (A13 to A19)."""

    lr_personal: NonNegativeFloat | None = None  # γ_v; None: the federation's rate
    lr_shared: NonNegativeFloat | None = None  # γ_u
    batch_order: Literal["same_for_both_passes", "reshuffle_each_pass"] = "same_for_both_passes"
    skip_empty_pass: bool = True
    bn_mode: Literal["train", "eval_after_round_0"] = "train"
    buffer_policy: Literal["local", "average"] = "local"
    client_weighting: Literal["uniform", "samples"] = "uniform"

    def __post_init__(self) -> None:
        check_choices(self)

    def init(self, fed: Federation, theta0: Tensor) -> MaskState:
        local = theta0.repeat(fed.num_clients, 1)
        personal = torch.zeros_like(local, dtype=torch.bool)
        personal[:, fed.num_params :] = self.buffer_policy == "local"
        movable = torch.zeros_like(personal[0, : fed.num_params])
        return MaskState(shared=theta0, local=local, personal=personal, in_force=personal, movable=movable)

    def evaluation_models(self, fed: Federation, state: MaskState, clients: Tensor, t: int) -> Tensor:
        return take(state.local, clients)

    def local_alt(
        self, fed: Federation, theta: Tensor, personal: Tensor, clients: Tensor, t: int, epochs: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Algorithm 2, once per local epoch: the personal entries' pass, then the shared ones', on the same batches.

        theta [S, e], personal [S, e] bool -> (theta⁺ [S, e], mean loss of the last pass [S]). Momentum, which papers
        here do not use, starts at rest in each pass.
        """
        loss = torch.full((len(clients),), torch.nan)
        parts = [("v", personal, self.lr_personal), ("u", ~personal, self.lr_shared)]
        parts = [(*part, self.rows_to_train(fed, part[1])) for part in parts]
        norm_mode = "eval" if self.bn_mode == "eval_after_round_0" and t > 0 else "train"
        ours = False  # whether theta is a copy already
        for epoch in range(fed.train.epochs if epochs is None else epochs):
            for name, part, rate, rows in parts:
                if len(rows):
                    one_epoch = range(epoch, epoch + 1)
                    training = LocalTraining(one_epoch, rate, take(part, rows), norm_mode=norm_mode)
                    key = t if self.batch_order == "same_for_both_passes" else (t, name)
                    out = fed.sgd(take(theta, rows), clients[rows], training, key=key, in_place=ours)
                    theta, loss = put(theta, rows, out.theta), put(loss, rows, out.loss)
                    ours = True
        return theta, loss

    def rows_to_train(self, fed: Federation, part: Tensor) -> Tensor:
        """Rows of a pass: all, or (default) those with something to train in it; part [S, e] bool."""
        if not self.skip_empty_pass:
            return torch.arange(len(part))
        return counts_true(part[:, : fed.num_params]).nonzero().squeeze(1)

    def merge(self, fed: Federation, state: MaskState, clients: Tensor, trained: Tensor, personal: Tensor) -> MaskState:
        """Server mean over the sharers of each entry, and what every client then holds; personal [S, e] bool.

        Absent clients receive the mean where they share an entry that some participant shares, too.
        """
        weight = client_weight(fed, clients, self.client_weighting)
        shared = masked_mean(trained, ~personal, weight, state.shared)
        local = put(state.local, clients, select(personal, trained, shared))
        absent = torch.tensor(sorted(set(range(fed.num_clients)) - set(clients.tolist())), dtype=torch.int64)
        if len(absent):
            receives = ~take(state.personal, absent) & (~personal).any(0)
            local = put(local, absent, select(~receives, take(local, absent), shared))
        return replace(state, shared=shared, local=local)

    def moved(self, fed: Federation, state: MaskState, start: Tensor, trained: Tensor) -> Tensor:
        """``movable`` [d] with the entries that these rows [S, e] changed."""
        movable = state.movable.clone()
        for before, row in zip(start, trained, strict=True):
            movable |= differ(row[: fed.num_params], before[: fed.num_params])
        return movable

    def shares(self, fed: Federation, personal: Tensor, movable: Tensor) -> dict:
        """How much of each model is personal, of all parameters and of those that can move; personal [S, e] bool."""
        personal = personal[:, : fed.num_params]
        return {
            "personal_share": counts_true(personal) / fed.num_params,
            "movable_share": counts_true(row & movable for row in personal) / max(1, count_true(movable)),
        }

    def passes(self, count: Tensor, fed: Federation, epochs: int) -> Tensor:
        """[S] passes over a client's data that ``epochs`` alternations take with ``count`` [S] personal entries."""
        return epochs * ((count > 0).int() + (count < fed.num_params) if self.skip_empty_pass else 2 + 0 * count)

    def artifacts(self, fed: Federation, state: MaskState) -> dict[str, Tensor]:
        """For every tensor the entries that each pair of clients has personal in common [N, N], and its size."""
        out = {}
        for f in fed.layout.params:
            masks = torch.stack([row[f.start : f.stop] for row in state.in_force]).float()
            out[f"overlap/{f.name}"] = (masks @ masks.T).round().long()
            out[f"size/{f.name}"] = torch.tensor(f.stop - f.start)
        return out


def loss_checks(series: Mapping[str, np.ndarray], choosing: np.ndarray) -> list[MechanismCheck]:
    """Whether training diverged in the rounds whose training chose masks; choosing [noted rounds] bool.

    A loss that is not a number counts as divergence. An absent client is one without a ``personal_share``.
    """
    present, loss = ~np.isnan(series["personal_share"]), series["train_loss"]  # [noted rounds, N]
    mean = np.where(present, loss, 0.0).sum(1) / present.sum(1)
    rise = float(mean[choosing].max() / max(mean[0], np.finfo(float).tiny))
    found = [
        MechanismCheck(
            "loss while masks are chosen, over round 1's",
            *(rise, LARGEST_RISE, rise <= LARGEST_RISE, DIVERGED),
        )
    ]
    later = choosing & (np.arange(len(choosing)) > 0)
    if later.any():
        worst = float(loss[later][present[later]].max())
        found.append(
            MechanismCheck(
                "largest loss of a client while masks are chosen",
                *(worst, LARGEST_LOSS, worst <= LARGEST_LOSS, DIVERGED),
            )
        )
    return found


def part_check(series: Mapping[str, np.ndarray]) -> MechanismCheck:
    """Whether clients end with something personal and something shared, of what may move."""
    share = series["movable_share"][-1]
    part = float(np.nanmean(np.minimum(share, 1 - share)))
    return MechanismCheck(
        "smaller part of what moves, personal or shared",
        *(part, SMALLEST_PART, part > SMALLEST_PART),
        "nothing is personal, or everything is: the run is FedAvg or training alone; look at p, the limit, the rounds",
    )

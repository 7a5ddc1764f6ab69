r"""LotteryFL: every client prunes the shared model to its own subnetwork, and trains and shares only that.

Li et al., "LotteryFL: Empower Edge Intelligence with Personalized and Communication-Efficient Federated Learning",
SEC 2021. A baseline of FedSelect (workshop version) and Star-PFL. m_k: mask, 1 = kept; r_k: density; both start at 1.

    client    θ_k = θ ⊙ m_k
              if accuracy(θ_k) > acc_threshold and r_k > target_density:
                  in every weight tensor drop the share prune_rate of the kept entries with the smallest |θ_k|
                  r_k ← (1 − prune_rate) r_k,   θ_k ← θ_0 ⊙ m_k                           reset to the initial values
              θ_k ← SGD(θ_k), entries outside m_k held at 0
    server    θ[j] = mean of θ_k[j] over the participants that keep j; unchanged where there is none
    scored    θ ⊙ m_k

Differs from the paper: its code measures the accuracy on test data. Here it is measured on the federation's validation
split ("val"). Without such a split, every client holds out a tenth of its training data, drawn once, and trains on the
rest.

Not in the paper: participants have equal weights (``client_weighting``). Batch-norm statistics are treated like biases:
never pruned, reset with them, averaged over all participants. Entries equal to the smallest one that stays also stay,
as with the percentile in the paper's code. So batch norm's scales, which all start at 1, are not pruned in arbitrary
order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithm import ABSENT, Algorithm, State, register
from pfl_core.algorithms.fedavg import client_weight
from pfl_core.federation import Federation, LocalTraining
from pfl_core.federation.types import Samples
from pfl_core.layout import NORM, Field
from pfl_core.ops import ClientRows, count_true, counts_true, masked_mean, put, round_half_up, select, take
from pfl_core.options import Fraction
from pfl_core.seeding import permutation

HELD_OUT = 0.1  # share of a client's training data on which its accuracy is measured


@dataclass(frozen=True)
class LotteryState(State):
    initial: Tensor = ABSENT  # [e] θ_0
    active: ClientRows = ()  # [N, e] bool, m_k; True on all biases and statistics
    density: Tensor = ABSENT  # [N] float64, r_k: nominal density, since counts are rounded tensor by tensor


@register(
    "lotteryfl",
    papers=("fedselect", "star_pfl"),
    shares="the weights left by each client's pruning, and all biases; averaged over the clients that keep them",
    variants={"mnist": {"target_density": 0.1}},
)
@dataclass(frozen=True)
class LotteryFL(Algorithm[LotteryState]):
    """Iterative magnitude pruning with resets, per client. Defaults: those of the public code for CIFAR-10."""

    prune_rate: Fraction = 0.2  # share of the remaining weights dropped in one pruning step
    acc_threshold: Fraction = 0.2  # accuracy in [0, 1] above which a client prunes
    target_density: Fraction = 0.5  # pruning stops at or below this density; public code: 0.1 for MNIST
    prune_norms: bool = True  # whether batch norm's scales are pruned, as in the public code
    client_weighting: Literal["uniform", "samples"] = "uniform"

    def init(self, fed: Federation, theta0: Tensor) -> LotteryState:
        return LotteryState(
            shared=theta0,
            initial=theta0,
            active=torch.ones_like(theta0, dtype=torch.bool).repeat(fed.num_clients, 1),
            density=torch.ones(fed.num_clients, dtype=torch.float64),
        )

    def evaluation_models(self, fed: Federation, state: LotteryState, clients: Tensor, t: int) -> Tensor:
        return masked(fed.broadcast(state.shared, clients), take(state.active, clients))  # θ ⊙ m_k

    def round(self, fed: Federation, state: LotteryState, clients: Tensor, t: int) -> tuple[LotteryState, dict]:
        before, density = take(state.active, clients), state.density[clients]
        training, held_out = training_and_held_out(fed, clients)
        theta = self.evaluation_models(fed, state, clients, t)
        pruning = self.prunes_now(fed, theta, clients, held_out, density)
        active = before
        if pruning.any():
            active = before.clone()
            for s in pruning.nonzero().squeeze(1).tolist():
                active[s] = self.prune(fed, theta[s], before[s])
            theta[pruning] = masked(fed.broadcast(state.initial, clients[pruning]), active[pruning])
            density = torch.where(pruning, (1 - self.prune_rate) * density, density)
        out = fed.sgd(theta, clients, LocalTraining(trainable=active), key=t, data=training)
        weight = client_weight(fed, clients, self.client_weighting)
        new = replace(
            state,
            shared=masked_mean(out.theta, active, weight, state.shared),
            active=put(state.active, clients, active),
            density=put(state.density, clients, density),
        )
        upload = counts_true(active[:, : fed.num_params])
        mask_changed = upload < counts_true(before[:, : fed.num_params])
        return new, {
            "trained": out.theta,
            "train_loss": out.loss,
            "passes": fed.train.epochs,
            "density": density,
            "upload": upload,
            "upload_bits": count_true(fed.layout.mask(self.is_prunable)) * mask_changed,
        }

    def prunes_now(
        self, fed: Federation, theta: Tensor, clients: Tensor, held_out: list[tuple[Tensor, Tensor]], density: Tensor
    ) -> Tensor:
        """[S] bool, the clients that prune in this round. Accuracy is only measured where the density is too high."""
        prunes = density > self.target_density + 1e-9  # in floats 0.8 * 0.8 * 0.8 is above 0.512
        rows = prunes.nonzero().squeeze(1)
        data = [held_out[s] for s in rows.tolist()]
        for s, (_, y), logits in zip(rows, data, fed.forward(take(theta, rows), clients[rows], data), strict=True):
            prunes[s] = (logits.argmax(1) == y).double().mean().cpu() > self.acc_threshold
        return prunes

    def prune(self, fed: Federation, theta_k: Tensor, active: Tensor) -> Tensor:
        """The mask [e] without the smallest remaining weights of every tensor; theta_k and active [e]."""
        active = active.clone()
        for f in filter(self.is_prunable, fed.layout.params):
            size, mask = theta_k[f.start : f.stop].abs(), active[f.start : f.stop]
            mask &= ~(size < cut_off(size[mask], self.prune_rate))  # a view: changes ``active``
        return active

    def is_prunable(self, field: Field) -> bool:
        return field.name.rpartition(".")[2] == "weight" and (self.prune_norms or field.kind != NORM)


def masked(theta: Tensor, active: Tensor) -> Tensor:
    """theta where active, 0 elsewhere; both [S, e]."""
    return select(active, theta, torch.zeros_like(theta[0]))


def cut_off(size: Tensor, rate: float) -> float:
    """The smallest of these sizes [n] that stays when the share ``rate`` is dropped; infinity if all are dropped."""
    count = round_half_up(rate * len(size))
    return float(np.partition(size.cpu().numpy(), count)[count]) if count < len(size) else math.inf


def training_and_held_out(fed: Federation, clients: Tensor) -> tuple[Samples, list[tuple[Tensor, Tensor]]]:
    """The samples on which each client trains, and those on which its accuracy is measured."""
    if "val" in fed.splits:
        return "train", [fed.splits["val"].client(k) for k in clients.tolist()]
    training, held_out = [], []
    for k in clients.tolist():
        x, y = fed.splits["train"].client(k)
        order = permutation(len(y), fed.seed, "held out", k).to(y.device)
        num = min(max(1, round_half_up(HELD_OUT * len(y))), len(y) - 1)
        held_out.append((x[order[:num]], y[order[:num]]))
        training.append((x[order[num:]], y[order[num:]]))
    return training, held_out

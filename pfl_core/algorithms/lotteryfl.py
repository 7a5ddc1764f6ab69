r"""LotteryFL: every client prunes the shared model to a subnetwork of its own, and trains and shares only that.

Li et al., "LotteryFL: Empower Edge Intelligence with Personalized and Communication-Efficient Federated Learning",
SEC 2021. FedSelect, section 6 of its specification; Star-PFL, section 7. m_k: 1 = kept, r_k: density, both 1 at first.

    client    θ_k = θ ⊙ m_k
              if accuracy(θ_k) > acc_threshold and r_k > target_density:
                  in every weight tensor drop the prune_rate of the kept entries that are smallest in |θ_k|
                  r_k ← (1 − prune_rate) r_k,   θ_k ← θ_0 ⊙ m_k                           back to the initial values
              θ_k ← SGD(θ_k), entries outside m_k held at 0
    server    θ[j] = mean of θ_k[j] over the participants that keep j; as before where nobody does
    scored    θ ⊙ m_k

Differs from the paper: its code measures the accuracy on test data. Here it is measured on the federation's validation
split ("val"); without one, every client holds out a tenth of its training data, drawn once, and trains on the rest.
Ours: batch-norm statistics go with the biases, which are never pruned: reset with them, and averaged over all
participants; participants weigh the same (``client_weighting``). What is as large as the smallest that stays, stays, as
by the code's percentile: so batch norm's scales, all 1 at first, are not pruned blindly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithm import ABSENT, Algorithm, State, check_choices, register
from pfl_core.algorithms.fedavg import client_weight
from pfl_core.federation import Federation, LocalTraining
from pfl_core.federation.types import Samples
from pfl_core.layout import NORM, Field
from pfl_core.ops import ClientRows, count_true, counts_true, masked_mean, put, round_half_up, select, take
from pfl_core.seeding import generator

HELD_OUT = 0.1  # share of a client's training data that its accuracy is measured on


@dataclass(frozen=True)
class LotteryState(State):
    initial: Tensor = ABSENT  # [e] θ_0
    active: ClientRows = ()  # [N, e] bool, m_k; True on all biases and statistics
    density: Tensor = ABSENT  # [N] float64, r_k: what the rule reckons with (counts are rounded, tensor by tensor)


@register(
    "lotteryfl",
    papers=("fedselect", "star_pfl"),
    shares="the weights that survive the client's own pruning, and all biases; averaged over those who keep them",
    variants={"mnist": {"target_density": 0.1}},
)
@dataclass(frozen=True)
class LotteryFL(Algorithm):
    """Iterative magnitude pruning with resets, client by client. Defaults: the public code's for CIFAR-10."""

    prune_rate: float = 0.2  # share of the surviving weights dropped each time
    acc_threshold: float = 0.2  # accuracy to exceed, in [0, 1]
    target_density: float = 0.5  # pruning ends at or below it; public code: 0.1 for MNIST
    prune_norms: bool = True  # whether batch norm's scales are weights, as they are in the public code
    client_weighting: Literal["uniform", "samples"] = "uniform"

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("prune_rate", "acc_threshold", "target_density"):
            if not 0 <= (given := getattr(self, name)) <= 1:
                raise ValueError(
                    f"LotteryFL: {name}={given} is outside [0, 1]; for {given} percent give {given / 100:g}"
                )

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
        training, held_out = divided(fed, clients)
        theta = self.evaluation_models(fed, state, clients, t)
        pruning = self.passes_gate(fed, theta, clients, held_out, density)
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
        notes = {"trained": out.theta, "train_loss": out.loss, "passes": fed.train.epochs, "density": density}
        return new, notes | self.traffic(fed, before, active)

    def passes_gate(
        self, fed: Federation, theta: Tensor, clients: Tensor, held_out: list[tuple[Tensor, Tensor]], density: Tensor
    ) -> Tensor:
        """[S] bool, who prunes now; those that are sparse enough need no accuracy."""
        passes = density > self.target_density + 1e-9  # 0.8 * 0.8 * 0.8 is more than 0.512 in floats
        rows = passes.nonzero().squeeze(1)
        data = [held_out[s] for s in rows.tolist()]
        for s, (_, y), logits in zip(rows, data, fed.forward(take(theta, rows), clients[rows], data), strict=True):
            passes[s] = (logits.argmax(1) == y).double().mean().cpu() > self.acc_threshold
        return passes

    def prune(self, fed: Federation, theta_k: Tensor, active: Tensor) -> Tensor:
        """A row's mask [e] with the smallest surviving weights of every tensor dropped."""
        active = active.clone()
        for f in filter(self.is_prunable, fed.layout.params):
            size, mask = theta_k[f.start : f.stop].abs(), active[f.start : f.stop]
            mask &= ~(size < cut_off(size[mask], self.prune_rate))
        return active

    def is_prunable(self, field: Field) -> bool:
        return field.name.rpartition(".")[2] == "weight" and (self.prune_norms or field.kind != NORM)

    def traffic(self, fed: Federation, before: Tensor, active: Tensor) -> dict[str, Tensor]:
        """Values that go up, and mask bits where the mask is new."""
        upload = counts_true(active[:, : fed.num_params])
        prunable = count_true(fed.layout.mask(self.is_prunable))
        return {"upload": upload, "upload_bits": prunable * (upload < counts_true(before[:, : fed.num_params]))}


def masked(theta: Tensor, active: Tensor) -> Tensor:
    """theta where active, 0 elsewhere; both [S, e]."""
    return select(active, theta, torch.zeros_like(theta[0]))


def cut_off(size: Tensor, rate: float) -> float:
    """The smallest that stays if the share ``rate`` of these sizes [n] goes; infinity if all go."""
    count = round_half_up(rate * len(size))
    return float(np.partition(size.cpu().numpy(), count)[count]) if count < len(size) else math.inf


def divided(fed: Federation, clients: Tensor) -> tuple[Samples, list[tuple[Tensor, Tensor]]]:
    """What each client trains on, and what its accuracy is measured on."""
    if "val" in fed.splits:
        return "train", [fed.splits["val"].client(k) for k in clients.tolist()]
    training, held_out = [], []
    for k in clients.tolist():
        x, y = fed.splits["train"].client(k)
        order = torch.randperm(len(y), generator=generator(fed.seed, "held out", k)).to(y.device)
        num = min(max(1, round_half_up(HELD_OUT * len(y))), len(y) - 1)
        held_out.append((x[order[:num]], y[order[:num]]))
        training.append((x[order[num:]], y[order[num:]]))
    return training, held_out

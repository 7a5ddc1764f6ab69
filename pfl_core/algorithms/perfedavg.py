r"""Per-FedAvg: a shared model from which one step on a client's data leads far.

Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020, Algorithm 1. pFedGate, section 8 of its specification.

    per pair of batches b_1, b_2    w' = w_k − α ∇f(w_k; b_1)
      "first_order"                 w_k ← w_k − β ∇f(w'; b_2)
      "hessian"                     w_k ← w_k − β (I − α ∇²f(w_k; b_1)) ∇f(w'; b_2)
    server                          θ ← θ + lr_server (Σ_k n_k w_k / Σ_k n_k − θ)

A client is scored with θ − α ∇f(θ; b) on one batch of its training data; ``adaptation="epoch"``: after one epoch.

Differs from the paper: the Hessian is that of b_1, which makes the step the exact gradient of f(w − α ∇f(w; b_1); b_2)
(there: of a third batch); means by n_k. α = β = the federation's rate unless given. Ours: the batches of an epoch pair
up one after the other, and one that is left over is both b_1 and b_2; β's steps have the federation's momentum, weight
decay and clipping, α's are plain while training; batch-norm statistics move with b_2's pass alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Literal

import torch
from torch import Tensor

from pfl_core.algorithm import register
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.momentum import MovingState
from pfl_core.federation import Batch, Federation, Grad, LocalTraining, Trained
from pfl_core.federation.local_step import TrainingGroup
from pfl_core.ops import server_step
from pfl_core.seeding import Key

Pair = tuple[Batch, Batch | None]


@register(
    "perfedavg",
    papers=("pfedgate",),
    shares="everything; each client is scored after a step of its own",
    variants={"hessian": {"order": "hessian"}, "epoch": {"adaptation": "epoch"}},
    trial_training={"lr": 0.05, "batch_size": 32, "momentum": 0.0},
)
@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    """``shared`` [e] is θ."""

    client_weighting: Literal["uniform", "samples"] = "samples"
    alpha: float | None = None  # α; None: the federation's rate, which is β
    order: Literal["first_order", "hessian"] = "first_order"
    adaptation: Literal["step", "epoch"] = "step"  # of the copy that is scored

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha is not None and not self.alpha >= 0:
            raise ValueError(f"PerFedAvg: alpha={self.alpha} is below 0; leave it out for the common rate")

    def round(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> tuple[MovingState, dict]:
        momentum = self.client_momentum(fed, state)

        def local(chunk: Tensor, rows: slice) -> Trained:
            out = self.train(fed, state.shared, chunk, t, momentum.take(chunk))
            momentum.put(chunk, out.velocity)
            return out

        mean, notes = fed.average(local, clients, self.weight(fed, clients))
        new = momentum.into(MovingState(shared=server_step(state.shared, mean, self.lr_server)))
        return new, notes | {
            "upload": torch.full((len(clients),), fed.num_params),
            "passes": fed.train.epochs * (2 if self.order == "hessian" else 1),
        }

    def train(self, fed: Federation, shared: Tensor, clients: Tensor, t: int, velocity: Tensor | None) -> Trained:
        """A round's local work of every client from the shared model [e]; ``velocity`` [S, d], None: at rest."""
        theta, d, lr = shared.repeat(len(clients), 1), fed.num_params, fed.lr(t)
        velocity = fed.start_velocity(velocity, theta[:, :d])
        loss, steps = torch.full((len(clients),), torch.nan), torch.zeros(len(clients), dtype=torch.int64)
        for places in fed.groups(clients):
            rows, num = theta[places], len(clients[places])
            velocities = None if velocity is None else velocity[places]
            group = TrainingGroup(list(range(num)), rows, [lr] * num, fed.train, velocity=velocities)
            total, seen, made = torch.zeros(3, num).to(theta)
            for pair in pairs(fed, clients[places], t):
                found, weight = self.gradients(fed, rows, pair, fed.lr(t, self.alpha))
                now = slice(0, len(found.loss))
                group.step(found.theta, None, None)
                rows[now, d:] = found.statistics
                total[now] += found.loss * weight
                seen[now] += weight
                made[now] += 1
            theta[places], loss[places], steps[places] = rows, (total / seen).to(loss), made.to(steps)
            if velocity is not None:
                velocity[places] = velocities
        return Trained(theta, loss, steps, velocity)

    def gradients(self, fed: Federation, theta: Tensor, pair: Pair, alpha: float) -> tuple[Grad, Tensor]:
        """Gradients for the first rows of theta, and their samples [R]; rows without a second batch take the first."""
        first, second = pair
        both = 0 if second is None else len(second.count)
        parts = [] if second is None else [(slice(0, both), second)]
        if both < len(first.count):
            rest = slice(both, len(first.count))
            parts.append((rest, part_of(first, rest)))
        found = [self.gradient(fed, theta[rows], part_of(first, rows), batch, alpha) for rows, batch in parts]
        joined = (torch.cat([getattr(f, name) for f in found]) for name in ("loss", "statistics", "theta"))
        return Grad(*joined), torch.cat([batch.weight for _, batch in parts])

    def gradient(self, fed: Federation, theta: Tensor, first: Batch, second: Batch, alpha: float) -> Grad:
        """The gradient for rows [R, e]: on the second batch, after a step of alpha on the first."""
        d = fed.num_params
        ahead = theta.clone()
        ahead[:, :d].add_(fed.grad(theta, first).theta, alpha=-alpha)
        found = fed.grad(ahead, second)
        if self.order == "hessian":
            found.theta.sub_(fed.hessian_product(theta, first, found.theta), alpha=alpha)
        return found

    def evaluation_models(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> Tensor:
        key, data = (t, "adapt"), "train"
        if self.adaptation == "step":
            data = [first_batch(fed, k, key) for k in clients.tolist()]
        start = fed.broadcast(state.shared, clients)
        return fed.sgd(start, clients, LocalTraining(epochs=1, lr=self.alpha), key=key, data=data).theta


def pairs(fed: Federation, clients: Tensor, t: int) -> Iterator[Pair]:
    """The batches of each local epoch of a group, two by two; the last may have no second."""
    for epoch in range(fed.train.epochs):
        batches = fed.batches(clients, t, epochs=range(epoch, epoch + 1))
        yield from zip_longest(batches, batches)


def part_of(batch: Batch, rows: slice) -> Batch:
    """The batch of some of its rows."""
    return Batch(*(getattr(batch, f.name)[rows] for f in fields(batch)))


def first_batch(fed: Federation, k: int, key: tuple[Key, ...]) -> tuple[Tensor, Tensor]:
    """A client's first training batch at this address, (x, y)."""
    for batch in fed.batches(torch.tensor([k]), key, epochs=1):
        return batch.x[0], batch.y[0]
    return fed.splits["train"].client(k)

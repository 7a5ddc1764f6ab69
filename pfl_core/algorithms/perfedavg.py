r"""Per-FedAvg: a shared model that adapts well to a client's data in one gradient step.

Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020, Algorithm 1. A baseline of pFedGate.

    per pair of batches b_1, b_2    w' = w_k − α ∇f(w_k; b_1)
      "first_order"                 w_k ← w_k − β ∇f(w'; b_2)
      "hessian"                     w_k ← w_k − β (I − α ∇²f(w_k; b_1)) ∇f(w'; b_2)
    server                          θ ← θ + lr_server (Σ_k n_k w_k / Σ_k n_k − θ)

A client is scored with θ − α ∇f(θ; b) for one batch b of its training data, without clipping, as in training;
``adaptation="epoch"``: after one epoch.

Differs from the paper: the Hessian is that of b_1, which makes the step the exact gradient of f(w − α ∇f(w; b_1); b_2).
The paper uses a third batch. The server's mean is weighted by n_k. α and β are the federation's rate by default.

Not in the paper: the batches of an epoch are paired in order; if one is left over, it is both b_1 and b_2. Steps of β
have the federation's momentum, weight decay and clipping; steps of α in training have none of them. Batch-norm
statistics are updated by the pass over b_2 only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import islice, zip_longest
from typing import Literal

import torch
from torch import Tensor

from pfl_core.algorithm import register
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.momentum import MovingState
from pfl_core.federation import Batch, Federation, Grad, LocalTraining, Trained
from pfl_core.federation.local_step import TrainingGroup
from pfl_core.options import NonNegativeFloat

Pair = tuple[Batch, Batch | None]


@register(
    "perfedavg",
    papers=("pfedgate",),
    shares="everything; each client is scored after one gradient step on its data",
    variants={"hessian": {"order": "hessian"}, "epoch": {"adaptation": "epoch"}},
    trial={"alpha": 0.1},
    trial_training={"epochs": 3},  # one epoch has half as many steps as FedAvg's, since a step takes two batches
)
@dataclass(frozen=True)
class PerFedAvg(FedAvg[MovingState]):
    """``shared`` [e] is θ."""

    version = 2  # 1 clipped the step before a score, though not that of the training

    client_weighting: Literal["uniform", "samples"] = "samples"
    alpha: NonNegativeFloat | None = None  # α; None: the federation's rate, as for β
    order: Literal["first_order", "hessian"] = "first_order"
    adaptation: Literal["step", "epoch"] = "step"  # of the copy used for evaluation

    def round(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> tuple[MovingState, dict]:
        new, notes = super().round(fed, state, clients, t)
        return new, notes | {"passes": fed.train.epochs * (2 if self.order == "hessian" else 1)}

    def train_clients(
        self, fed: Federation, state: MovingState, clients: Tensor, t: int, velocity: Tensor | None
    ) -> Trained:
        theta, num, d = state.shared.repeat(len(clients), 1), len(clients), fed.num_params
        start = fed.start_velocity(velocity, theta[:, :d])  # None without momentum
        everyone = TrainingGroup(list(range(num)), theta, [fed.lr(t)] * num, fed.train, velocity=start)

        def train_group(rows: slice | Tensor) -> None:
            group = everyone.take(rows)
            for pair in batch_pairs(fed, clients[rows], t):
                gradient, count = self.gradients(fed, group.theta, pair, fed.lr(t, self.alpha))
                group.step(gradient.theta, None, None)
                group.theta[: len(count), d:] = gradient.statistics
                group.record(gradient.loss, count.int().tolist(), count)
            everyone.put(rows, group)

        fed.each_group(train_group, clients)
        return Trained(theta, everyone.loss, torch.tensor(everyone.steps), everyone.velocity)

    def gradients(self, fed: Federation, theta: Tensor, pair: Pair, alpha: float) -> tuple[Grad, Tensor]:
        """Gradients of the rows that have a first batch, and the sizes [R] of the batches b_2.

        Rows without a second batch use their first one twice.
        """
        first, second = pair
        num_pairs = 0 if second is None else len(second.count)
        parts = [] if second is None else [(slice(0, num_pairs), second)]  # (rows, b_2)
        if num_pairs < len(first.count):
            rest = slice(num_pairs, len(first.count))
            parts.append((rest, select_rows(first, rest)))
        grads = [self.gradient(fed, theta[rows], select_rows(first, rows), batch, alpha) for rows, batch in parts]
        joined = (torch.cat([getattr(grad, name) for grad in grads]) for name in ("loss", "statistics", "theta"))
        return Grad(*joined), torch.cat([batch.weight for _, batch in parts])

    def gradient(self, fed: Federation, theta: Tensor, first: Batch, second: Batch, alpha: float) -> Grad:
        """The gradient at rows [R, e]: on the second batch, after a step of alpha on the first."""
        d = fed.num_params
        adapted = theta.clone()
        adapted[:, :d].add_(fed.grad(theta, first).theta, alpha=-alpha)  # w'
        gradient = fed.grad(adapted, second)
        if self.order == "hessian":
            gradient.theta.sub_(fed.hessian_product(theta, first, gradient.theta), alpha=alpha)
        return gradient

    def evaluation_models(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> Tensor:
        key = (t, "adapt")
        theta = fed.broadcast(state.shared, clients)
        if self.adaptation == "epoch":
            return fed.sgd(theta, clients, LocalTraining(epochs=1, lr=self.alpha), key=key).theta
        theta, alpha, d = theta.clone(), fed.lr(t, self.alpha), fed.num_params

        def adapt_group(places: slice | Tensor) -> None:
            rows = theta[places]
            for batch in islice(fed.batches(clients[places], key, epochs=1), 1):  # none for clients without a batch
                active = slice(0, len(batch.count))
                gradient = fed.grad(rows[active], batch)
                rows[active, :d] -= alpha * gradient.theta
                rows[active, d:] = gradient.statistics
            theta[places] = rows

        fed.each_group(adapt_group, clients)
        return theta


def batch_pairs(fed: Federation, clients: Tensor, t: int) -> Iterator[Pair]:
    """The batches of each local epoch of a group, in pairs; the last pair may have no second batch."""
    for epoch in range(fed.train.epochs):
        batches = fed.batches(clients, t, epochs=range(epoch, epoch + 1))
        yield from zip_longest(batches, batches)  # one iterator twice: consecutive batches


def select_rows(batch: Batch, rows: slice) -> Batch:
    """The batch of some of the rows."""
    return Batch(*(getattr(batch, f.name)[rows] for f in fields(batch)))

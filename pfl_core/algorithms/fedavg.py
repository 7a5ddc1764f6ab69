r"""FedAvg: the shared model is the mean of the clients' trained models. FedAvg-FT: FedAvg, fine-tuned for evaluation.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, Algorithm 1.

    θ_k ← SGD(θ; D_k)        θ ← θ + lr_server (Σ_k w_k θ_k / Σ_k w_k − θ)

Differs from the paper: w_k = 1 by default, as in the FedSelect and FedPeWS papers. The FedAvg paper has w_k = n_k:
``client_weighting="samples"``. Batch-norm statistics are averaged in the same way as the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pfl_core.algorithm import register
from pfl_core.algorithms.momentum import Momentum, MovingState, MovingStateT
from pfl_core.federation import Federation, LocalTraining, Trained
from pfl_core.ops import server_step
from pfl_core.options import NonNegativeFloat, NonNegativeInt


def client_weight(fed: Federation, clients: Tensor, weighting: str) -> Tensor:
    """[S] aggregation weights: all 1 ("uniform"), or the numbers of training samples ("samples")."""
    return fed.num_train[clients] if weighting == "samples" else torch.ones(len(clients)).to(fed.theta0)


@register(
    "fedavg",
    papers=("fedselect", "fedpews", "pfedgate", "star_pfl"),
    shares="everything; one model for all",
    variants={"weighted": {"client_weighting": "samples"}, "momentum_stays": {"keep_momentum": True}},
)
@dataclass(frozen=True)
class FedAvg(Momentum[MovingStateT]):
    """Local training from the shared model, then the mean."""

    client_weighting: Literal["uniform", "samples"] = "uniform"
    lr_server: NonNegativeFloat = 1.0  # η_g

    def local_training(self, fed: Federation, state: MovingStateT, clients: Tensor, t: int) -> LocalTraining:
        """How local training differs from plain SGD; subclasses override it. FedAvg: not at all."""
        return LocalTraining()

    def train_clients(
        self, fed: Federation, state: MovingStateT, clients: Tensor, t: int, velocity: Tensor | None
    ) -> Trained:
        """Local training from the shared model; velocity [S, d], or None to start at zero."""
        training = self.local_training(fed, state, clients, t)
        return fed.sgd(fed.broadcast(state.shared, clients), clients, training, key=t, velocity=velocity)

    def after_training(
        self, fed: Federation, state: MovingStateT, new: MovingStateT, clients: Tensor, out: Trained, t: int
    ) -> MovingStateT:
        """``new`` with what a subclass stores of this training, which started from ``state``. FedAvg: nothing."""
        return new

    def round(self, fed: Federation, state: MovingStateT, clients: Tensor, t: int) -> tuple[MovingStateT, dict]:
        new, notes, mean = self.trained_mean(fed, state, clients, t, self.weight(fed, clients))
        return replace(new, shared=server_step(state.shared, mean, self.lr_server)), notes

    def weight(self, fed: Federation, clients: Tensor) -> Tensor:
        """[S] weights of the mean; 0 for a client without a batch (a single sample under batch norm)."""
        weight = client_weight(fed, clients, self.client_weighting)
        steps = torch.tensor([fed.num_steps(k) for k in clients.tolist()]).to(weight)
        return torch.where(steps > 0, weight, 0.0) if steps.any() else weight

    def trained_mean(
        self, fed: Federation, state: MovingStateT, clients: Tensor, t: int, weight: Tensor
    ) -> tuple[MovingStateT, dict, Tensor]:
        """Local training from the shared model: new state (``shared`` unchanged), notes, weighted mean [e]."""
        new, momentum = state, self.client_momentum(fed, state)

        def local(chunk: Tensor, rows: slice) -> Trained:
            nonlocal new
            out = self.train_clients(fed, state, chunk, t, momentum.take(chunk))
            momentum.put(chunk, out.velocity)
            new = self.after_training(fed, state, new, chunk, out, t)
            return out

        mean, notes = fed.average(local, clients, weight)
        notes |= {"upload": torch.full((len(clients),), fed.num_params), "passes": fed.train.epochs}
        return momentum.into(new), notes, mean


@register(
    "fedavg_ft",
    papers=("fedselect", "pfedgate"),
    shares="everything in training; each client is scored with its own fine-tuned copy",
    variants={"one_epoch": {"finetune_epochs": 1}, "ten_epochs": {"finetune_epochs": 10}},
    ci={"finetune_epochs": 1},
    passes=2.0,
)
@dataclass(frozen=True)
class FedAvgFT(FedAvg[MovingState]):
    """FedAvg; a copy of the shared model is fine-tuned on the client's data for evaluation, then dropped."""

    finetune_epochs: NonNegativeInt = 3  # pFedGate: 1. FedSelect does not state it; 3 equals its local epochs

    def evaluation_models(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> Tensor:
        start = fed.broadcast(state.shared, clients)
        return fed.sgd(start, clients, LocalTraining(epochs=self.finetune_epochs), key=(t, "finetune")).theta

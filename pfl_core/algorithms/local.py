r"""Local: every client trains its own model, the baseline without federation.

    θ_k ← SGD(θ_k; D_k)

All clients start from the same model and send nothing. FedSelect's tables call it "Local only".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pfl_core.algorithm import register
from pfl_core.algorithms.momentum import Momentum, MovingState
from pfl_core.federation import Federation
from pfl_core.ops import put, take


@register("local", papers=("fedselect", "pfedgate", "star_pfl"), shares="nothing; every client keeps its whole model")
@dataclass(frozen=True)
class Local(Momentum[MovingState]):
    """Each round continues the local training of the last one."""

    def init(self, fed: Federation, theta0: Tensor) -> MovingState:
        return MovingState(local=theta0.repeat(fed.num_clients, 1))

    def round(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> tuple[MovingState, dict]:
        momentum = self.client_momentum(fed, state)
        out = fed.sgd(take(state.local, clients), clients, key=t, velocity=momentum.take(clients))  # [S, e]
        momentum.put(clients, out.velocity)
        notes = {
            "trained": out.theta,
            "train_loss": out.loss,
            "upload": torch.zeros(len(clients)),
            "passes": fed.train.epochs,
        }
        local = put(state.local, clients, out.theta)
        return momentum.into(replace(state, local=local)), notes

    def evaluation_models(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> Tensor:
        return take(state.local, clients)

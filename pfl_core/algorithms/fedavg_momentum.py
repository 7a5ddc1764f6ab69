r"""FedAvg whose clients' momentum stays with them from round to round: pFedGate's way of training, without its gate.

Ours, a control: pFedGate (Chen et al., ICML 2023) lets each client's optimizer live on, the baselines here start at
rest in each round.

    v_k, θ_k ← SGD(θ, v_k; D_k)        θ ← θ + lr_server (Σ_k w_k θ_k / Σ_k w_k − θ)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pfl_core.algorithm import State, register
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.federation import Federation, Trained
from pfl_core.ops import put, take


@dataclass(frozen=True)
class MovingState(State):
    """``shared`` [e] θ."""

    velocity: Tensor | None = None  # [N, d] v; None without momentum


@register("fedavg_momentum", papers=("pfedgate",), shares="everything; a client's momentum stays with it (ours)")
@dataclass(frozen=True)
class FedAvgMomentum(FedAvg):
    """Without momentum in training it is FedAvg to the bit."""

    def init(self, fed: Federation, theta0: Tensor) -> MovingState:
        velocity = theta0.new_zeros(fed.num_clients, fed.num_params) if fed.train.momentum else None
        return MovingState(shared=theta0, velocity=velocity)

    def hooks(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> dict[str, Any]:
        return {} if state.velocity is None else {"velocity": take(state.velocity, clients)}

    def remember(
        self, fed: Federation, state: MovingState, new: MovingState, clients: Tensor, out: Trained, t: int
    ) -> MovingState:
        return new if state.velocity is None else replace(new, velocity=put(new.velocity, clients, out.velocity))

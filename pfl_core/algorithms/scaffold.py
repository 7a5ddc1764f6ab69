r"""SCAFFOLD: FedAvg with control variates that correct the client drift of local steps.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, Algorithm 1 with
option II. A baseline of FedPeWS.

    θ_k ← θ_k − η (∇f_k(θ_k) + c − c_k), K_k times
    c_k⁺ = c_k − c + (θ − θ_k) / (K_k η)        c ← c + (1/N) Σ_{k sampled} (c_k⁺ − c_k)
    θ ← θ + lr_server (mean_k θ_k − θ)

With momentum ρ (the paper has none), K_k is the effective number of steps, as in FedNova: the number of steps without
momentum that move equally far. With the actual number of steps, the control variates would be too large by a factor of
up to 1 / (1 − ρ), and training diverges.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pfl_core.algorithm import ABSENT, register
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.momentum import MovingState, effective_steps
from pfl_core.federation import Federation, LocalTraining, Trained
from pfl_core.ops import put, take


@dataclass(frozen=True)
class ScaffoldState(MovingState):
    control: Tensor = ABSENT  # [d] c
    controls: Tensor = ABSENT  # [N, d] c_k


@register(
    "scaffold",
    papers=("fedpews",),
    shares="everything; one model for all, and a control variate",
    trial_training={"lr": 0.02, "momentum": 0.9},  # diverges at larger rates, and is slow without momentum
)
@dataclass(frozen=True)
class Scaffold(FedAvg[ScaffoldState]):
    """FedAvg with control variates. They start at zero, so the first round is FedAvg's.

    Raises ValueError for ``keep_momentum``: the velocity that a round starts with would count as its gradient.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_momentum:
            raise ValueError("SCAFFOLD: momentum starts at zero in every round; leave keep_momentum out")

    def init(self, fed: Federation, theta0: Tensor) -> ScaffoldState:
        zeros = torch.zeros_like(theta0[: fed.num_params])
        return ScaffoldState(shared=theta0, control=zeros, controls=zeros.repeat(fed.num_clients, 1))

    def local_training(self, fed: Federation, state: ScaffoldState, clients: Tensor, t: int) -> LocalTraining:
        correction = state.control - take(state.controls, clients)  # [S, d]
        return LocalTraining(gradient=lambda g, theta_k, s: g + correction[s])

    def after_training(
        self, fed: Federation, state: ScaffoldState, new: ScaffoldState, clients: Tensor, out: Trained, t: int
    ) -> ScaffoldState:
        before = take(state.controls, clients)  # [S, d] c_k
        drift = state.shared - out.theta  # [S, e] θ − θ_k
        steps = effective_steps(out.steps.to(drift), fed.train.momentum)
        length = steps[:, None] * fed.lr(t)  # [S, 1] K_k η
        after = before - state.control + drift[:, : fed.num_params] / length  # [S, d] c_k⁺
        after = torch.where(length > 0, after, before)  # unchanged without a local step
        return replace(new, controls=put(new.controls, clients, after))

    def round(self, fed: Federation, state: ScaffoldState, clients: Tensor, t: int) -> tuple[ScaffoldState, dict]:
        new, notes = super().round(fed, state, clients, t)
        change = take(new.controls, clients) - take(state.controls, clients)  # [S, d] c_k⁺ − c_k
        control = state.control + change.sum(0) / fed.num_clients
        return replace(new, control=control), notes | {"upload": torch.full((len(clients),), 2 * fed.num_params)}

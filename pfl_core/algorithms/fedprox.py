r"""FedProx: FedAvg with a proximal term that keeps local training close to the shared model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020. A baseline of FedPeWS.

    θ_k ← θ_k − η (∇f_k(θ_k) + μ (θ_k − θ))        θ ← θ + lr_server (mean_k θ_k − θ)

Differs from the paper: a fixed number of local steps replaces its inexact solver.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pfl_core.algorithm import register
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.momentum import MovingState
from pfl_core.federation import Federation, LocalTraining
from pfl_core.options import NonNegativeFloat


@register("fedprox", papers=("fedpews",), shares="everything; one model for all", variants={"strong": {"mu": 0.5}})
@dataclass(frozen=True)
class FedProx(FedAvg[MovingState]):
    """FedAvg with a proximal term; mu = 0 is bitwise equal to FedAvg."""

    mu: NonNegativeFloat = 0.01  # μ, weight of the proximal term

    def local_training(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> LocalTraining:
        anchor = state.shared[: fed.num_params]
        proximal = (lambda g, theta_k, s: g.add(theta_k - anchor, alpha=self.mu)) if self.mu else None
        return LocalTraining(gradient=proximal)  # ∇f_k + μ (θ_k − θ)

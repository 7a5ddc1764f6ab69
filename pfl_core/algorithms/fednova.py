r"""FedNova: each client's update is divided by its number of local steps before the updates are averaged.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020.
A baseline of FedPeWS.

    d_k = (θ − θ_k) / K_k        K_eff = Σ_k w_k K_k        θ ← θ − lr_server K_eff Σ_k w_k d_k

K_k is the number of local steps; with momentum ρ it is [K − ρ (1 − ρ^K) / (1 − ρ)] / (1 − ρ). If all clients make
equally many steps, FedNova is FedAvg. Not in the paper: batch-norm statistics are averaged with the weights
w_k / K_k, and with ``keep_momentum`` K_k still counts from zero velocity.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pfl_core.algorithm import register
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.momentum import MovingState, effective_steps
from pfl_core.federation import Federation
from pfl_core.ops import normalised, server_step


@register("fednova", papers=("fedpews",), shares="everything; one model for all")
@dataclass(frozen=True)
class FedNova(FedAvg[MovingState]):
    """FedAvg with normalised updates."""

    def round(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> tuple[MovingState, dict]:
        steps = torch.tensor([float(fed.num_steps(k)) for k in clients.tolist()]).to(fed.theta0)
        length = effective_steps(steps, fed.train.momentum)  # [S] K_k
        weight = normalised(self.weight(fed, clients))
        per_step = torch.where(length > 0, weight / length, 0.0)  # [S] w_k / K_k; 0 for a client without a step
        any_step = bool(per_step.any())
        new, notes, mean = self.trained_mean(fed, state, clients, t, per_step if any_step else weight)
        # The mean has the weights (w_k / K_k) / Σ_k w_k / K_k; times that sum and K_eff it is Σ_k w_k d_k K_eff.
        scale = float((weight * length).sum() * per_step.sum())
        params = server_step(state.shared, mean, self.lr_server * scale)
        statistics = server_step(state.shared, mean, self.lr_server)
        d = fed.num_params
        return replace(new, shared=torch.cat([params[:d], statistics[d:]])), notes

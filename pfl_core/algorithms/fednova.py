r"""FedNova: clients count by the direction in which they went, not by how many steps they made.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS 2020.
A baseline of FedPeWS.

    d_k = (θ − θ_k) / K_k        K_eff = Σ_k w_k K_k        θ ← θ − lr_server K_eff Σ_k w_k d_k

K_k is the number of local steps; with momentum ρ it is [K − ρ (1 − ρ^K) / (1 − ρ)] / (1 − ρ). With equal steps it is
FedAvg. Ours: batch-norm statistics are no direction; they are averaged with the weights w_k / K_k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pfl_core.algorithm import State, register
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.momentum import effective_steps
from pfl_core.federation import Federation
from pfl_core.ops import normalised, server_step


@register("fednova", papers=("fedpews",), shares="everything; one model for all")
@dataclass(frozen=True)
class FedNova(FedAvg):
    """FedAvg with normalised updates."""

    def round(self, fed: Federation, state: State, clients: Tensor, t: int) -> tuple[State, dict]:
        steps = torch.tensor([float(fed.num_steps(k)) for k in clients.tolist()]).to(fed.theta0)
        length = effective_steps(steps, fed.train.momentum)
        weight = normalised(self.weight(fed, clients))
        per_step = torch.where(length > 0, weight / length, 0.0)  # w_k / K_k; who made no step has no direction
        moved = bool(per_step.any())
        new, notes, mean = self.trained_mean(fed, state, clients, t, per_step if moved else weight)
        far = server_step(state.shared, mean, self.lr_server * float((weight * length).sum() * per_step.sum()))
        near = server_step(state.shared, mean, self.lr_server)
        d = fed.num_params
        return replace(new, shared=torch.cat([far[:d], near[d:]])), notes

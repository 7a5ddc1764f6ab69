r"""Ditto: FedAvg, plus a personal model for each client that is regularized towards the shared model.

Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, Algorithm 1.

    v_k ← v_k − η (∇f_k(v_k) + λ (v_k − θ))        for the personal epochs; θ as received
    θ_k ← SGD(θ; D_k)        θ ← θ + lr_server (mean_k θ_k − θ)

Clients are scored with v_k. A baseline of FedSelect and pFedGate.

Differs from the paper: v_k is trained before θ_k, which changes no result, since both start from the round's initial
values. Not in the paper: both see the same batches in the same order, so that with λ = 0 they are exactly the models of
FedAvg (θ) and of Local (v_k); v_k is trained for as many epochs as θ_k; batch-norm statistics of v_k stay with it,
those of θ are averaged; a client that never took part trains its v_k from θ before it is scored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pfl_core.algorithm import register
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.momentum import MovingState
from pfl_core.federation import Federation, LocalTraining, Trained
from pfl_core.ops import put, server_step, take
from pfl_core.options import NonNegativeFloat, PositiveInt


@register(
    "ditto",
    papers=("fedselect", "pfedgate"),
    shares="one model for all; each client is scored with a personal model that is pulled towards it",
    variants={f"lam_{lam:g}": {"lam": lam} for lam in (0.01, 0.05, 0.5, 0.8, 1.0, 2.0)},
    passes=2.0,
)
@dataclass(frozen=True)
class Ditto(FedAvg[MovingState]):
    """``shared`` [e] is θ, ``local`` N rows [e] are the v_k. Of FedAvg it has the server's step and weights only."""

    lam: NonNegativeFloat = 0.1  # λ, weight of the distance to θ
    personal_epochs: PositiveInt | None = None  # of v_k; None: as many as for θ_k

    def warnings(self, fed: Federation) -> list[str]:
        return [] if self.lam else ["Ditto: lam=0, so every client trains its model alone, as with Local"]

    def init(self, fed: Federation, theta0: Tensor) -> MovingState:
        return MovingState(shared=theta0, local=(theta0,) * fed.num_clients)

    def train_personal(
        self,
        fed: Federation,
        v: Tensor,
        shared: Tensor,
        clients: Tensor,
        key: int | tuple[int | str, ...],
        velocity: Tensor | None = None,
    ) -> Trained:
        """Train the personal models v [S, e], with the pull towards ``shared`` [e]."""
        anchor = shared[: fed.num_params]
        pull = (lambda g, v_k, s: g.add(v_k - anchor, alpha=self.lam)) if self.lam else None
        training = LocalTraining(epochs=self.personal_epochs, gradient=pull)
        return fed.sgd(v, clients, training, key=key, velocity=velocity)

    def round(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> tuple[MovingState, dict]:
        personal: dict[int, Tensor] = {}  # k -> v_k [e]
        losses = []
        momentum = self.client_momentum(fed, state, 2 * fed.num_params)  # of v_k and of θ_k, side by side

        def local(chunk: Tensor, rows: slice) -> Trained:
            velocity = momentum.take(chunk)
            velocity_v, velocity_theta = (None, None) if velocity is None else velocity.chunk(2, 1)
            v = self.train_personal(fed, take(state.local, chunk), state.shared, chunk, t, velocity_v)
            personal.update(zip(chunk.tolist(), (row.clone() for row in v.theta), strict=True))
            losses.append(v.loss)
            out = fed.sgd(fed.broadcast(state.shared, chunk), chunk, key=t, velocity=velocity_theta)
            momentum.put(chunk, v.velocity, out.velocity)
            return out

        # Averages the θ_k, but scores the v_k.
        mean, notes = fed.average(
            local, clients, self.weight(fed, clients), predict=lambda k, theta_k, x: fed.logits(personal[k], x)
        )
        shared = server_step(state.shared, mean, self.lr_server)
        personal_epochs = fed.train.epochs if self.personal_epochs is None else self.personal_epochs
        local_models = put(state.local, clients, list(personal.values()))
        return momentum.into(MovingState(shared=shared, local=local_models)), notes | {
            "train_loss": torch.cat(losses),  # cross-entropy of v_k, without the λ term
            "upload": torch.full((len(clients),), fed.num_params),
            "passes": fed.train.epochs + personal_epochs,
        }

    def evaluation_models(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> Tensor:
        return take(state.local, clients)

    def adapt(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> MovingState:
        for rows in fed.chunks(clients):
            chunk = clients[rows]
            out = self.train_personal(fed, fed.broadcast(state.shared, chunk), state.shared, chunk, (t, "adapt"))
            state = replace(state, local=put(state.local, chunk, [row.clone() for row in out.theta]))
        return state

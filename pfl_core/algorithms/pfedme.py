r"""pFedMe: each client fits a personal model to every batch, held close to its local model by a proximal term.

Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, Algorithm 1. A baseline of
pFedGate, whose μ is λ here.

    v_k = w_k = θ                                                       at the start of a round
    on each batch   v_k ← v_k − η_v (∇f_k(v_k) + λ (v_k − w_k))         K times; v_k carries over to the next batch
                    w_k ← w_k + η λ (v_k − w_k)
    server          θ ← (1 − β) θ + β Σ_k n_k w_k / Σ_k n_k

Clients are scored with v_k. ``algorithm="fedem_code"`` is the version of the released code. It has no inner loop and
no w_k: v_k persists over rounds and is uploaded, v_k ← v_k − η (∇f_k(v_k) + λ (v_k − θ)), where θ is the mean of the
uploads. The server's model never overwrites v_k.

Differs from the paper: K steps replace its solver of a given accuracy. All participants count in the mean, weighted by
n_k (in the paper: a sample of them, equally). Steps have no momentum and no clipping, as in the released proximal
optimizer. The inner gradient includes weight decay (PFLlib: 0.001 more, ``personal_decay``).

Not in the paper: η_v is the federation's rate by default (PFLlib: 0.01). Only v_k makes forward passes, so w_k is sent
with the batch-norm statistics of v_k. A client that never took part trains its v_k for a round before it is scored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pfl_core.algorithm import register
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.momentum import MovingState
from pfl_core.federation import Batch, Federation, Trained
from pfl_core.ops import put, server_step, take
from pfl_core.options import NonNegativeFloat, PositiveInt
from pfl_core.seeding import Key


@register(
    "pfedme",
    papers=("pfedgate",),
    shares="one model for all; each client is scored with a personal model close to it",
    variants={f"lam_{lam:g}": {"lam": lam} for lam in (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)}
    | {"fedem_code": {"algorithm": "fedem_code"}, "pfllib": {"lr_personal": 0.01, "personal_decay": 0.001}},
    passes=5.0,
)
@dataclass(frozen=True)
class PFedMe(FedAvg[MovingState]):
    """``shared`` [e] is θ, ``local`` N rows [e] are the v_k; ``lr_server`` is β."""

    client_weighting: Literal["uniform", "samples"] = "samples"
    lam: NonNegativeFloat = 1.0  # λ, weight of the proximal term; pFedGate searched 0.0001 to 10
    inner_steps: PositiveInt = 5  # K
    lr_personal: NonNegativeFloat | None = None  # η_v; None: the federation's rate
    personal_decay: NonNegativeFloat = 0.0  # added to the federation's weight decay in the inner gradient
    algorithm: Literal["paper", "fedem_code"] = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_momentum:
            raise ValueError("pFedMe: its steps have no momentum to keep; leave keep_momentum out")

    def warnings(self, fed: Federation) -> list[str]:
        return [] if self.lam else ["pFedMe: lam=0, so the shared model does not change"]

    def init(self, fed: Federation, theta0: Tensor) -> MovingState:
        return MovingState(shared=theta0, local=(theta0,) * fed.num_clients)

    def round(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> tuple[MovingState, dict]:
        personal: dict[int, Tensor] = {}  # k -> v_k [e]

        def local(chunk: Tensor, rows: slice) -> Trained:
            start = fed.broadcast(state.shared, chunk) if self.algorithm == "paper" else take(state.local, chunk)
            upload, v = self.train(fed, start, state.shared, chunk, t, t)
            personal.update(zip(chunk.tolist(), (row.clone() for row in v), strict=True))
            return upload

        mean, notes = fed.average(
            local, clients, self.weight(fed, clients), predict=lambda k, theta_k, x: fed.logits(personal[k], x)
        )
        shared = server_step(state.shared, mean, self.lr_server)
        return MovingState(shared=shared, local=put(state.local, clients, list(personal.values()))), notes | {
            "upload": torch.full((len(clients),), fed.num_params),
            "passes": fed.train.epochs * self.steps,
        }

    @property
    def steps(self) -> int:
        """Inner steps on each batch."""
        return self.inner_steps if self.algorithm == "paper" else 1

    def train(
        self, fed: Federation, v: Tensor, shared: Tensor, clients: Tensor, t: int, key: Key | tuple[Key, ...]
    ) -> tuple[Trained, Tensor]:
        """A round's local training from v [S, e]: the upload (w_k; v_k with "fedem_code"), and v_k [S, e]."""
        paper, d = self.algorithm == "paper", fed.num_params
        v, w = v.clone(memory_format=torch.contiguous_format), shared[:d].repeat(len(clients), 1)
        loss, steps = torch.full((len(clients),), torch.nan), torch.zeros(len(clients), dtype=torch.int64)

        def train_group(rows: slice | Tensor) -> None:
            v_rows, w_rows = v[rows], w[rows]
            loss_sum, seen = torch.zeros(2, len(v_rows)).to(v)
            for batch in fed.batches(clients[rows], key):
                num = len(batch.count)  # the first rows have a batch left
                for _ in range(self.steps):
                    loss_sum[:num].addcmul_(self.step(fed, v_rows[:num], w_rows[:num], batch, t), batch.weight)
                    seen[:num] += batch.weight
                if paper:
                    w_rows[:num].lerp_(v_rows[:num, :d], fed.lr(t) * self.lam)  # w + η λ (v − w)
            v[rows], w[rows], loss[rows] = v_rows, w_rows, (loss_sum / seen).to(loss)
            steps[rows] = torch.tensor([fed.num_steps(k) for k in clients[rows].tolist()])

        fed.each_group(train_group, clients)
        return Trained(torch.cat([w, v[:, d:]], 1) if paper else v, loss, steps), v

    def step(self, fed: Federation, v: Tensor, w: Tensor, batch: Batch, t: int) -> Tensor:
        """One inner step on v [R, e], in place; w [R, d]. Returns the batch's losses [R] before the step."""
        d = fed.num_params
        gradient = fed.grad(v, batch)
        g = gradient.theta.add_(v[:, :d] - w, alpha=self.lam)
        if decay := fed.train.weight_decay + self.personal_decay:
            g.add_(v[:, :d], alpha=decay)
        v[:, :d].add_(g, alpha=-fed.lr(t, self.lr_personal))
        if fed.layout.num_statistics:
            v[:, d:] = gradient.statistics
        return gradient.loss

    def evaluation_models(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> Tensor:
        return take(state.local, clients)

    def adapt(self, fed: Federation, state: MovingState, clients: Tensor, t: int) -> MovingState:
        for rows in fed.chunks(clients):
            chunk = clients[rows]
            _, v = self.train(fed, fed.broadcast(state.shared, chunk), state.shared, chunk, t, (t, "adapt"))
            state = replace(state, local=put(state.local, chunk, [row.clone() for row in v]))
        return state

r"""pFedMe: a shared model whose clients answer each batch with a personal one, held close to theirs by an envelope.

Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, Algorithm 1. pFedGate,
section 8 of its specification (its μ is λ here).

    v_k = w_k = θ                                                       at the start of a round
    on each batch   v_k ← v_k − η_v (∇f_k(v_k) + λ (v_k − w_k))         K times, v_k carried on from batch to batch
                    w_k ← w_k + η λ (v_k − w_k)
    server          θ ← (1 − β) θ + β Σ_k n_k w_k / Σ_k n_k

Clients are scored with v_k. ``algorithm="fedem_code"``, the released code: no inner loop; v_k persists and goes up
itself, v_k ← v_k − η (∇f_k(v_k) + λ (v_k − θ)), θ the mean of them as received, and is never overwritten.

Differs from the paper: K steps stand for its solver of a given accuracy; all clients of a round count in the mean, by
n_k (there: a sample of those that trained, evenly). Steps are plain, without momentum and clipping, as those of the
released proximal optimizer; weight decay joins the inner gradient (PFLlib: 0.001 more). Ours: η_v is the federation's
rate unless given (PFLlib: 0.01); w_k has no pass of its own, so its batch-norm statistics are those of v_k; a client
that never took part trains its v_k for a round before it is scored. The specification prints the step of w_k with the
opposite sign, which would drive the two apart; here it is the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pfl_core.algorithm import State, register
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.federation import Batch, Federation, Trained
from pfl_core.ops import put, server_step, take
from pfl_core.options import NonNegativeFloat
from pfl_core.seeding import Key


@register(
    "pfedme",
    papers=("pfedgate",),
    shares="one model for all; each client is scored with a personal one near to it",
    variants={f"lam_{lam:g}": {"lam": lam} for lam in (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)}
    | {"fedem_code": {"algorithm": "fedem_code"}, "pfllib": {"lr_personal": 0.01, "personal_decay": 0.001}},
    passes=5.0,
)
@dataclass(frozen=True)
class PFedMe(FedAvg):
    """``shared`` [e] is θ, ``local`` N rows [e] are the v_k; ``lr_server`` is β."""

    client_weighting: Literal["uniform", "samples"] = "samples"
    lam: NonNegativeFloat = 1.0  # λ; pFedGate searched 0.0001 to 10
    inner_steps: int = 5  # K
    lr_personal: NonNegativeFloat | None = None  # η_v; None: the federation's rate
    personal_decay: float = 0.0  # added to the federation's weight decay in the inner gradient
    algorithm: Literal["paper", "fedem_code"] = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_momentum:
            raise ValueError("pFedMe: its steps have no momentum that could stay; leave keep_momentum out")
        for name, low in (("lam", 0.0), ("inner_steps", 1), ("personal_decay", 0.0)):
            if not getattr(self, name) >= low:
                raise ValueError(f"pFedMe: {name}={getattr(self, name)} is too small, give at least {low:g}")
        if self.lr_personal is not None and not self.lr_personal >= 0:
            raise ValueError(f"pFedMe: lr_personal={self.lr_personal} is below 0; leave it out for the common rate")

    def init(self, fed: Federation, theta0: Tensor) -> State:
        return State(shared=theta0, local=(theta0,) * fed.num_clients)

    def round(self, fed: Federation, state: State, clients: Tensor, t: int) -> tuple[State, dict]:
        own = {}

        def local(chunk: Tensor, rows: slice) -> Trained:
            sent, v = self.train(fed, self.start(fed, state, chunk), state.shared, chunk, t)
            own.update(zip(chunk.tolist(), (row.clone() for row in v), strict=True))
            return sent

        mean, notes = fed.average(
            local, clients, self.weight(fed, clients), predict=lambda k, theta_k, x: fed.logits(own[k], x)
        )
        shared = server_step(state.shared, mean, self.lr_server)
        return State(shared=shared, local=put(state.local, clients, list(own.values()))), notes | {
            "upload": torch.full((len(clients),), fed.num_params),
            "passes": fed.train.epochs * self.steps,
        }

    @property
    def steps(self) -> int:
        """Inner steps on a batch."""
        return self.inner_steps if self.algorithm == "paper" else 1

    def start(self, fed: Federation, state: State, clients: Tensor) -> Tensor:
        """[S, e]: v_k at the start of a round."""
        if self.algorithm == "paper":
            return fed.broadcast(state.shared, clients)
        return take(state.local, clients)

    def train(
        self, fed: Federation, v: Tensor, shared: Tensor, clients: Tensor, key: Key | tuple[Key, ...]
    ) -> tuple[Trained, Tensor]:
        """A round's local work from v [S, e]: what goes up (w_k; v_k in the released code), and v_k [S, e]."""
        t = key[0] if isinstance(key, tuple) else key
        paper, d = self.algorithm == "paper", fed.num_params
        v, w = v.clone(memory_format=torch.contiguous_format), shared[:d].repeat(len(clients), 1)
        loss, steps = torch.full((len(clients),), torch.nan), torch.zeros(len(clients), dtype=torch.int64)
        for rows in fed.groups(clients):
            mine, near = v[rows], w[rows]
            total, seen = torch.zeros(2, len(mine)).to(v)
            for batch in fed.batches(clients[rows], key):
                num = len(batch.count)
                for _ in range(self.steps):
                    total[:num].addcmul_(self.step(fed, mine[:num], near[:num], batch, t), batch.weight)
                    seen[:num] += batch.weight
                if paper:
                    near[:num].lerp_(mine[:num, :d], fed.lr(t) * self.lam)
            v[rows], w[rows], loss[rows] = mine, near, (total / seen).to(loss)
            steps[rows] = torch.tensor([fed.num_steps(k) for k in clients[rows].tolist()])
        return Trained(torch.cat([w, v[:, d:]], 1) if paper else v, loss, steps), v

    def step(self, fed: Federation, v: Tensor, w: Tensor, batch: Batch, t: int) -> Tensor:
        """One inner step of v [R, e] towards what the batch and w [R, d] want; returns the losses [R] before it."""
        d = fed.num_params
        found = fed.grad(v, batch)
        g = found.theta.add_(v[:, :d] - w, alpha=self.lam)
        if decay := fed.train.weight_decay + self.personal_decay:
            g.add_(v[:, :d], alpha=decay)
        v[:, :d].add_(g, alpha=-fed.lr(t, self.lr_personal))
        if fed.layout.num_statistics:
            v[:, d:] = found.statistics
        return found.loss

    def evaluation_models(self, fed: Federation, state: State, clients: Tensor, t: int) -> Tensor:
        return take(state.local, clients)

    def adapt(self, fed: Federation, state: State, clients: Tensor, t: int) -> State:
        for rows in fed.chunks(clients):
            chunk = clients[rows]
            _, v = self.train(fed, fed.broadcast(state.shared, chunk), state.shared, chunk, (t, "adapt"))
            state = replace(state, local=put(state.local, chunk, [row.clone() for row in v]))
        return state

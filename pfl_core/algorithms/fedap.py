r"""FedAP: each client gets its own weighted average of all models; clients with similar norm-layer inputs weigh more.

Chen, Lu et al., "Federated Learning with Adaptive Batchnorm for Personalized Healthcare", arXiv 2112.00734. A baseline
of Star-PFL. μ_kl, v_kl: mean and variance, per channel, of the inputs of norm layer l of a pretrained model on client
k's training data. The matrix W is computed once, before the first round:

    d_ij = Σ_l √(|μ_il − μ_jl|² + |√v_il − √v_jl|²)        a_ij = (1 / d_ij) / Σ_{k ≠ i} (1 / d_ik)
    W_ii = λ,   W_ij = (1 − λ) a_ij

    client    θ_k⁺ = SGD(θ_k)
    server    θ_i = Σ_j W_ij θ_j⁺        except norm layers with their statistics, which stay θ_k⁺

Differs from the paper's code: the model is pretrained on 30 % of the clients' training data. The code uses 30 % of all
data, test images included. ``pretrain="fedbn"`` pretrains by some rounds of FedBN instead; each client then measures
with its own model. The pretrained model only serves to compute W; federated training starts from the initial model.

Not in the paper: variances are population variances; 1 / d = 1e14 where d = 0; with partial participation each
participant averages over the participants, with its row of W rescaled to them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pfl_core.algorithm import ABSENT, Algorithm, State, register
from pfl_core.algorithms.fedbn import FedBN
from pfl_core.federation import Federation, LocalTraining
from pfl_core.layout import NORM, WEIGHT
from pfl_core.ops import count_true, mix, put, round_half_up, select, take
from pfl_core.options import NonNegativeInt, Share
from pfl_core.seeding import permutation

ZERO_DISTANCE = 1e14  # 1 / d of two clients with d = 0


@dataclass(frozen=True)
class APState(State):
    """``local`` [N, e]: the clients' models."""

    matrix: Tensor = ABSENT  # [N, N] float64 W


@register(
    "fedap",
    papers=("star_pfl",),
    shares="all but batch norm; each client gets its own weighted average of the clients' models",
    variants={"after_fedbn": {"pretrain": "fedbn"}, "lam_0.3": {"lam": 0.3}},
    ci={"pretrain_epochs": 2},
)
@dataclass(frozen=True)
class FedAP(Algorithm[APState]):
    """The mixing matrix W is computed before round 0."""

    lam: Share = 0.5  # λ, weight of a client's own model; default of the paper's code, whose example has 0.3
    pretrain: Literal["pooled", "fedbn"] = "pooled"
    pretrain_share: Share = 0.3  # of each client's training data, for "pooled"
    pretrain_epochs: NonNegativeInt = 150  # for "pooled"
    pretrain_rounds: NonNegativeInt = 5  # for "fedbn"; not in the paper

    @property
    def inner_algorithms(self) -> tuple[Algorithm, ...]:
        return (FedBN(),) if self.pretrain == "fedbn" else ()

    def warnings(self, fed: Federation) -> list[str]:
        return ["FedAP: lam=1, so every client trains its model alone, as with Local"] if self.lam == 1 else []

    def init(self, fed: Federation, theta0: Tensor) -> APState:
        distance = torch.zeros(fed.num_clients, fed.num_clients, dtype=torch.float64)
        if any(f.kind == NORM for f in fed.layout.params):
            distance = distances(norm_inputs(fed, self.pretrained(fed, theta0)))
        return APState(local=theta0.repeat(fed.num_clients, 1), matrix=mixing(distance, self.lam))

    def pretrained(self, fed: Federation, theta0: Tensor) -> Tensor:
        """[N, e] the pretrained model with which each client measures its data."""
        clients = torch.arange(fed.num_clients)
        if self.pretrain == "fedbn":
            method = FedBN()
            state = method.init(fed, theta0)
            for t in range(self.pretrain_rounds):
                state, _ = method.round(fed, state, clients, t)
            return method.evaluation_models(fed, state, clients, self.pretrain_rounds)
        x, y = zip(*(stratified_sample(fed, k, self.pretrain_share) for k in clients.tolist()), strict=True)
        pooled = torch.cat(x), torch.cat(y)
        training = LocalTraining(epochs=self.pretrain_epochs)
        out = fed.sgd(theta0[None], clients[:1], training, key=(0, "pretrain"), data=[pooled])
        return fed.broadcast(out.theta[0], clients)

    def round(self, fed: Federation, state: APState, clients: Tensor, t: int) -> tuple[APState, dict]:
        out = fed.sgd(take(state.local, clients), clients, key=t)
        weight = state.matrix[clients][:, clients]  # [S, S] W of the participants
        shared = fed.layout.mask(lambda f: f.kind == WEIGHT).to(out.theta.device)
        mixed = mix(weight / weight.sum(1, keepdim=True), out.theta)
        theta = select(~shared, out.theta, mixed)
        notes = {"trained": out.theta, "train_loss": out.loss, "passes": fed.train.epochs}
        upload = torch.full((len(clients),), count_true(shared))
        return replace(state, local=put(state.local, clients, theta)), notes | {"upload": upload}

    def evaluation_models(self, fed: Federation, state: APState, clients: Tensor, t: int) -> Tensor:
        return take(state.local, clients)


def stratified_sample(fed: Federation, k: int, share: float) -> tuple[Tensor, Tensor]:
    """A random share of each class of client k's training data, (x, y); at least one sample of each of its classes."""
    x, y = fed.splits["train"].client(k)
    order = permutation(len(y), fed.seed, "pretrain", k).to(y.device)
    chosen = []
    for label in y.unique():
        members = order[y[order] == label]
        chosen.append(members[: max(1, round_half_up(share * len(members)))])
    index = torch.cat(chosen)
    return x[index], y[index]


def norm_inputs(fed: Federation, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(mean, standard deviation), each [N, channels] float64, of the inputs of the norm layers in use; theta [N, e]."""
    out = []
    for layer in dict.fromkeys(f.layer for f in fed.layout.params if f.kind == NORM and f.layer in fed.traced.inputs):
        means, deviations = [], []
        for k, row in enumerate(theta):  # one client's activations at a time
            (inputs,) = fed.forward(row[None], torch.tensor([k]), "train", layer=f"{layer}:input")
            values = inputs.double().transpose(0, 1).flatten(1)  # [channels, samples and pixels]
            means.append(values.mean(1))
            deviations.append(values.std(1, correction=0))
        out.append((torch.stack(means).cpu(), torch.stack(deviations).cpu()))
    return out


def distances(norm_statistics: list[tuple[Tensor, Tensor]]) -> Tensor:
    """[N, N] d_ij from the (means, standard deviations), each [N, channels], of all norm layers."""
    layers = map(torch.hstack, norm_statistics)  # [N, 2 channels] each
    per_layer = (torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist") for x in layers)
    return sum(per_layer, start=torch.zeros((), dtype=torch.float64))


def mixing(distance: Tensor, lam: float) -> Tensor:
    """[N, N] W, whose rows sum to 1; W = 1 if there is only one client."""
    if len(distance) == 1:
        return torch.ones_like(distance)
    near = torch.where(distance == 0, ZERO_DISTANCE, 1 / distance).fill_diagonal_(0)
    return ((1 - lam) * near / near.sum(1, keepdim=True)).fill_diagonal_(lam)

r"""FedAP: every client its own average of all models, by how much alike the inputs of their norm layers are.

Chen, Lu et al., "Federated Learning with Adaptive Batchnorm for Personalized Healthcare", arXiv 2112.00734. Star-PFL,
section 7 of its specification. μ_kl, v_kl: mean and variance, channel by channel, of what client k's training data put
into norm layer l of a pretrained model; once, before the first round:

    d_ij = Σ_l √(|μ_il − μ_jl|² + |√v_il − √v_jl|²)        a_ij = (1 / d_ij) / Σ_{k ≠ i} (1 / d_ik)
    W_ii = λ,   W_ij = (1 − λ) a_ij

    client    θ_k⁺ = SGD(θ_k)
    server    θ_i = Σ_j W_ij θ_j⁺        but norm layers, their statistics included, stay: θ_k⁺

Differs from the paper's code: the model is pretrained on 30 % of the clients' training data, not of all data, test
images included (``pretrain="fedbn"``: by some rounds of FedBN, each client measuring with its own model). It only
serves the matrix; federated training starts from the common model. Ours: variances are the population's; d = 0 counts
as 1 / d = 1e14; of those who take part in a round each averages over the others with its W rescaled to them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pfl_core.algorithm import ABSENT, Algorithm, State, check_choices, register
from pfl_core.algorithms.fedbn import FedBN
from pfl_core.algorithms.partial import at_least
from pfl_core.federation import Federation, LocalTraining
from pfl_core.layout import NORM, WEIGHT
from pfl_core.ops import count_true, mix, put, round_half_up, select, take
from pfl_core.options import NonNegativeFloat, NonNegativeInt
from pfl_core.seeding import generator

NEAREST = 1e14  # 1 / d of two clients that do not differ


@dataclass(frozen=True)
class APState(State):
    """``local`` [N, e] are the clients' models."""

    matrix: Tensor = ABSENT  # [N, N] float64 W


@register(
    "fedap",
    papers=("star_pfl",),
    shares="all but batch norm, in each client's own mixture of all clients' models",
    variants={"after_fedbn": {"pretrain": "fedbn"}, "lam_0.3": {"lam": 0.3}},
    ci={"pretrain_epochs": 2},
)
@dataclass(frozen=True)
class FedAP(Algorithm):
    """The mixing matrix is computed before round 0."""

    lam: NonNegativeFloat = 0.5  # λ, weight of a client's own model; the code's default, 0.3 in its example
    pretrain: Literal["pooled", "fedbn"] = "pooled"
    pretrain_share: float = 0.3  # of each client's training data, for "pooled"
    pretrain_epochs: NonNegativeInt = 150  # for "pooled"
    pretrain_rounds: int = 5  # for "fedbn" (ours)

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("lam", "pretrain_share"):
            if not 0 < (given := getattr(self, name)) <= 1:
                raise ValueError(f"FedAP: {name}={given} is outside (0, 1]; for {given} percent give {given / 100:g}")
        at_least(self, pretrain_epochs=0, pretrain_rounds=0)

    @property
    def inner_algorithms(self) -> tuple[Algorithm, ...]:
        return (FedBN(),) if self.pretrain == "fedbn" else ()

    def init(self, fed: Federation, theta0: Tensor) -> APState:
        distance = torch.zeros(fed.num_clients, fed.num_clients, dtype=torch.float64)
        if any(f.kind == NORM for f in fed.layout.params):
            distance = distances(norm_inputs(fed, self.pretrained(fed, theta0)))
        return APState(local=theta0.repeat(fed.num_clients, 1), matrix=mixing(distance, self.lam))

    def pretrained(self, fed: Federation, theta0: Tensor) -> Tensor:
        """[N, e] what the clients measure their data with."""
        clients = torch.arange(fed.num_clients)
        if self.pretrain == "fedbn":
            method = FedBN()
            state = method.init(fed, theta0)
            for t in range(self.pretrain_rounds):
                state, _ = method.round(fed, state, clients, t)
            return method.evaluation_models(fed, state, clients, self.pretrain_rounds)
        parts = [drawn(fed, k, self.pretrain_share) for k in clients.tolist()]
        pool = tuple(torch.cat(each) for each in zip(*parts, strict=True))
        training = LocalTraining(epochs=self.pretrain_epochs)
        out = fed.sgd(theta0[None], clients[:1], training, key=(0, "pretrain"), data=[pool])
        return fed.broadcast(out.theta[0], clients)

    def round(self, fed: Federation, state: APState, clients: Tensor, t: int) -> tuple[APState, dict]:
        out = fed.sgd(take(state.local, clients), clients, key=t)
        weight = state.matrix[clients][:, clients]
        shared = fed.layout.mask(lambda f: f.kind == WEIGHT).to(out.theta.device)
        mixed = mix(weight / weight.sum(1, keepdim=True), out.theta)
        theta = select(~shared, out.theta, mixed)
        notes = {"trained": out.theta, "train_loss": out.loss, "passes": fed.train.epochs}
        upload = torch.full((len(clients),), count_true(shared))
        return replace(state, local=put(state.local, clients, theta)), notes | {"upload": upload}

    def evaluation_models(self, fed: Federation, state: APState, clients: Tensor, t: int) -> Tensor:
        return take(state.local, clients)


def drawn(fed: Federation, k: int, share: float) -> tuple[Tensor, Tensor]:
    """A random share of each class of client k's training data, (x, y); at least one sample of a class that it has."""
    x, y = fed.splits["train"].client(k)
    order = torch.randperm(len(y), generator=generator(fed.seed, "pretrain", k)).to(y.device)
    chosen = []
    for label in y.unique():
        of = order[y[order] == label]
        chosen.append(of[: max(1, round_half_up(share * len(of)))])
    index = torch.cat(chosen)
    return x[index], y[index]


def norm_inputs(fed: Federation, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(mean, standard deviation), each [N, channels] float64, of the inputs of every norm layer; theta [N, e]."""
    out = []
    for layer in dict.fromkeys(f.layer for f in fed.layout.params if f.kind == NORM):
        means, spreads = [], []
        for k, row in enumerate(theta):  # one client's activations at a time
            (inputs,) = fed.forward(row[None], torch.tensor([k]), "train", layer=f"{layer}:input")
            values = inputs.double().transpose(0, 1).flatten(1)
            means.append(values.mean(1))
            spreads.append(values.std(1, correction=0))
        out.append((torch.stack(means).cpu(), torch.stack(spreads).cpu()))
    return out


def distances(told: list[tuple[Tensor, Tensor]]) -> Tensor:
    """[N, N] d_ij of the clients' (means, standard deviations), layer by layer."""
    return sum(torch.cdist(both, both, compute_mode="donot_use_mm_for_euclid_dist") for both in map(torch.hstack, told))


def mixing(distance: Tensor, lam: float) -> Tensor:
    """[N, N] W, whose rows sum to 1; a client alone has W = 1."""
    if len(distance) == 1:
        return torch.ones_like(distance)
    near = torch.where(distance == 0, NEAREST, 1 / distance).fill_diagonal_(0)
    return ((1 - lam) * near / near.sum(1, keepdim=True)).fill_diagonal_(lam)

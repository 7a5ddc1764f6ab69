r"""FedPAC: a shared body aligned to global class prototypes, and for each client a personalized mixture of all heads.

Xu, Tong and Huang, "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", ICLR 2023.
A baseline of FedSelect. z = body(x); client k has n samples; π_c and μ_c are the share and the mean feature of class c.

    client    A_c = π_c μ_c,   V = (1/n) Σ_c (π_c mean_c |z|² − π_c² |μ_c|²)                       on the received body
              one epoch on the head, then L epochs on the body:   CE + λ MSE(z, P_y)
    server    body = Σ_k n_k body_k / Σ_k n_k,   P_c = Σ_k n_kc μ_kc / Σ_k n_kc                    μ after training
              head_i = Σ_j w_ij head_j,   w_i = argmin wᵀ (diag(V) + G_i) w   over w ≥ 0, Σ w = 1,
              G_i[j, l] = Σ_c ⟨A_i[c] − A_j[c], A_i[c] − A_l[c]⟩

V_j measures the variance of head j from having few samples, G_i its bias from having other data than client i. Weights
below 0.001 are set to 0 and the others are rescaled. A client whose quadratic program cannot be solved keeps its head.
Features are computed in evaluation mode, without augmentation. For a class that no participant of the last round had,
P is replaced by the client's own mean on the received body. In round 0 there is no P, and the MSE term is left out.

Differs from the paper: nothing by default. Where the paper is silent: only participants exchange heads, absent clients
keep theirs; the head and body passes have FedRep's batches; batch-norm statistics stay with the client, as in FedRep
(``buffer_policy="average"``: averaged with the body); the quadratic program is solved exactly, in float64. PFLlib
weights the clients' prototypes equally (``prototype_weighting="uniform"``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from pfl_core.algorithm import ABSENT, register
from pfl_core.algorithms.fedavg import client_weight
from pfl_core.algorithms.partial import Partial, PartialState, select_entries
from pfl_core.federation import Federation, LocalTraining, Output, Trained
from pfl_core.federation.types import LossHook
from pfl_core.ops import count_true, mix, put, select
from pfl_core.options import NonNegativeFloat

MIN_WEIGHT = 1e-3  # smaller weights of heads are set to 0
RIDGE = 1e-12  # added to the diagonal, relative to its largest entry; prefers equal weights among equally good ones
TOLERANCE = 1e-12  # below minus this a value counts as negative, relative to the sum of weights


@dataclass(frozen=True)
class PacState(PartialState):
    """``own``: the client's mixed head [h], then its batch-norm statistics if they are local."""

    prototypes: Tensor = ABSENT  # [C, f] P of the last round
    known: Tensor = ABSENT  # [C] bool, classes that have a prototype


class ClientMessage(NamedTuple):
    """What clients send in addition to body and head, in float64."""

    A: Tensor  # [S, C, f] share times mean feature of each class, before training
    V: Tensor  # [S] variance term, before training
    means: Tensor  # [S, C, f] mean feature of each class, after training; 0 for absent classes
    counts: Tensor  # [S, C] samples of each class


@register(
    "fedpac",
    papers=("fedselect",),
    shares="the body; each client gets its own mixture of the participants' heads (last linear layers)",
    variants={"pfllib": {"prototype_weighting": "uniform"}},
    passes=1.6,
)
@dataclass(frozen=True)
class FedPAC(Partial[PacState]):
    """Feature alignment and classifier collaboration."""

    client_weighting: Literal["uniform", "samples"] = "samples"  # of the bodies
    lam: NonNegativeFloat = 1.0  # λ, weight of the prototype term
    lr_head: NonNegativeFloat | None = None  # None: the federation's rate; authors' code: 0.1, and 0.01 for the body
    prototype_weighting: Literal["counts", "uniform"] = "counts"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_momentum:
            raise ValueError("FedPAC: momentum starts at zero in every round; leave keep_momentum out")

    def init(self, fed: Federation, theta0: Tensor) -> PacState:
        fed.check_features("FedPAC")
        prototypes = theta0.new_zeros(fed.layout.field(f"{fed.layout.head}.weight").shape)
        known = torch.zeros_like(prototypes[:, 0], dtype=torch.bool)
        start = super().init(fed, theta0)
        return PacState(shared=start.shared, own=start.own, prototypes=prototypes, known=known)

    def round(self, fed: Federation, state: PacState, clients: Tensor, t: int) -> tuple[PacState, dict]:
        mask, slices = self.personal_mask(fed), self.personal_slices(fed.layout)
        personal: list[Tensor] = []  # S rows [p]: each client's trained head, then its local statistics
        messages = []

        def local(chunk: Tensor, rows: slice) -> Trained:
            out, message = self.client(fed, state, chunk, t)
            personal.extend(select_entries(row, slices) for row in out.theta)
            messages.append(message)
            return out

        mean, notes = fed.average(local, clients, client_weight(fed, clients, self.client_weighting))
        message = ClientMessage(*map(torch.cat, zip(*messages, strict=True)))
        h = count_true(mask[: fed.num_params])
        heads = mix(self.head_weights(message.A, message.V), torch.stack([row[:h] for row in personal]))  # [S, h]
        personal = [torch.cat([head, row[h:]]) for head, row in zip(heads, personal, strict=True)]
        P, known = self.prototypes(message.means, message.counts)
        shared, own = select(mask, state.shared, mean), put(state.own, clients, personal)
        new = replace(state, shared=shared, own=own, prototypes=P.to(shared), known=known)
        # Uploaded besides body and head: A and the mean of each class that the client has, all counts, V.
        statistics = 2 * (message.counts > 0).sum(1).cpu() * P.shape[1] + len(P) + 1
        return new, notes | {
            "upload": fed.num_params + statistics,
            "personal_share": h / fed.num_params,
            "passes": fed.train.epochs + 1 + 2 / 3,  # one epoch on the head, two forward passes of a third each
        }

    def client(self, fed: Federation, state: PacState, clients: Tensor, t: int) -> tuple[Trained, ClientMessage]:
        """A round's work of these clients: the trained rows, and what they send besides."""
        start = self.client_models(fed, state, clients)
        means, counts, energy = class_features(fed, start, clients, len(state.known))
        num = counts.sum(1)  # [S] n
        A = counts[:, :, None] / num[:, None, None] * means  # π_c μ_c
        V = (energy - A.square().sum((1, 2))).clamp(min=0) / num  # (mean |z|² − Σ_c π_c² |μ_c|²) / n
        theta = self.train_personal(fed, start, clients, t).theta
        targets = torch.where(state.known[:, None], state.prototypes, means.to(start))  # [S, C, f]
        training = LocalTraining(trainable=~self.personal_mask(fed), loss=self.loss(state, targets))
        out = fed.sgd(theta, clients, training, key=t)
        means, _, _ = class_features(fed, out.theta, clients, len(state.known))
        return out, ClientMessage(A, V, means, counts)

    def personal_training(self) -> LocalTraining:
        """One epoch on the head."""
        return LocalTraining(epochs=1, lr=self.lr_head)

    def loss(self, state: PacState, targets: Tensor) -> LossHook | None:
        """The loss of the body's training; None (cross-entropy alone) before there are prototypes."""
        if self.lam == 0 or not state.known.any():
            return None

        def loss(output: Output) -> Tensor:  # CE + λ MSE(z, P_y)
            distance = mse_loss(output.features, targets[output.row][output.labels])
            return cross_entropy(output.logits, output.labels) + self.lam * distance

        return loss

    def prototypes(self, means: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """P [C, f] and the classes that have one, bool [C]; means [S, C, f], counts [S, C]."""
        weight = counts if self.prototype_weighting == "counts" else (counts > 0).to(means)
        total = weight.sum(0)
        return (weight[:, :, None] * means).sum(0) / total.clamp(min=1)[:, None], total > 0

    def head_weights(self, A: Tensor, V: Tensor) -> Tensor:
        """w [S, S], a row for each client; A [S, C, f], V [S]."""
        return drop_small_weights(simplex_minimum(quadratic(A.cpu(), V.cpu())))


def class_features(fed: Federation, theta: Tensor, clients: Tensor, num_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Statistics of each client's training data: mean z of each class [S, C, f], samples [S, C], mean |z|² [S].

    All in float64.
    """
    means, counts, energies = [], [], []
    for z, k in zip(fed.forward(theta, clients, "train", layer="features"), clients.tolist(), strict=True):
        z, member = z.double(), one_hot(fed.labels(k), num_classes).double()  # [n, f], [n, C]
        count = member.sum(0)
        means.append(member.T @ z / count.clamp(min=1)[:, None])
        counts.append(count)
        energies.append(z.square().sum(1).mean())
    return torch.stack(means), torch.stack(counts), torch.stack(energies)


def quadratic(A: Tensor, V: Tensor) -> Tensor:
    """diag(V) + G_i for every client i, [S, S, S]; A [S, C, f], V [S].

    G_i[j, l] = K_ii − K_ij − K_il + K_jl with the inner products K of all A. The A are centred first: G stays the same,
    with less cancellation.
    """
    flat = (A - A.mean(0)).flatten(1)
    K = flat @ flat.T
    return K.diagonal()[:, None, None] - K[:, :, None] - K[:, None, :] + K + V.diag()


def simplex_minimum(H: Tensor) -> Tensor:
    """argmin wᵀ H w over w ≥ 0, Σ w = 1, for each H [P, n, n] (symmetric, PSD) -> [P, n]; NaN where not converged.

    w = u / Σ u, where u ≥ 0, H u ≥ 1, and for every component u = 0 or H u = 1. Block principal pivoting (Júdice and
    Pires 1994) finds u: solve H u = 1 for the free components, then exchange (free <-> zero) all components with a
    wrong sign. If three exchanges in a row do not reduce the number of wrong signs, exchange only the last wrong
    component until the number falls. All H are solved together.
    """
    eye = torch.eye(H.shape[-1]).to(H)
    H = H / H.diagonal(dim1=1, dim2=2).amax(1)[:, None, None] + RIDGE * eye
    free = torch.ones(H.shape[:2], dtype=torch.bool)  # [P, n] components where u may be positive
    fewest, patience = torch.full(H.shape[:1], H.shape[1] + 1), torch.full(H.shape[:1], 3)
    for _ in range(100 + 10 * H.shape[1]):
        both_free = free[:, :, None] & free[:, None, :]
        u = torch.linalg.solve_ex(torch.where(both_free, H, eye), free.to(H)).result  # 0 where not free
        slack = (H @ u[:, :, None]).squeeze(2) - 1
        wrong = torch.where(free, u, slack) < -TOLERANCE * u.abs().sum(1, keepdim=True)
        count = wrong.sum(1)
        if not count.any():
            break
        patience = torch.where(count < fewest, 3, patience - 1)
        fewest = torch.minimum(fewest, count)
        last = wrong & (wrong.flip(1).cumsum(1).flip(1) == 1)  # only the last wrong component of each row
        free = free ^ torch.where((patience >= 0)[:, None], wrong, last)
    u = torch.where(count[:, None] > 0, torch.nan, u.clamp(min=0))
    return u / u.sum(1, keepdim=True)


def drop_small_weights(w: Tensor) -> Tensor:
    """Rows of w [S, S] without weights below ``MIN_WEIGHT``, rescaled to sum 1; the client's own head if not finite."""
    w = torch.where(w < MIN_WEIGHT, 0.0, w)
    w = w / w.sum(1, keepdim=True)
    return torch.where(w.isfinite().all(1, keepdim=True), w, torch.eye(len(w)).to(w))

r"""FedPAC: one body pulled towards common class prototypes, and for every client its own mixture of all heads.

Xu, Tong and Huang, "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", ICLR 2023.
FedSelect, section 6 of its specification. z = body(x), n samples, π_c share and μ_c mean feature of class c:

    client    A_c = π_c μ_c,   V = (1/n) Σ_c (π_c mean_c |z|² − π_c² |μ_c|²)                       on the received body
              one epoch on the head, then L epochs on the body:   CE + λ MSE(z, P_y)
    server    body = Σ_k n_k body_k / Σ_k n_k,   P_c = Σ_k n_kc μ_kc / Σ_k n_kc                    μ after training
              head_i = Σ_j w_ij head_j,   w_i = argmin wᵀ (diag(V) + G_i) w   over w ≥ 0, Σ w = 1,
              G_i[j, l] = Σ_c ⟨A_i[c] − A_j[c], A_i[c] − A_l[c]⟩

V_j is what head j suffers from few samples, G_i what it suffers from other data than client i's. Weights below 0.001
are set to 0 and the others scaled up; a client whose programme cannot be solved keeps its own head. Features are taken
in evaluation mode, without augmentation. A class that nobody had in the last round has no P: there a client's own mean
on the received body stands in; where there is no P at all (round 0), the term is left out.

Differs from the paper: nothing by default. Ours where it is silent: only participants exchange heads, absent clients
keep theirs; the passes of head and body have FedRep's batches, and batch-norm statistics stay at home, as there
(``buffer_policy="average"``: averaged with the body); the programme is solved exactly in float64. PFLlib weighs
prototypes evenly (``prototype_weighting="uniform"``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from pfl_core.algorithm import register
from pfl_core.algorithms.fedavg import client_weight
from pfl_core.algorithms.partial import Partial, PartialState, at_least, taken
from pfl_core.federation import Federation, LocalTraining, Output, Trained
from pfl_core.federation.types import LossHook
from pfl_core.ops import count_true, mix, put, select
from pfl_core.options import NonNegativeFloat

SMALLEST = 1e-3  # weights below it are set to 0
RIDGE = 1e-12  # of the largest diagonal entry, added to all: among equally good weights the even ones are taken
EXACT = 1e-12  # what counts as negative, relative to the weights' sum


@dataclass(frozen=True)
class PacState(PartialState):
    """``own``: the client's mixed head [h], then its statistics where they stay at home."""

    prototypes: Tensor | None = None  # [C, f] P of the last round
    known: Tensor | None = None  # [C] bool, classes that have one


@dataclass(frozen=True)
class ClientMessage:
    """What clients send besides body and head, in float64."""

    A: Tensor  # [S, C, f] share times mean feature of each class, before training
    V: Tensor  # [S]
    means: Tensor  # [S, C, f] mean feature of each class, after training; 0 for absent classes
    counts: Tensor  # [S, C] samples of each class

    @classmethod
    def join(cls, parts: list[ClientMessage]) -> ClientMessage:
        """Chunks of clients, one after the other."""
        return cls(*(torch.cat([getattr(p, name) for p in parts]) for name in cls.__dataclass_fields__))


@register(
    "fedpac",
    papers=("fedselect",),
    shares="the body; every client has its own mixture of the participants' heads (last linear layers)",
    variants={"pfllib": {"prototype_weighting": "uniform"}},
    passes=1.6,
)
@dataclass(frozen=True)
class FedPAC(Partial):
    """Feature alignment and classifier collaboration."""

    client_weighting: Literal["uniform", "samples"] = "samples"  # of the bodies
    lam: NonNegativeFloat = 1.0  # λ, weight of the distance to the prototypes
    lr_head: NonNegativeFloat | None = None  # None: the federation's rate; authors' code 0.1, with 0.01 for the body
    prototype_weighting: Literal["counts", "uniform"] = "counts"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_momentum:
            raise ValueError("FedPAC: its clients start at rest in each round; leave keep_momentum out")
        at_least(self, lam=0, **({} if self.lr_head is None else {"lr_head": 0}))

    def init(self, fed: Federation, theta0: Tensor) -> PacState:
        prototypes = theta0.new_zeros(fed.layout.field(f"{fed.layout.head}.weight").shape)
        known = torch.zeros_like(prototypes[:, 0], dtype=torch.bool)
        start = super().init(fed, theta0)
        return PacState(shared=start.shared, own=start.own, prototypes=prototypes, known=known)

    def round(self, fed: Federation, state: PacState, clients: Tensor, t: int) -> tuple[PacState, dict]:
        personal, places, own, messages = self.personal(fed), self.parts(fed.layout), [], []

        def local(chunk: Tensor, rows: slice) -> Trained:
            out, message = self.client(fed, state, chunk, t)
            own.extend(taken(row, places) for row in out.theta)
            messages.append(message)
            return out

        mean, notes = fed.average(local, clients, client_weight(fed, clients, self.client_weighting))
        message, h = ClientMessage.join(messages), count_true(personal[: fed.num_params])
        heads = mix(self.head_weights(message.A, message.V), torch.stack([row[:h] for row in own]))
        own = [torch.cat([head, row[h:]]) for head, row in zip(heads, own, strict=True)]
        P, known = self.prototypes(message.means, message.counts)
        shared = select(personal, state.shared, mean)
        new = replace(state, shared=shared, own=put(state.own, clients, own), prototypes=P.to(shared), known=known)
        # up go body and head; A and the means of one's own classes; counts and V
        statistics = 2 * (message.counts > 0).sum(1).cpu() * P.shape[1] + len(P) + 1
        return new, notes | {
            "upload": fed.num_params + statistics,
            "personal_share": h / fed.num_params,
            "passes": fed.train.epochs + 1 + 2 / 3,  # two more forward passes
        }

    def client(self, fed: Federation, state: PacState, clients: Tensor, t: int) -> tuple[Trained, ClientMessage]:
        """Steps 1 to 4 of every client."""
        start = self.rows(fed, state, clients)
        means, counts, energy = features(fed, start, clients, len(state.known))
        num = counts.sum(1)
        A = counts[:, :, None] / num[:, None, None] * means
        V = (energy - A.square().sum((1, 2))).clamp(min=0) / num
        theta = self.train_own(fed, start, clients, t).theta
        aims = torch.where(state.known[:, None], state.prototypes, means.to(start))  # [S, C, f]
        training = LocalTraining(trainable=~self.personal(fed), loss=self.loss(state, aims))
        out = fed.sgd(theta, clients, training, key=t)
        means, _, _ = features(fed, out.theta, clients, len(state.known))
        return out, ClientMessage(A, V, means, counts)

    def personal_training(self) -> LocalTraining:
        """One epoch on the head."""
        return LocalTraining(epochs=1, lr=self.lr_head)

    def loss(self, state: PacState, aims: Tensor) -> LossHook | None:
        """The loss that the body is trained with; None (cross-entropy) before there are prototypes."""
        if self.lam == 0 or not state.known.any():
            return None

        def loss(output: Output) -> Tensor:  # CE + λ MSE(z, P_y)
            distance = mse_loss(output.features, aims[output.row][output.labels])
            return cross_entropy(output.logits, output.labels) + self.lam * distance

        return loss

    def prototypes(self, means: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """P [C, f] and which classes have one [C]; means [S, C, f], counts [S, C]."""
        weight = counts if self.prototype_weighting == "counts" else (counts > 0).to(means)
        total = weight.sum(0)
        return (weight[:, :, None] * means).sum(0) / total.clamp(min=1)[:, None], total > 0

    def head_weights(self, A: Tensor, V: Tensor) -> Tensor:
        """w [S, S], a row for each client; A [S, C, f], V [S]."""
        return without_crumbs(simplex_minimum(quadratic(A.cpu(), V.cpu())))


def features(fed: Federation, theta: Tensor, clients: Tensor, num_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each client's training data in float64: mean z of each class [S, C, f], samples [S, C], mean |z|² [S]."""
    found = []
    for z, k in zip(fed.forward(theta, clients, "train", layer="features"), clients.tolist(), strict=True):
        z, member = z.double(), one_hot(fed.labels(k), num_classes).double()  # [n, f], [n, C]
        counts = member.sum(0)
        found.append((member.T @ z / counts.clamp(min=1)[:, None], counts, z.square().sum(1).mean()))
    means, counts, energy = zip(*found, strict=True)
    return torch.stack(means), torch.stack(counts), torch.stack(energy)


def quadratic(A: Tensor, V: Tensor) -> Tensor:
    """diag(V) + G_i for every client i, [S, S, S]; A [S, C, f], V [S].

    G_i[j, l] = K_ii − K_ij − K_il + K_jl with the inner products K of all A; these are centred first, which changes no
    difference but leaves less to cancel.
    """
    flat = (A - A.mean(0)).flatten(1)
    K = flat @ flat.T
    return K.diagonal()[:, None, None] - K[:, :, None] - K[:, None, :] + K + V.diag()


def simplex_minimum(H: Tensor) -> Tensor:
    """argmin wᵀ H w over w ≥ 0, Σ w = 1, for each H [P, n, n] (symmetric, PSD) -> [P, n]; not a number if not found.

    w = u / Σ u where u ≥ 0, H u ≥ 1, and one of the two with equality in each place. Such a u is found by block
    principal pivoting (Júdice and Pires 1994): solve for the places now free, then exchange all that have the wrong
    sign; if that has three times not left fewer of them, the last one only, until it has. All H at once.
    """
    eye = torch.eye(H.shape[-1]).to(H)
    H = H / H.diagonal(dim1=1, dim2=2).amax(1)[:, None, None] + RIDGE * eye
    free = torch.ones(H.shape[:2], dtype=torch.bool)
    fewest, patience = torch.full(H.shape[:1], H.shape[1] + 1), torch.full(H.shape[:1], 3)
    for _ in range(100 + 10 * H.shape[1]):
        both = free[:, :, None] & free[:, None, :]
        u = torch.linalg.solve_ex(torch.where(both, H, eye), free.to(H)).result  # 0 where not free
        slack = (H @ u[:, :, None]).squeeze(2) - 1
        wrong = torch.where(free, u, slack) < -EXACT * u.abs().sum(1, keepdim=True)
        count = wrong.sum(1)
        if not count.any():
            break
        patience = torch.where(count < fewest, 3, patience - 1)
        fewest = torch.minimum(fewest, count)
        last = wrong & (wrong.flip(1).cumsum(1).flip(1) == 1)
        free = free ^ torch.where((patience >= 0)[:, None], wrong, last)
    u = torch.where(count[:, None] > 0, torch.nan, u.clamp(min=0))
    return u / u.sum(1, keepdim=True)


def without_crumbs(w: Tensor) -> Tensor:
    """Rows of w [S, S] without small weights, summing to 1; the own head where nothing usable is left."""
    w = torch.where(w < SMALLEST, 0.0, w)
    w = w / w.sum(1, keepdim=True)
    return torch.where(w.isfinite().all(1, keepdim=True), w, torch.eye(len(w)).to(w))

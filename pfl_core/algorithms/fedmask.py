r"""FedMask: the weights stay as they were at the start; every client learns which of them to use in its last layers.

Li, Sun, Li, Pan, Chen and Chen, "FedMask: Joint Computation and Communication-Efficient Personalized Federated Learning
via Heterogeneous Masking", SenSys 2021. pFedGate, section 8 of its specification; no code is at hand, so this is **our
reading** of it, and other readings differ in how they aggregate.

    m_k = 1 on the share s of each masked layer with the largest scores a_k, else 0
    client    a_k ← a_k − η_a ∂L(θ ∘ m_k)/∂a_k        straight through the cut: ∂m/∂a = σ'(a)
    server    a_k[j] ← Σ_i n_i a_i[j] / Σ_i n_i over the participants that keep j, for each of them, if they are two or
              more; else a_k[j] stays the client's own
    scored    θ ∘ m_k

Ours: only weights are masked, biases stay; the scores start at (|θ_j| − cut) / mean |θ|, layer by layer, the cut in the
middle between what is kept and what is not, so that the first mask is the one-shot one of the largest |θ_j|. ``cut=
"threshold"``: m = 1 where σ(a) > ``tau`` instead of the largest share. Scores, not only masks, must go up where they
are averaged. Batch-norm statistics are averaged. The federation's weight decay acts on the scores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pfl_core.algorithm import check_choices, register
from pfl_core.algorithms.fedavg import client_weight
from pfl_core.algorithms.momentum import Momentum, MovingState
from pfl_core.algorithms.partial import top
from pfl_core.federation import DerivedWeights, Federation, LocalTraining, Trained
from pfl_core.layout import WEIGHT, Field
from pfl_core.ops import counts_true, masked_mean, put, round_half_up, take, top_count
from pfl_core.options import NonNegativeFloat


@dataclass(frozen=True)
class FedMaskState(MovingState):
    scores: tuple[Tensor, ...] = ()  # N rows [v]: a_k, the masked entries in the layout's order


@register(
    "fedmask",
    papers=("pfedgate",),
    shares="frozen weights; each client learns masks of the last layers, and the scores that several keep are averaged",
    variants={"cifar": {"layers": 2}, "s=0.3": {"keep_ratio": 0.3}, "threshold": {"cut": "threshold"}},
    ci={"layers": 2, "keep_ratio": 0.6, "lr_mask": 5.0},
    trial={"layers": 2, "lr_mask": 50.0},  # at the rates of weights masks hardly move
    passes=1.1,
)
@dataclass(frozen=True)
class FedMask(Momentum):
    """``shared`` [e] is θ, of which only statistics ever move."""

    keep_ratio: float = 0.5  # s, the share that is kept, of each masked layer
    layers: int = 1  # masked, the last ones; pFedGate: 1 (EMNIST, FEMNIST), 2 (CIFAR)
    lr_mask: NonNegativeFloat | None = None  # η_a; None: the federation's rate
    cut: Literal["top", "threshold"] = "top"
    tau: float = 0.5  # τ, where the cut is a threshold
    client_weighting: Literal["uniform", "samples"] = "samples"

    def __post_init__(self) -> None:
        check_choices(self)
        if not 0 < self.keep_ratio <= 1:
            raise ValueError(f"FedMask: keep_ratio={self.keep_ratio} is outside (0, 1]; for 50 percent give 0.5")
        if not 0 < self.tau < 1:
            raise ValueError(f"FedMask: tau={self.tau} is outside (0, 1); a score is cut where its sigmoid is tau")
        if self.layers < 1:
            raise ValueError(f"FedMask: layers={self.layers} is below 1: nothing would be masked")
        if self.lr_mask is not None and not self.lr_mask >= 0:
            raise ValueError(f"FedMask: lr_mask={self.lr_mask} is below 0; leave it out for the common rate")

    def masked(self, fed: Federation) -> list[Field]:
        """The weights that have masks."""
        layers = top(fed.layout, self.layers)
        return [f for f in fed.layout.params if f.kind == WEIGHT and len(f.shape) > 1 and f.layer in layers]

    def init(self, fed: Federation, theta0: Tensor) -> FedMaskState:
        """Raises ValueError if the network has fewer layers than are to be masked."""
        first = [first_scores(theta0[f.start : f.stop], self.keep_ratio) for f in self.masked(fed)]
        return FedMaskState(shared=theta0, scores=(torch.cat(first),) * fed.num_clients)

    def mask(self, fields: list[Field], scores: Tensor) -> Tensor:
        """m [v], bool, of scores [v]."""
        if self.cut == "threshold":
            return torch.sigmoid(scores) > self.tau
        return torch.cat([largest(part, self.keep_ratio) for part in scores.split([f.stop - f.start for f in fields])])

    def round(self, fed: Federation, state: FedMaskState, clients: Tensor, t: int) -> tuple[FedMaskState, dict]:
        fields, own, momentum = self.masked(fed), [], self.client_momentum(fed, state, state.scores[0].numel())
        frozen = torch.zeros_like(state.shared, dtype=torch.bool)

        def weights(theta_k: Tensor, scores_k: Tensor, x: Tensor, s: int) -> Tensor:
            mask, soft = self.mask(fields, scores_k.detach()), torch.sigmoid(scores_k)
            return applied(fields, theta_k, mask + (soft - soft.detach()))

        def local(chunk: Tensor, rows: slice) -> Trained:
            scores = DerivedWeights(weights, take(state.scores, chunk), self.lr_mask, momentum.take(chunk))
            training = LocalTraining(trainable=frozen, weights=scores)
            out = fed.sgd(fed.broadcast(state.shared, chunk), chunk, training, key=t)
            momentum.put(chunk, out.velocity_variables)
            own.extend(row.clone() for row in out.variables)
            return replace(
                out, theta=torch.stack([self.model(fields, *row) for row in zip(out.theta, out.variables, strict=True)])
            )

        mean, notes = fed.average(local, clients, client_weight(fed, clients, self.client_weighting))
        d, scores = fed.num_params, torch.stack(own)
        kept = torch.stack([self.mask(fields, row) for row in scores])
        merged = self.merged(scores, kept, client_weight(fed, clients, self.client_weighting))
        shared = torch.cat([state.shared[:d], mean[d:]])
        new = momentum.into(replace(state, shared=shared, scores=put(state.scores, clients, merged)))
        return new, notes | {
            "upload": counts_true(kept),
            "upload_bits": torch.full((len(clients),), scores.shape[1]),
            "passes": fed.train.epochs,
            "mask_agreement": float((kept == kept[0]).float().mean()),
        }

    def merged(self, scores: Tensor, kept: Tensor, weight: Tensor) -> list[Tensor]:
        """The scores after the server's step; scores and masks [S, v]."""
        mean = masked_mean(scores, kept, weight, torch.zeros_like(scores[0]))  # over a lone keeper its own
        return [torch.where(mask, mean, row) for mask, row in zip(kept, scores, strict=True)]

    def model(self, fields: list[Field], theta: Tensor, scores: Tensor) -> Tensor:
        """θ ∘ m [e]."""
        return applied(fields, theta, self.mask(fields, scores).to(theta))

    def evaluation_models(self, fed: Federation, state: FedMaskState, clients: Tensor, t: int) -> Tensor:
        fields = self.masked(fed)
        return torch.stack([self.model(fields, state.shared, state.scores[k]) for k in clients.tolist()])

    def artifacts(self, fed: Federation, state: FedMaskState) -> dict[str, Tensor]:
        fields = self.masked(fed)
        shares = [self.mask(fields, scores).float().mean() for scores in state.scores]
        return {"achieved_keep_ratio": torch.stack(shares).cpu()}


def applied(fields: list[Field], theta: Tensor, factor: Tensor) -> Tensor:
    """theta [d] or [e] with the entries of these fields times ``factor`` [v]; differentiable."""
    parts, end = [], 0
    for f, own in zip(fields, factor.split([f.stop - f.start for f in fields]), strict=True):
        parts += [theta[end : f.start], theta[f.start : f.stop] * own]
        end = f.stop
    return torch.cat([*parts, theta[end:]])


def largest(scores: Tensor, share: float) -> Tensor:
    """Bool [n]: the share with the largest scores, at least one."""
    count = max(1, round_half_up(share * len(scores)))
    return top_count(scores, torch.ones_like(scores, dtype=torch.bool), count)


def first_scores(theta: Tensor, share: float) -> Tensor:
    """[n]: how far |theta| lies above the cut between the share that is kept and the rest, in units of mean |theta|."""
    size = theta.abs()
    kept = largest(size, share)
    low = size[~kept].max() if not kept.all() else torch.zeros_like(size[0])
    return (size - (size[kept].min() + low) / 2) / size.mean().clamp(min=torch.finfo(size.dtype).tiny)

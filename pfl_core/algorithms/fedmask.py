r"""FedMask: weights stay at their initial values; each client learns a binary mask on the weights of its last layers.

Li, Sun, Li, Pan, Chen and Chen, "FedMask: Joint Computation and Communication-Efficient Personalized Federated Learning
via Heterogeneous Masking", SenSys 2021. A baseline of pFedGate. Written without access to the authors' code: this is
one reading of the paper, and other implementations aggregate differently.

    m_k = 1 on the share s of each masked layer with the largest scores a_k, else 0
    client    a_k ← a_k − η_a ∂L(θ ∘ m_k)/∂a_k        straight-through estimator: ∂m/∂a = σ'(a)
    server    where two or more participants keep entry j, each of them gets a_k[j] ← Σ_i n_i a_i[j] / Σ_i n_i over
              these participants; everywhere else a_k[j] stays as it is
    scored    θ ∘ m_k

Not in the paper: only weights are masked, not biases. Scores start at (|θ_j| − cut) / mean |θ|, layer by layer. The cut
lies halfway between the smallest kept and the largest dropped |θ_j|, so the first mask keeps the largest |θ_j|.
``cut="threshold"`` replaces the largest share: m = 1 where σ(a) > ``tau``. Clients upload the scores of kept entries in
addition to the mask, since these are averaged. Batch-norm statistics are averaged. Weight decay acts on the scores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pfl_core.algorithm import register
from pfl_core.algorithms.fedavg import client_weight
from pfl_core.algorithms.momentum import Momentum, MovingState
from pfl_core.algorithms.partial import top_layers
from pfl_core.federation import DerivedWeights, Federation, LocalTraining, Trained
from pfl_core.layout import WEIGHT, Field
from pfl_core.ops import counts_true, masked_mean, put, round_half_up, take, top_count
from pfl_core.options import NonNegativeFloat, PositiveInt, Share


@dataclass(frozen=True)
class FedMaskState(MovingState):
    scores: tuple[Tensor, ...] = ()  # N rows [v]: a_k of the masked entries, in the layout's order


@register(
    "fedmask",
    papers=("pfedgate",),
    shares="frozen weights; each client masks the last layers, and mask scores that several clients keep are averaged",
    variants={"cifar": {"layers": 2}, "s=0.3": {"keep_ratio": 0.3}, "threshold": {"cut": "threshold"}},
    ci={"layers": 2, "keep_ratio": 0.6, "lr_mask": 5.0},
    # With the learning rates of weights, masks hardly change. Masks of the last two layers alone hardly help on the
    # random features of an untrained network.
    trial={"layers": 4, "lr_mask": 200.0},
    trial_training={"momentum": 0.9, "epochs": 2},
    passes=1.1,
    step_seconds=0.002,
)
@dataclass(frozen=True)
class FedMask(Momentum[FedMaskState]):
    """``shared`` [e] is θ; only its batch-norm statistics change."""

    keep_ratio: Share = 0.5  # s, share of each masked layer's weights that is kept
    layers: PositiveInt = 1  # number of masked layers, the last ones; pFedGate: 1 (EMNIST, FEMNIST), 2 (CIFAR)
    lr_mask: NonNegativeFloat | None = None  # η_a; None: the federation's rate
    cut: Literal["top", "threshold"] = "top"
    tau: float = 0.5  # τ, for cut="threshold"
    client_weighting: Literal["uniform", "samples"] = "samples"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.tau < 1:
            raise ValueError(f"FedMask: tau={self.tau} is outside (0, 1); it is compared with the sigmoid of a score")

    def masked(self, fed: Federation) -> list[Field]:
        """The fields of the masked weights."""
        layers = top_layers(fed.layout, self.layers)
        return [f for f in fed.layout.params if f.kind == WEIGHT and len(f.shape) > 1 and f.layer in layers]

    def init(self, fed: Federation, theta0: Tensor) -> FedMaskState:
        """Raises ValueError if the network has fewer layers than ``layers``."""
        first = [first_scores(theta0[f.start : f.stop], self.keep_ratio) for f in self.masked(fed)]
        return FedMaskState(shared=theta0, scores=(torch.cat(first),) * fed.num_clients)

    def mask(self, fields: list[Field], scores: Tensor) -> Tensor:
        """The mask m [v] bool of scores [v]."""
        if self.cut == "threshold":
            return torch.sigmoid(scores) > self.tau
        return torch.cat([largest(part, self.keep_ratio) for part in scores.split([f.stop - f.start for f in fields])])

    def round(self, fed: Federation, state: FedMaskState, clients: Tensor, t: int) -> tuple[FedMaskState, dict]:
        fields, momentum = self.masked(fed), self.client_momentum(fed, state, state.scores[0].numel())
        nothing_trainable = torch.zeros_like(state.shared, dtype=torch.bool)
        trained_scores: list[Tensor] = []  # S rows [v]

        def weights(theta_k: Tensor, scores_k: Tensor, x: Tensor, s: int) -> Tensor:
            mask, soft = self.mask(fields, scores_k.detach()), torch.sigmoid(scores_k)
            return multiply_fields(fields, theta_k, mask + (soft - soft.detach()))  # value m, gradient σ'(a)

        def local(chunk: Tensor, rows: slice) -> Trained:
            derived = DerivedWeights(weights, take(state.scores, chunk), self.lr_mask, momentum.take(chunk))
            training = LocalTraining(trainable=nothing_trainable, weights=derived)
            out = fed.sgd(fed.broadcast(state.shared, chunk), chunk, training, key=t)
            momentum.put(chunk, out.velocity_variables)
            trained_scores.extend(row.clone() for row in out.variables)
            models = [self.model(fields, *row) for row in zip(out.theta, out.variables, strict=True)]
            return replace(out, theta=torch.stack(models))

        mean, notes = fed.average(local, clients, client_weight(fed, clients, self.client_weighting))
        d, scores = fed.num_params, torch.stack(trained_scores)  # [S, v]
        kept = torch.stack([self.mask(fields, row) for row in scores])  # [S, v]
        merged = self.merge(scores, kept, client_weight(fed, clients, self.client_weighting))
        shared = torch.cat([state.shared[:d], mean[d:]])
        new = momentum.into(replace(state, shared=shared, scores=put(state.scores, clients, merged)))
        return new, notes | {
            "upload": counts_true(kept),
            "upload_bits": torch.full((len(clients),), scores.shape[1]),
            "passes": fed.train.epochs,
            "mask_agreement": float((kept == kept[0]).float().mean()),
        }

    def merge(self, scores: Tensor, kept: Tensor, weight: Tensor) -> list[Tensor]:
        """The server's step: S rows [v] of new scores; scores and kept [S, v]."""
        mean = masked_mean(scores, kept, weight, torch.zeros_like(scores[0]))  # a single keeper's score is unchanged
        return [torch.where(mask, mean, row) for mask, row in zip(kept, scores, strict=True)]

    def model(self, fields: list[Field], theta: Tensor, scores: Tensor) -> Tensor:
        """θ ∘ m [e]."""
        return multiply_fields(fields, theta, self.mask(fields, scores).to(theta))

    def evaluation_models(self, fed: Federation, state: FedMaskState, clients: Tensor, t: int) -> Tensor:
        fields = self.masked(fed)
        return torch.stack([self.model(fields, state.shared, state.scores[k]) for k in clients.tolist()])

    def artifacts(self, fed: Federation, state: FedMaskState) -> dict[str, Tensor]:
        fields = self.masked(fed)
        shares = [self.mask(fields, scores).float().mean() for scores in state.scores]
        return {"achieved_keep_ratio": torch.stack(shares).cpu()}


def multiply_fields(fields: list[Field], theta: Tensor, factor: Tensor) -> Tensor:
    """theta [d] or [e] with the entries of these fields times ``factor`` [v]; differentiable."""
    parts, end = [], 0
    for f, factor_f in zip(fields, factor.split([f.stop - f.start for f in fields]), strict=True):
        parts += [theta[end : f.start], theta[f.start : f.stop] * factor_f]
        end = f.stop
    return torch.cat([*parts, theta[end:]])


def largest(scores: Tensor, share: float) -> Tensor:
    """Bool [n], True on the given share of entries with the largest scores; at least one."""
    count = max(1, round_half_up(share * len(scores)))
    return top_count(scores, torch.ones_like(scores, dtype=torch.bool), count)


def first_scores(theta: Tensor, share: float) -> Tensor:
    """[n] (|theta| − cut) / mean |theta|; cut: halfway between the smallest kept and the largest dropped value."""
    size = theta.abs()
    kept = largest(size, share)
    largest_dropped = size[~kept].max() if not kept.all() else torch.zeros_like(size[0])
    cut = (size[kept].min() + largest_dropped) / 2
    return (size - cut) / size.mean().clamp(min=torch.finfo(size.dtype).tiny)

r"""FedSelect: the parameters that change most in a client's local training become personal, the others stay shared.

Tamirisa et al., "FedSelect: Personalized Federated Learning with Customized Selection of Parameters for Fine-Tuning",
CVPR 2024: Algorithm 1 (the round), Algorithm 2 (LocalAlt), Algorithm 3 (GradSelect).

    client    θ_k⁺ = L × LocalAlt(θ_k, m_k)                    personal entries first, then shared ones
              Δ_k = |θ_k⁺ − θ_k|,   m_k⁺ = m_k ∪ top_p(Δ_k on ¬m_k)   if share(m_k) < α
    server    θ_g[j] = mean of θ_k⁺[j] over the clients that share j (old masks)
    client    θ_k = θ_k⁺ on m_k, θ_g elsewhere;   m_k = m_k⁺

A newly chosen entry still takes part in this round's mean. It starts the next round as a personal entry with the mean's
value. Round 0 equals FedAvg for every p and α.

Differs from the paper: nothing by default. Where the paper is silent: an update adds at least one entry, even if p % of
a small number rounds to none; an entry that no client shares keeps its last global value; batch-norm statistics stay
with their client; absent clients keep their model and mask, and receive the mean of entries that they share.

``FedSelect.reading("authors_code")`` sets the choices of the released code; each of them is a field. The ablations of
Table 3 are fields, too: ``ranking`` (how shared entries are ranked) and ``masks`` (grown, or fixed before round 0).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithm import Algorithm, MechanismCheck, register
from pfl_core.algorithms.fedselect.ablation import fixed_masks, ranking_scores, tie_order
from pfl_core.algorithms.fedselect.alternating import NOTES, Alternating, MaskState, loss_checks, part_check
from pfl_core.federation import Federation
from pfl_core.layout import Layout
from pfl_core.ops import ClientRows, count_true, counts_true, put, round_half_up, take, top_count
from pfl_core.options import Fraction, NonNegativeInt, PositiveInt
from pfl_core.training import Training


@dataclass(frozen=True)
class SelectState(MaskState):
    """``personal`` holds the masks of the next round."""

    reference: ClientRows | None = None  # [N, e], only for change_reference="last_mask_update"


@register(
    "fedselect",
    papers=("fedselect",),
    shares="all but each client's growing set of parameters that changed most",
    variants={
        "authors_code": {"reading": "authors_code"},
        "alpha_0.05": {"alpha": 0.05},
        "alpha_0.30": {"alpha": 0.30},
        "alpha_0.50": {"alpha": 0.50},
        "alpha_0.80": {"alpha": 0.80},
        "capped": {"limit_policy": "cap"},
        "personalize_least": {"ranking": "least_change"},
        "random_growing": {"ranking": "random"},
        "magnitude": {"ranking": "magnitude"},
        "gradient": {"ranking": "gradient"},
        "random": {"masks": "random"},
        "common_random": {"masks": "common_random"},
    },
    ci={"p": 0.25, "alpha": 0.5},
    passes=2.0,
)
@dataclass(frozen=True)
class FedSelect(Alternating[SelectState]):
    """Algorithm 1. Fields: p and α, then choices that the paper leaves open; see notebooks/fedselect/README.md."""

    p: Fraction = 0.05  # p, share of the still shared entries that becomes personal per update; value not in the paper
    alpha: Fraction = 0.30  # α, personalization limit
    selection_scope: Literal["global", "per_tensor"] = "global"
    eligible_params: Literal["all", "weights_only"] = "all"
    rate_basis: Literal["shared", "all"] = "shared"
    limit_policy: Literal["check_before", "cap"] = "check_before"
    limit_comparison: Literal["strict", "inclusive"] = "strict"
    share_precision: Literal["exact", "float32"] = "exact"  # of the share that is compared with α
    count_rounding: Literal["half_up", "rest_half_even"] = "half_up"  # rounds p n, or the (1 − p) n that stay shared
    tie_rule: Literal["index", "threshold"] = "index"
    mask_update_every: PositiveInt = 1
    mask_update_start: NonNegativeInt = 0
    change_reference: Literal["round_start", "last_mask_update"] = "round_start"
    aggregate_last_round: bool = True
    eval_point: Literal["after_merge", "after_local_update"] = "after_merge"  # which of the two scores is reported
    # Table 3: the entries with the highest rank become personal. Not in the paper: magnitude and gradient.
    ranking: Literal["change", "least_change", "random", "magnitude", "gradient"] = "change"
    masks: Literal["grown", "random", "common_random", "layers"] = "grown"  # all but "grown" are fixed from round 0 on
    layers: tuple[str, ...] = ()  # with masks="layers": names of the personal layers

    readings: ClassVar = {
        "paper": {},
        "authors_code": {
            "p": 0.25,
            "alpha": 0.80,
            "selection_scope": "per_tensor",
            "eligible_params": "weights_only",
            "limit_comparison": "inclusive",
            "share_precision": "float32",
            "count_rounding": "rest_half_even",
            "tie_rule": "threshold",
            "mask_update_every": 3,
            "mask_update_start": 3,
            "change_reference": "last_mask_update",
            "batch_order": "reshuffle_each_pass",
            "skip_empty_pass": False,
            "bn_mode": "eval_after_round_0",
            "aggregate_last_round": False,
            "eval_point": "after_local_update",
        },
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.layers) != (self.masks == "layers"):
            raise ValueError(
                f"FedSelect: masks={self.masks!r} with layers={self.layers}; give both or none, such as "
                'masks="layers", layers=("layer1",)'
            )

    def warnings(self, fed: Federation) -> list[str]:
        if self.masks == "grown" and not self.alpha * self.p:
            return [f"FedSelect: p={self.p}, alpha={self.alpha}, so no parameter becomes personal"]
        return []

    @property
    def reported(self) -> str:  # type: ignore[override]  # a class variable elsewhere, here it depends on a field
        return self.eval_point

    def init(self, fed: Federation, theta0: Tensor) -> SelectState:
        """Raises ValueError for a personal layer that the network does not have."""
        start = super().init(fed, theta0)
        personal = start.personal.clone()
        fixed = fixed_masks(fed, self.units(fed.layout), self.masks, self.alpha, self.layers)
        personal[:, : fed.num_params] = fixed.to(personal.device)
        reference = start.local if self.change_reference == "last_mask_update" else None
        return SelectState(**vars(start) | {"personal": personal, "in_force": personal, "reference": reference})

    def round(self, fed: Federation, state: SelectState, clients: Tensor, t: int) -> tuple[SelectState, dict]:
        start, personal = take(state.local, clients), take(state.personal, clients)  # [S, e]
        trained, loss = self.local_alt(fed, start, personal, clients, t)
        movable = self.update_movable(fed, state, start, trained)
        grown = self.grad_select(fed, state, clients, start, trained, personal, t)
        scored, free = self.note_trained(fed, clients, start, trained)
        free = free and state.reference is None
        if t + 1 == fed.rounds and not self.aggregate_last_round:
            new = replace(state, local=put(state.local, clients, trained))
        else:
            new = self.merge(fed, state, clients, trained, personal, in_place=free)  # with the old masks
        new = replace(new, personal=put(state.personal, clients, grown), in_force=state.personal, movable=movable)
        if self.updates_masks(t) and state.reference is not None:
            new = replace(new, reference=put(state.reference, clients, trained))
        d = fed.num_params
        before, after = counts_true(personal[:, :d]), counts_true(grown[:, :d])
        traffic = {"upload": d - before, "upload_bits": d * (after > before)}  # a mask is sent if it changed
        passes = self.passes(before, fed, fed.train.epochs)
        return new, {
            **scored,
            "train_loss": loss,
            "passes": passes,
            **traffic,
            **self.shares(fed, grown, movable),
        }

    def grad_select(
        self,
        fed: Federation,
        state: SelectState,
        clients: Tensor,
        start: Tensor,
        trained: Tensor,
        personal: Tensor,
        t: int,
    ) -> Tensor:
        """Algorithm 3 after local training from ``start`` to ``trained``: the next masks; all [S, e]."""
        if not self.updates_masks(t):
            return personal
        reference = start if state.reference is None else take(state.reference, clients)
        grown = personal.clone()
        for s, score in enumerate(ranking_scores(fed, self.ranking, reference, start, trained, clients, t)):
            for unit in self.units(fed.layout):
                size = len(score[unit])
                order = tie_order(fed, self.ranking, size, t, int(clients[s]))
                grown[s, unit] = grow_mask(personal[s, unit], score[unit], self, order)
        return grown

    def units(self, layout: Layout) -> list[slice | Tensor]:
        """The sets of eligible parameters that are ranked together: the whole model, or each tensor."""
        fields = [f for f in layout.params if self.eligible_params == "all" or "weight" in f.name]
        if self.selection_scope == "per_tensor":
            return [slice(f.start, f.stop) for f in fields]
        if self.eligible_params == "all":
            return [slice(0, layout.num_params)]
        return [layout.mask(lambda f: f in fields).nonzero().squeeze(1)]

    def updates_masks(self, t: int) -> bool:
        """Whether masks grow in round t."""
        return (
            self.masks == "grown"
            and t >= self.mask_update_start
            and (t - self.mask_update_start) % self.mask_update_every == 0
        )

    def mechanism(self, series: Mapping[str, np.ndarray], rounds: int, training: Training) -> list[MechanismCheck]:
        """Did training diverge while masks were chosen? Are both personal and shared entries left at the end?

        No checks without growing masks or without the notes of a round. No second check for α = 0 or 1.
        """
        if self.masks != "grown" or self.p == 0 or not series.keys() >= NOTES:
            return []
        # [noted rounds, N] the last known share of each client, so that absent clients have one, too
        share = np.nan_to_num(np.fmax.accumulate(series["personal_share"], axis=0))
        choosing = np.asarray((np.diff(share, axis=0, prepend=0.0) > 0).any(axis=1))  # rounds in which a mask grew
        checks = loss_checks(series, choosing) if choosing.any() else []
        return [*checks, part_check(series)] if 0 < self.alpha < 1 else checks

    def horizon_dependence(self) -> str:
        return (
            "" if self.aggregate_last_round else "aggregate_last_round=False skips the mean in the last planned round"
        )

    def shared_prefix(self, fed: Federation) -> tuple[Algorithm, int]:
        """Runs that differ only in α are equal until the first update that the limit of one of them reduces."""
        sizes = [len(torch.arange(fed.num_params)[unit]) for unit in self.units(fed.layout)]
        unlimited = replace(self, alpha=1.0, limit_policy="check_before")
        if self.tie_rule == "threshold" or self.masks != "grown" or self == unlimited:
            return self, 0
        counts = [0] * len(sizes)  # personal entries of each unit; they do not depend on the data
        for t in range(fed.rounds):
            if not self.updates_masks(t):
                continue
            new, new_unlimited = (
                [num_new(n, size, rule) for n, size in zip(counts, sizes, strict=True)] for rule in (self, unlimited)
            )
            if new != new_unlimited:
                return unlimited, t
            counts = [n + more for n, more in zip(counts, new, strict=True)]
        return unlimited, fed.rounds - (not self.aggregate_last_round)


def num_new(num_personal: int, size: int, rule: FedSelect) -> int:
    """How many of a unit's ``size`` entries become personal in an update (Algorithm 3's limit and rate).

    At least one below the limit, for p > 0 (not in the paper). The released code rounds the number of entries that stay
    shared, half to even (``count_rounding="rest_half_even"``): for p = 1/4 it adds 2 of 10 entries, where p n = 2.5 is
    rounded to 3. Where it would add none, the released code fails.
    """
    if rule.p == 0 or at_limit(num_personal, size, rule):
        return 0
    num_shared = size - num_personal
    basis = num_shared if rule.rate_basis == "shared" else size
    rest_half_even = rule.count_rounding == "rest_half_even"
    count = basis - round((1 - rule.p) * basis) if rest_half_even else round_half_up(rule.p * basis)
    count = min(max(1, count), num_shared)
    below_limit = math.floor(rule.alpha * size + 1e-9) - num_personal
    return max(0, min(count, below_limit)) if rule.limit_policy == "cap" else count


def at_limit(num_personal: int, size: int, rule: FedSelect) -> bool:
    """Whether a unit's personal share has reached the limit α.

    Integers are compared: with p = α a comparison of floats, share < α, can be true once too often. The released code
    compares floats, a share in single precision with α in double precision (``share_precision="float32"``): a share of
    exactly 0.05, 0.30 or 0.80 is then larger than α, a share of 0.50 is not.
    """
    inclusive = rule.limit_comparison == "inclusive"
    if rule.share_precision == "float32":
        share = float(np.float32(num_personal) / np.float32(size))
        return share > rule.alpha if inclusive else share >= rule.alpha
    limit = math.floor(rule.alpha * size + 1e-9)
    return num_personal > limit if inclusive else num_personal >= limit


def grow_mask(personal: Tensor, change: Tensor, rule: FedSelect, order: Tensor | None = None) -> Tensor:
    """The mask ``personal`` [D] bool with the shared entries added that have the largest ``change`` [D].

    Ties: the lower index first, or the first in ``order`` [D]. Both give an exact count. ``tie_rule="threshold"`` adds
    all entries that reach the smallest chosen change.
    """
    if order is not None:
        grown = torch.empty_like(personal)
        grown[order] = grow_mask(personal[order], change[order], rule)
        return grown
    count = num_new(count_true(personal), len(personal), rule)
    if count == 0:
        return personal
    picked = top_count(change, ~personal, count)
    if rule.tie_rule == "threshold":
        change = torch.nan_to_num(change, nan=torch.inf)  # NaN ranks first, as in top_count
        picked = ~personal & (change >= change[picked].min())
    return picked.logical_or_(personal)

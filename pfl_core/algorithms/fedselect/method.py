r"""FedSelect: parameters that change most in a client's own training become personal, the others stay shared.

Tamirisa et al., "FedSelect: Personalized Federated Learning with Customized Selection of Parameters for Fine-Tuning",
CVPR 2024: Algorithm 1 (the round), Algorithm 2 (LocalAlt), Algorithm 3 (GradSelect).

    client    θ_k⁺ = L × LocalAlt(θ_k, m_k)                    personal entries first, then shared ones
              Δ_k = |θ_k⁺ − θ_k|,   m_k⁺ = m_k ∪ top_p(Δ_k on ¬m_k)   while share(m_k) < α
    server    θ_g[j] = mean of θ_k⁺[j] over the clients that share j (old masks)
    client    θ_k = θ_k⁺ on m_k, θ_g elsewhere;   m_k = m_k⁺

So a newly chosen entry still takes part in this round's mean and starts the next round as personal from there;
round 0 is FedAvg whatever p and α are.

Differs from the paper: nothing by default. Ours where it is silent: an update takes at least one entry, where p % of
few would round to none; an entry that nobody shares keeps its last global value; batch-norm statistics stay with their
client; absent clients keep model and mask and receive what they share.
``FedSelect.reading("authors_code")`` sets the released code's choices; each is a field. The ablations of Table 3 are
fields, too: ``ranking`` (what decides who becomes personal) and ``masks`` (grown, or fixed before the first round).
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
from pfl_core.algorithms.fedselect.ablation import fixed_masks, scores, tie_order
from pfl_core.algorithms.fedselect.alternating import NOTES, Alternating, MaskState, loss_checks, part_check
from pfl_core.federation import Federation
from pfl_core.layout import Layout
from pfl_core.ops import ClientRows, count_true, counts_true, put, round_half_up, take, top_count
from pfl_core.training import Training


@dataclass(frozen=True)
class SelectState(MaskState):
    """``personal`` are the masks of the next round."""

    reference: ClientRows | None = None  # [N, e], only for change_reference="last_mask_update"


@register(
    "fedselect",
    papers=("fedselect",),
    shares="each client its own growing set of entries that changed most; the others are averaged over their sharers",
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
class FedSelect(Alternating):
    """Algorithm 1. Fields: p and α, then the readings of what the paper leaves open (A1 to A24 of the method page)."""

    p: float = 0.05  # p, share of the still shared entries that becomes personal per update (our value)
    alpha: float = 0.30  # α, personalization limit
    selection_scope: Literal["global", "per_tensor"] = "global"
    eligible_params: Literal["all", "weights_only"] = "all"
    rate_basis: Literal["shared", "all"] = "shared"
    limit_policy: Literal["check_before", "cap"] = "check_before"
    limit_comparison: Literal["strict", "inclusive"] = "strict"
    share_precision: Literal["exact", "float32"] = "exact"  # of the share that is held against α
    count_rounding: Literal["half_up", "rest_half_even"] = "half_up"  # of p n, or of the (1 − p) n that stay shared
    tie_rule: Literal["index", "threshold"] = "index"
    mask_update_every: int = 1
    mask_update_start: int = 0
    change_reference: Literal["round_start", "last_mask_update"] = "round_start"
    aggregate_last_round: bool = True
    eval_point: Literal["after_merge", "after_local_update"] = "after_merge"  # of the two scores, the reported one
    # Table 3: what ranks first becomes personal. The last three are ours: |θ_k⁺|, or |∇f_k(θ_k)| where the round starts
    ranking: Literal["change", "least_change", "random", "magnitude", "gradient"] = "change"
    masks: Literal["grown", "random", "common_random", "layers"] = "grown"  # the others are fixed from round 0 on
    layers: tuple[str, ...] = ()  # with masks="layers": which are personal, by the beginning of their tensors' names

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
        for name in ("p", "alpha"):
            if not 0 <= getattr(self, name) <= 1:
                given = getattr(self, name)
                raise ValueError(
                    f"FedSelect: {name}={given} is outside [0, 1]; for {given} percent give {given / 100:g}"
                )
        super().__post_init__()
        if self.mask_update_every < 1 or self.mask_update_start < 0:
            raise ValueError("FedSelect: mask_update_every must be at least 1 and mask_update_start at least 0")
        if bool(self.layers) != (self.masks == "layers"):
            raise ValueError(
                f"FedSelect: masks={self.masks!r} with layers={self.layers}; give both or none, such as "
                'masks="layers", layers=("layer1",)'
            )

    @property
    def reported(self) -> str:
        return self.eval_point

    def init(self, fed: Federation, theta0: Tensor) -> SelectState:
        """Raises ValueError for a personal layer that the network does not have."""
        start = super().init(fed, theta0)
        personal = start.personal.clone()
        fixed = fixed_masks(fed, self.units(fed.layout), self.masks, self.alpha, self.layers)
        personal[:, : fed.num_params] = fixed.to(personal.device)
        reference = start.local if self.change_reference == "last_mask_update" else None
        return SelectState(
            shared=theta0,
            local=start.local,
            personal=personal,
            in_force=personal,
            movable=start.movable,
            reference=reference,
        )

    def round(self, fed: Federation, state: SelectState, clients: Tensor, t: int) -> tuple[SelectState, dict]:
        start, personal = take(state.local, clients), take(state.personal, clients)  # [S, e]
        trained, loss = self.local_alt(fed, start, personal, clients, t)
        movable = self.moved(fed, state, start, trained)
        grown = self.grad_select(fed, state, clients, trained, personal, t)
        if t + 1 == fed.rounds and not self.aggregate_last_round:
            new = replace(state, local=put(state.local, clients, trained))
        else:
            new = self.merge(fed, state, clients, trained, personal)  # old masks, for the mean and for what comes back
        new = replace(new, personal=put(state.personal, clients, grown), in_force=state.personal, movable=movable)
        if self.updates_masks(t) and state.reference is not None:
            new = replace(new, reference=put(state.reference, clients, trained))
        d = fed.num_params
        before, after = counts_true(personal[:, :d]), counts_true(grown[:, :d])
        traffic = {"upload": d - before, "upload_bits": d * (after > before)}  # mask bits go up when a mask changed
        passes = self.passes(before, fed, fed.train.epochs)
        return new, {
            "trained": trained,
            "train_loss": loss,
            "passes": passes,
            **traffic,
            **self.shares(fed, grown, movable),
        }

    def grad_select(
        self, fed: Federation, state: SelectState, clients: Tensor, trained: Tensor, personal: Tensor, t: int
    ) -> Tensor:
        """Algorithm 3, line by line after the training: the next masks [S, e]."""
        if not self.updates_masks(t):
            return personal
        start = take(state.local, clients)
        since = start if state.reference is None else take(state.reference, clients)
        grown = personal.clone()
        for s, score in enumerate(scores(fed, self.ranking, since, start, trained, clients, t)):
            for unit in self.units(fed.layout):
                size = len(score[unit])
                order = tie_order(fed, self.ranking, size, t, int(clients[s]))
                grown[s, unit] = grow_mask(personal[s, unit], score[unit], self, order)
        return grown

    def units(self, layout: Layout) -> list[slice | Tensor]:
        """What is ranked together: the whole model, or each tensor, of the eligible parameters."""
        fields = [f for f in layout.params if self.eligible_params == "all" or "weight" in f.name]
        if self.selection_scope == "per_tensor":
            return [slice(f.start, f.stop) for f in fields]
        if self.eligible_params == "all":
            return [slice(0, layout.num_params)]
        return [layout.mask(lambda f: f in fields).nonzero().squeeze(1)]

    def updates_masks(self, t: int) -> bool:
        return (
            self.masks == "grown"
            and t >= self.mask_update_start
            and (t - self.mask_update_start) % self.mask_update_every == 0
        )

    def mechanism(self, series: Mapping[str, np.ndarray], rounds: int, training: Training) -> list[MechanismCheck]:
        """Did training diverge while masks were chosen, and did something end as personal, something as shared?

        Nothing to check where no mask grows, where α = 0 or 1 says where it ends, or without a round's notes.
        """
        if self.masks != "grown" or self.p == 0 or not series.keys() >= NOTES:
            return []
        share = np.nan_to_num(np.fmax.accumulate(series["personal_share"], axis=0))  # [noted rounds, N], absent or not
        choosing = (np.diff(share, axis=0, prepend=0.0) > 0).any(axis=1)
        found = loss_checks(series, choosing) if choosing.any() else []
        return [*found, part_check(series)] if 0 < self.alpha < 1 else found

    def shared_prefix(self, fed: Federation) -> tuple[Algorithm, int]:
        """Runs that differ in α alone are equal until the first growth that the smaller limit prevents."""
        sizes = [len(torch.arange(fed.num_params)[unit]) for unit in self.units(fed.layout)]
        free = replace(self, alpha=1.0, limit_policy="check_before")
        if self.tie_rule == "threshold" or self.masks != "grown" or self == free:
            return self, 0
        counts = [0] * len(sizes)
        for t in range(fed.rounds):
            new = [[num_new(n, size, rule) for n, size in zip(counts, sizes, strict=True)] for rule in (self, free)]
            if self.updates_masks(t):
                if new[0] != new[1]:
                    return free, t
                counts = [n + more for n, more in zip(counts, new[0], strict=True)]
        return free, fed.rounds - (not self.aggregate_last_round)


def num_new(num_personal: int, size: int, rule: FedSelect) -> int:
    """How many of a unit's ``size`` entries become personal, by Algorithm 3's limit and rate; at least one (ours).

    The released code rounds the number of those that stay shared, half to even (``count_rounding="rest_half_even"``):
    with p = 1/4 it takes 2 of 10, and p n = 2.5 rounded up is 3. It fails where it would take none; here it takes one.
    """
    if rule.p == 0 or at_limit(num_personal, size, rule):
        return 0
    num_shared = size - num_personal
    basis = num_shared if rule.rate_basis == "shared" else size
    rest_half_even = rule.count_rounding == "rest_half_even"
    count = basis - round((1 - rule.p) * basis) if rest_half_even else round_half_up(rule.p * basis)
    count = min(max(1, count), num_shared)
    room = math.floor(rule.alpha * size + 1e-9) - num_personal
    return max(0, min(count, room)) if rule.limit_policy == "cap" else count


def at_limit(num_personal: int, size: int, rule: FedSelect) -> bool:
    """Whether a unit's personal share forbids it to grow.

    Whole numbers are compared: with p = α a float test of share < α can pass once too often. The released code has
    such a test, of a share in single precision against α in double (``share_precision="float32"``): a share of exactly
    0.05, 0.30 or 0.80 is then larger than α, one of 0.50 is not.
    """
    inclusive = rule.limit_comparison == "inclusive"
    if rule.share_precision == "float32":
        share = float(np.float32(num_personal) / np.float32(size))
        return share > rule.alpha if inclusive else share >= rule.alpha
    limit = math.floor(rule.alpha * size + 1e-9)
    return num_personal > limit if inclusive else num_personal >= limit


def grow_mask(personal: Tensor, change: Tensor, rule: FedSelect, order: Tensor | None = None) -> Tensor:
    """``personal`` [D] with the shared entries that changed most (or whose score is largest) added; change [D].

    Ties: the lower index first, or the first in ``order`` [D] (both an exact count), or all that reach the cut-off
    (``tie_rule="threshold"``).
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
        change = torch.nan_to_num(change, nan=torch.inf)  # a diverged entry ranks first, as in top_count
        picked = ~personal & (change >= change[picked].min())
    return picked.logical_or_(personal)

r"""FedSelect: parameters that change most in a client's own training become personal, the others stay shared.

Tamirisa et al., "FedSelect: Personalized Federated Learning with Customized Selection of Parameters for Fine-Tuning",
CVPR 2024: Algorithm 1 (the round), Algorithm 2 (LocalAlt), Algorithm 3 (GradSelect).

    client    θ_k⁺ = L × LocalAlt(θ_k, m_k)                    personal entries first, then shared ones
              Δ_k = |θ_k⁺ − θ_k|,   m_k⁺ = m_k ∪ top_p(Δ_k on ¬m_k)   while share(m_k) < α
    server    θ_g[j] = mean of θ_k⁺[j] over the clients that share j (old masks)
    client    θ_k = θ_k⁺ on m_k, θ_g elsewhere;   m_k = m_k⁺

So a newly chosen entry still takes part in this round's mean and starts the next round as personal from there;
round 0 is FedAvg whatever p and α are.

Differs from the paper: nothing by default. Ours where it is silent: an entry that nobody shares keeps its last global
value; batch-norm statistics stay with their client; absent clients keep model and mask and receive what they share.
``FedSelect.reading("authors_code")`` sets the released code's choices; each is a field.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfl_core.algorithm import Algorithm, State, check_choices, register
from pfl_core.algorithms.fedavg import client_weight
from pfl_core.federation import Federation
from pfl_core.layout import Layout
from pfl_core.ops import Rows, count_true, counts_true, masked_mean, put, round_half_up, select, take, top_count


@dataclass(frozen=True)
class SelectState(State):
    """``local`` [N, e] are the clients' models θ_k, ``shared`` [e] is θ_g."""

    personal: Rows = ()  # [N, e] bool, m_k of the next round; the tail tells whether statistics stay at home
    in_force: Rows = ()  # [N, e] bool, the mask of the last round
    movable: Tensor | None = None  # [d] bool, entries that changed on some client so far
    reference: Rows | None = None  # [N, e], only for change_reference="last_mask_update"


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
    },
    ci={"p": 0.25, "alpha": 0.5},
    passes=2.0,
)
@dataclass(frozen=True)
class FedSelect(Algorithm):
    """Algorithm 1. Fields: p and α, then the readings of what the paper leaves open (A1 to A24 of the method page)."""

    p: float = 0.05  # p, share of the still shared entries that becomes personal per update (our value)
    alpha: float = 0.30  # α, personalization limit
    lr_personal: float | None = None  # γ_v; None: the federation's rate
    lr_shared: float | None = None  # γ_u
    selection_scope: Literal["global", "per_tensor"] = "global"
    eligible_params: Literal["all", "weights_only"] = "all"
    rate_basis: Literal["shared", "all"] = "shared"
    limit_policy: Literal["check_before", "cap"] = "check_before"
    limit_comparison: Literal["strict", "inclusive"] = "strict"
    tie_rule: Literal["index", "threshold"] = "index"
    mask_update_every: int = 1
    mask_update_start: int = 0
    change_reference: Literal["round_start", "last_mask_update"] = "round_start"
    batch_order: Literal["same_for_both_passes", "reshuffle_each_pass"] = "same_for_both_passes"
    skip_empty_pass: bool = True
    bn_mode: Literal["train", "eval_after_round_0"] = "train"
    buffer_policy: Literal["local", "average"] = "local"
    client_weighting: Literal["uniform", "samples"] = "uniform"
    aggregate_last_round: bool = True
    eval_point: Literal["after_merge", "after_local_update"] = "after_merge"  # of the two scores, the reported one

    readings: ClassVar = {
        "paper": {},
        "authors_code": {
            "p": 0.25,
            "alpha": 0.80,
            "selection_scope": "per_tensor",
            "eligible_params": "weights_only",
            "limit_comparison": "inclusive",
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
        check_choices(self)
        if self.mask_update_every < 1 or self.mask_update_start < 0:
            raise ValueError("FedSelect: mask_update_every must be at least 1 and mask_update_start at least 0")

    @property
    def reported(self) -> str:
        return self.eval_point

    def init(self, fed: Federation, theta0: Tensor) -> SelectState:
        local = theta0.repeat(fed.num_clients, 1)
        personal = torch.zeros_like(local, dtype=torch.bool)
        personal[:, fed.num_params :] = self.buffer_policy == "local"
        return SelectState(
            shared=theta0,
            local=local,
            personal=personal,
            in_force=personal,
            movable=torch.zeros_like(personal[0, : fed.num_params]),
            reference=local if self.change_reference == "last_mask_update" else None,
        )

    def round(self, fed: Federation, state: SelectState, clients: Tensor, t: int) -> tuple[SelectState, dict]:
        start, personal = take(state.local, clients), take(state.personal, clients)  # [S, e]
        trained, loss = self.local_alt(fed, start, personal, clients, t)
        movable = state.movable.clone()
        for before, row in zip(start, trained, strict=True):
            movable |= (row != before)[: fed.num_params]
        grown = self.grad_select(fed, state, clients, trained, personal, t)
        new = self.merge(fed, state, clients, trained, personal, t)
        new = replace(new, personal=put(state.personal, clients, grown), in_force=state.personal, movable=movable)
        if self.updates_masks(t) and state.reference is not None:
            new = replace(new, reference=put(state.reference, clients, trained))
        return new, {"trained": trained, "train_loss": loss, **self.notes(fed, personal, grown, movable)}

    def models(self, fed: Federation, state: SelectState, clients: Tensor, t: int) -> Tensor:
        return take(state.local, clients)

    def local_alt(
        self, fed: Federation, theta: Tensor, personal: Tensor, clients: Tensor, t: int
    ) -> tuple[Tensor, Tensor]:
        """Algorithm 2, L times: a pass over the personal entries, then one over the shared ones, on the same batches.

        theta [S, e], personal [S, e] bool -> (theta⁺ [S, e], mean loss of the last pass [S]). Momentum, which the paper
        does not use, starts at rest in each pass.
        """
        loss = torch.full((len(clients),), torch.nan)
        parts = [("v", personal, self.lr_personal), ("u", ~personal, self.lr_shared)]
        parts = [(*part, self.busy(fed, part[1])) for part in parts]
        norm_mode = "eval" if self.bn_mode == "eval_after_round_0" and t > 0 else "train"
        for epoch in range(fed.train.epochs):
            for name, part, rate, rows in parts:
                if len(rows):
                    out = fed.sgd(
                        take(theta, rows),
                        clients[rows],
                        key=t if self.batch_order == "same_for_both_passes" else (t, name),
                        epochs=range(epoch, epoch + 1),
                        lr=rate,
                        trainable=take(part, rows),
                        norm_mode=norm_mode,
                    )
                    theta, loss = put(theta, rows, out.theta), put(loss, rows, out.loss)
        return theta, loss

    def busy(self, fed: Federation, part: Tensor) -> Tensor:
        """Rows of a pass: all, or (default) those with something to train in it; part [S, e] bool."""
        if not self.skip_empty_pass:
            return torch.arange(len(part))
        return counts_true(part[:, : fed.num_params]).nonzero().squeeze(1)

    def grad_select(
        self, fed: Federation, state: SelectState, clients: Tensor, trained: Tensor, personal: Tensor, t: int
    ) -> Tensor:
        """Algorithm 3, line by line after the training: the next masks [S, e]."""
        if not self.updates_masks(t):
            return personal
        start = take(state.local if state.reference is None else state.reference, clients)
        grown, change = personal.clone(), torch.empty_like(trained[0])
        for s in range(len(clients)):
            torch.sub(trained[s], start[s], out=change).abs_()  # Δu_k
            for unit in self.units(fed.layout):
                grown[s, unit] = grow_mask(personal[s, unit], change[unit], self)
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
        return t >= self.mask_update_start and (t - self.mask_update_start) % self.mask_update_every == 0

    def merge(
        self, fed: Federation, state: SelectState, clients: Tensor, trained: Tensor, personal: Tensor, t: int
    ) -> SelectState:
        """Server mean over the sharers of each entry, and what every client then holds; old masks in both."""
        kept = put(state.local, clients, trained)
        if t + 1 == fed.rounds and not self.aggregate_last_round:
            return replace(state, local=kept)
        weight = client_weight(fed, clients, self.client_weighting)
        shared = masked_mean(trained, ~personal, weight, state.shared)
        local = put(kept, clients, select(personal, trained, shared))
        absent = torch.tensor(sorted(set(range(fed.num_clients)) - set(clients.tolist())), dtype=torch.int64)
        if len(absent):  # extension: they receive the mean where they share an entry that some participant shares too
            receives = ~take(state.personal, absent) & (~personal).any(0)
            local = put(local, absent, select(~receives, take(local, absent), shared))
        return replace(state, shared=shared, local=local)

    def notes(self, fed: Federation, personal: Tensor, grown: Tensor, movable: Tensor) -> dict:
        """Shares of the next mask, and the traffic under the mask in force (mask bits go up when a mask changed)."""
        d = fed.num_params
        count, grown = counts_true(personal[:, :d]), grown[:, :d]
        after = counts_true(grown)
        return {
            "personal_share": after / d,
            "movable_share": counts_true(grown & movable) / max(1, count_true(movable)),
            "upload": d - count,
            "upload_bits": d * (after > count),
            "passes": fed.train.epochs * ((count > 0).int() + (count < d) if self.skip_empty_pass else 2 + 0 * count),
        }

    def keep(self, fed: Federation, state: SelectState) -> dict[str, Tensor]:
        """For every tensor the entries that each pair of clients has personal in common [N, N], and its size."""
        out = {}
        for f in fed.layout.params:
            masks = torch.stack([row[f.start : f.stop] for row in state.in_force]).float()
            out[f"overlap/{f.name}"] = (masks @ masks.T).round().long()
            out[f"size/{f.name}"] = torch.tensor(f.stop - f.start)
        return out

    def prefix(self, fed: Federation) -> tuple[Algorithm, int]:
        """Runs that differ in α alone are equal until the first growth that the smaller limit prevents."""
        sizes = [len(torch.arange(fed.num_params)[unit]) for unit in self.units(fed.layout)]
        free = replace(self, alpha=1.0, limit_policy="check_before")
        if self.tie_rule == "threshold" or self == free:
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
    """How many of a unit's ``size`` entries become personal, by Algorithm 3's limit and rate.

    Whole numbers are compared: with p = α a float test of share < α can pass once too often.
    """
    limit = math.floor(rule.alpha * size + 1e-9)
    full = num_personal >= limit if rule.limit_comparison == "strict" else num_personal > limit
    if rule.p == 0 or full:
        return 0
    num_shared = size - num_personal
    basis = num_shared if rule.rate_basis == "shared" else size
    count = min(max(1, round_half_up(rule.p * basis)), num_shared)
    return min(count, limit - num_personal) if rule.limit_policy == "cap" else count


def grow_mask(personal: Tensor, change: Tensor, rule: FedSelect) -> Tensor:
    """``personal`` [D] with the shared entries that changed most added; change [D] >= 0.

    Ties: the lower index first (an exact count), or all that reach the cut-off (``tie_rule="threshold"``).
    """
    count = num_new(count_true(personal), len(personal), rule)
    if count == 0:
        return personal
    picked = top_count(change, ~personal, count)
    if rule.tie_rule == "threshold":
        change = torch.nan_to_num(change, nan=torch.inf)  # a diverged entry ranks first, as in top_count
        picked = ~personal & (change >= change[picked].min())
    return personal | picked

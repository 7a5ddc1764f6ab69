r"""Star-PFL's state machine: every scalar of a model ("entry") is active, frozen or probing.

Guo et al., "Efficient Personalized Federated Learning on Selective Model Training", ICASSP 2023, Algorithm 2 (Measure
and Check). For each entry, R holds its last H updates. T is the threshold, M = 1 means active, M′ = 1 means probing, F
is the waiting time in rounds, and L counts the rounds waited so far:

    Measure    score = |Σ R| / Σ |R|,   M = 1 where score > T          0 / 0 = 0; with nothing recorded, M = 1
    Check      L ← L + 1 where M = 0
               M′ = 1 and score ≤ T:  F ← F + 1                        still stable: probe less often
               M′ = 1 and score > T:  F ← max(1, ⌈F / 2⌉)              moves again: probe more often
               M′ ← (F ≤ L),   L ← 0 where M′ = 1,   M ← M or M′

A low score means that the updates cancel out: the entry is stable. All operations are elementwise, on [d] or [N, d].
The records of an entry change only while it is active. Check at the end of a round and Measure at the start of the next
one therefore use the same score and count, which are computed once. Codes such as A16 are those of the method page,
``notebooks/star_pfl/README.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pfl_core.algorithm import in_checkpoints
from pfl_core.ops import bits, count_true, top_count

LONGEST = 255  # largest number of updates in a window: slots and counts are stored as uint8


@in_checkpoints
@dataclass(frozen=True)
class Window:
    """The last H updates of every entry, in one ring buffer per entry. An entry is written only while it is active."""

    values: Tensor  # [..., H, d]; with moving averages H = 2: the averages of u and of |u|
    slot: Tensor  # [..., d] uint8, position of the next update in the ring
    count: Tensor  # [..., d] uint8 |R|, number of updates recorded

    @classmethod
    def empty(cls, like: Tensor, length: int) -> Window:
        """A window of ``length`` updates without any record; shape, dtype and device of ``like`` [..., d]."""
        none = torch.zeros_like(like, dtype=torch.uint8)
        return cls(torch.zeros((*like.shape[:-1], length, like.shape[-1])).to(like), none, none.clone())

    def clone(self) -> Window:
        return Window(self.values.clone(), self.slot.clone(), self.count.clone())


@in_checkpoints
@dataclass(frozen=True)
class Entries:
    """State of every entry of a server or a client between two rounds; each tensor is [d] or [N, d]."""

    active: Tensor  # bool M after Check: entries due for a probe are already thawed
    probe: Tensor  # bool M′, thawed for the next round
    interval: Tensor  # int16 F, at least 1; only ``truncate`` stores 0, which waits as long as 1
    frozen: Tensor  # int16 L, rounds frozen so far
    score: Tensor  # float, score of the records when the entry was last active
    count: Tensor  # uint8 |R| at that time

    @classmethod
    def start(cls, like: Tensor) -> Entries:
        """All active (A1 of the method page) and nothing recorded; shape and dtype of ``like`` [..., d]."""
        zeros = torch.zeros_like(like, dtype=torch.int16)
        off = torch.zeros_like(like, dtype=torch.bool)
        return cls(~off, off, zeros + 1, zeros, torch.zeros_like(like), off.to(torch.uint8))

    @property
    def trained(self) -> Tensor:
        """Bool, M during the last round: neither frozen nor thawed at its end."""
        return (self.frozen == 0) & ~self.probe


HALVED: dict[str, Callable[[Tensor], Tensor]] = {  # F / 2 (A6); F is compared with integers, so rounding up is exact
    "ceil": lambda interval: (interval + 1) >> 1,
    "floor": lambda interval: (interval >> 1).clamp_min(1),
    "truncate": lambda interval: interval >> 1,  # 1 becomes 0; after the next stable probe F is 1, not 2
}


def stability(window: Window) -> Tensor:
    """Score |Σ R| / Σ |R| [..., d]: 1 if all updates have one sign, 0 if they cancel out or are all 0."""
    first, *others = window.values.unbind(-2)
    net, path, magnitude = first.clone(), first.abs(), torch.empty_like(first)  # Σ R and Σ |R|
    for update in others:
        net += update
        path += torch.abs(update, out=magnitude)
    return _ratio(net, path)


def average_stability(window: Window) -> Tensor:
    """Score |E| / A [..., d] of the moving averages that ``average_`` keeps."""
    net, path = window.values.unbind(-2)
    return _ratio(net.clone(), path.clone())


def _ratio(net: Tensor, path: Tensor) -> Tensor:
    """|net| / path with 0 / 0 = 0; both arguments are overwritten."""
    limits = torch.finfo(path.dtype)
    return net.abs_().div_(path.clamp_min_(limits.smallest_normal * limits.eps))  # the smallest positive number


def overwrite_(old: Tensor, where: Tensor, new: Tensor) -> Tensor:
    """``old`` ← ``new`` where the mask ``where`` is True; in place.

    Works on the bits, old ^ ((old ^ new) & mask), which takes half the time of ``torch.where``.
    """
    on = bits(where, old)
    change = old.view(on.dtype).bitwise_xor(new.view(on.dtype)).bitwise_and_(on)
    old.view(on.dtype).bitwise_xor_(change)
    return old


def _is(x: Tensor, value: int) -> Tensor:
    """x == value for uint8 tensors; many times as fast."""
    return ~x.bitwise_xor(value).bool()


def push_(window: Window, update: Tensor, where: Tensor) -> None:
    """Record ``update`` [..., d] for the entries in ``where``, in place. Other entries keep records, slot and count."""
    length = window.values.shape[-2]
    for h, old in enumerate(window.values.unbind(-2)):
        here = _is(window.slot, h).logical_and_(where)  # entries whose next slot is h
        if count_true(here):
            overwrite_(old, here, update)
    window.slot.add_(where)
    window.slot.mul_(~_is(window.slot, length))  # wrap around: slot H becomes 0
    window.count.add_(where & ~_is(window.count, length))  # at most H


def average_(window: Window, update: Tensor, where: Tensor, decay: float) -> None:
    """APF's moving averages, E ← a E + (1 − a) u and A ← a A + (1 − a) |u|, for the entries in ``where``; in place."""
    for old, value in zip(window.values.unbind(-2), (update, update.abs()), strict=True):
        overwrite_(old, where, torch.lerp(value, old, decay))
    window.count.add_(where & ~_is(window.count, LONGEST))


@dataclass(frozen=True)
class StabilityRule:
    """The rule for stable entries: ``rule(score, count, measured, frozen)`` -> bool [..., d].

    ``measured`` [..., d] bool: the entries whose result is used. ``frozen`` defaults to all others. With ``floor`` or
    ``empty_is_stable``, which work tensor by tensor, all shapes must be [d].
    """

    threshold: float | None  # T; None: no entry is ever stable
    inclusive: bool = False  # an entry with score exactly T is active (A3)
    min_history: int = 1  # an entry with fewer records is active (A4)
    floor: float | None = None  # at least this lowest share of a tensor's scores is stable (A16)
    floor_cap: str = "unmeasured"  # entries that lower the quantile: all "unmeasured" ones, or only the "frozen" ones
    empty_is_stable: bool = False  # an entry without records is stable if another of its tensor has any (A5, "skip")
    tensors: tuple[slice, ...] = ()  # the tensors of the model

    def __call__(self, score: Tensor, count: Tensor, measured: Tensor, frozen: Tensor | None = None) -> Tensor:
        if self.threshold is None:
            return torch.zeros_like(measured)
        cutoff: float | Tensor = self.threshold
        if self.floor is not None:
            excluded = ~measured if frozen is None or self.floor_cap == "unmeasured" else frozen
            cutoff = self.raised_threshold(score, measured, excluded)
        stable = score < cutoff if self.inclusive else score <= cutoff  # False for NaN
        enough = count.bool() if self.min_history == 1 else count >= self.min_history  # the first form is faster
        if self.empty_is_stable:
            for part in self.tensors:
                enough[part] |= (count[part] == 0) & count[part].bool().any()
        return stable.logical_and_(enough)

    def raised_threshold(self, score: Tensor, measured: Tensor, excluded: Tensor) -> Tensor:
        """[d] threshold of the released code: T, or a quantile of the tensor's measured scores if that is larger.

        The released code computes 0.7 − (excluded entries of the tensor) / d and uses it as a percentile, from 0 to
        100. Here it is a quantile, so ``floor`` is 0.007 and the second term is divided by 100. If the result is not
        positive, the released code (``floor_cap="frozen"``) freezes nothing more of the tensor.
        """
        assert self.threshold is not None and self.floor is not None
        cutoff = torch.full_like(score, self.threshold)
        below_threshold = (score <= self.threshold).logical_and_(measured)
        for part in self.tensors:
            num_measured = count_true(measured[part])
            q = self.floor - count_true(excluded[part]) / len(score) / 100
            # With this many scores at or below T the quantile is at most T and need not be computed.
            enough = int(q * (num_measured - 1)) + 2
            if num_measured and q > 0 and count_true(below_threshold[part]) < enough:
                cutoff[part] = max(self.threshold, quantile(score[part][measured[part]], q))
            elif q <= 0 and self.floor_cap == "frozen":
                cutoff[part] = -torch.inf
        return cutoff


def quantile(x: Tensor, q: float) -> float:
    """The q-quantile of x [n], with linear interpolation; many times as fast as ``torch.quantile``."""
    position = q * (len(x) - 1)
    below, above = int(position), min(int(position) + 1, len(x) - 1)
    partitioned = np.partition(x.cpu().numpy(), (below, above))
    low, high = partitioned[below].item(), partitioned[above].item()
    return low + (high - low) * (position - below)


def measure(entries: Entries, rule: StabilityRule, max_frozen: int | None = None) -> Tensor:
    """Measure of Algorithm 2: the mask M of the round that starts now.

    Stable entries are frozen. Frozen entries stay frozen and probing entries stay active. ``max_frozen`` limits the
    number of frozen entries of [d]: of those that would be frozen now, the ones with the highest scores stay active.
    """
    eligible = entries.active & ~entries.probe
    stable = rule(entries.score, entries.count, eligible, ~entries.active).logical_and_(eligible)
    if max_frozen is not None:
        num_frozen = len(stable) - count_true(entries.active) + count_true(stable)
        stable = stable & ~top_count(entries.score, stable, num_frozen - max_frozen)
    return entries.active & ~stable


def check(entries: Entries, active: Tensor, rule: StabilityRule, halving: str = "ceil", thaw: bool = True) -> Entries:
    """Check of Algorithm 2: the entries after a round in which those in ``active`` were trained.

    ``entries`` already has the scores and counts of the round. ``thaw=False`` never probes a frozen entry (not in the
    paper: F = ∞).
    """
    stable = rule(entries.score, entries.count, active, ~active)
    interval = entries.interval + (entries.probe & stable)
    overwrite_(interval, entries.probe & ~stable, HALVED[halving](entries.interval))
    frozen = entries.frozen + ~active
    due = ~(interval.clamp_min(1) - frozen).clamp_min_(0).bool() if thaw else torch.zeros_like(active)  # F <= L
    return Entries(active | due, due, interval, frozen * ~due, entries.score, entries.count)

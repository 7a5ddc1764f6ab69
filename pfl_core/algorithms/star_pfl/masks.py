r"""Star-PFL's state machine for every scalar of a model: active, frozen or probing, by how steady its updates are.

Guo et al., "Efficient Personalized Federated Learning on Selective Model Training", ICASSP 2023, Algorithm 2 (Measure
and Check). R the last H updates of an entry, T the threshold, M active, M′ probing, F the waiting time, L the rounds
waited:

    Measure    score = |Σ R| / Σ |R|,   M = 1 where score > T                    0 / 0 = 0, and nothing recorded: M = 1
    Check      M′ = 1 and score ≤ T:  F ← F + 1                                  still steady: ask less often
               M′ = 1 and score > T:  F ← max(1, ⌈F / 2⌉)                        it moves again
               M′ ← (F ≤ L),   L ← 0 where M′ = 1,   M ← M or M′

All of it is elementwise, on [d] or on [N, d]. A record changes only while its entry is active, so Check at a round's
end and Measure at the next one's start see the same; what they need of the record, score and count, is taken once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_core.algorithm import in_checkpoints
from pfl_core.ops import bits, count_true, top_count

LONGEST = 255  # updates in a window: slots and counts take a byte each


@in_checkpoints
@dataclass(frozen=True)
class Window:
    """The last H updates of every entry: a ring each, written only while the entry is active (A5)."""

    values: Tensor  # [..., H, d]; averages in place of a ring have H = 2: of the updates, and of their sizes
    slot: Tensor  # [..., d] uint8, where the next update goes
    count: Tensor  # [..., d] uint8 |R|, updates recorded

    @classmethod
    def empty(cls, like: Tensor, length: int) -> Window:
        """For entries like ``like`` [..., d]."""
        none = torch.zeros_like(like, dtype=torch.uint8)
        return cls(torch.zeros((*like.shape[:-1], length, like.shape[-1])).to(like), none, none.clone())

    def clone(self) -> Window:
        return Window(self.values.clone(), self.slot.clone(), self.count.clone())


@in_checkpoints
@dataclass(frozen=True)
class Entries:
    """What a server or a client remembers of every entry between two rounds; each [d], or [N, d]."""

    active: Tensor  # bool M, as Check left it: entries that are due are thawed already
    probe: Tensor  # bool M′, thawed for the coming round
    interval: Tensor  # int16 F, at least 1; 0 is waited for like 1 (``truncate`` alone stores it)
    frozen: Tensor  # int16 L
    score: Tensor  # float, of the record as it stood when the entry was last active
    count: Tensor  # uint8 |R|, likewise

    @classmethod
    def start(cls, like: Tensor) -> Entries:
        """All active (A1), nothing recorded; for entries like ``like`` [..., d]."""
        zeros = torch.zeros_like(like, dtype=torch.int16)
        off = torch.zeros_like(like, dtype=torch.bool)
        return cls(~off, off, zeros + 1, zeros, torch.zeros_like(like), off.to(torch.uint8))

    @property
    def trained(self) -> Tensor:
        """Bool, M during the round that led here: neither waiting nor thawed just now."""
        return (self.frozen == 0) & ~self.probe


# (score, count, among, frozen) -> bool, which entries are steady; only those in ``among`` will be looked at
Steady = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
HALVED: dict[str, Callable[[Tensor], Tensor]] = {  # F / 2 (A6); F only meets integers, so that ceil changes nothing
    "ceil": lambda interval: (interval + 1) >> 1,
    "floor": lambda interval: (interval >> 1).clamp_min(1),
    "truncate": lambda interval: interval >> 1,  # 1 becomes 0: after the next steady probe F is 1, not 2
}


def stability(window: Window) -> Tensor:
    """|Σ R| / Σ |R|, 0 where all of R is 0; [..., d]. 1: all updates point one way, 0: they cancel."""
    first, *others = window.values.unbind(-2)
    net, path, size = first.clone(), first.abs(), torch.empty_like(first)
    for update in others:
        net += update
        path += torch.abs(update, out=size)
    return _ratio(net, path)


def average_stability(window: Window) -> Tensor:
    """|E| / A of the averages that ``average_`` keeps."""
    net, path = window.values.unbind(-2)
    return _ratio(net.clone(), path.clone())


def _ratio(net: Tensor, path: Tensor) -> Tensor:
    """|net| / path, 0 / 0 = 0; writes into both."""
    limits = torch.finfo(path.dtype)
    return net.abs_().div_(path.clamp_min_(limits.smallest_normal * limits.eps))  # the smallest number above 0


def overwrite_(old: Tensor, where: Tensor, new: Tensor) -> Tensor:
    """old ← new where ``where``, by their bits: twice as fast as ``torch.where``. In place."""
    on = bits(where, old)
    change = old.view(on.dtype).bitwise_xor(new.view(on.dtype)).bitwise_and_(on)
    old.view(on.dtype).bitwise_xor_(change)
    return old


def _is(x: Tensor, value: int) -> Tensor:
    """x == value for bytes; many times as fast."""
    return ~x.bitwise_xor(value).bool()


def push_(window: Window, update: Tensor, where: Tensor) -> None:
    """Record ``update`` [..., d] for the entries in ``where``; the others keep slot, count and contents. In place."""
    length = window.values.shape[-2]
    for h, old in enumerate(window.values.unbind(-2)):
        here = _is(window.slot, h).logical_and_(where)
        if count_true(here):
            overwrite_(old, here, update)
    window.slot.add_(where)
    window.slot.mul_(~_is(window.slot, length))  # after the last slot comes the first
    window.count.add_(where & ~_is(window.count, length))


def average_(window: Window, update: Tensor, where: Tensor, decay: float) -> None:
    """APF's record: E ← a E + (1 − a) u and A ← a A + (1 − a) |u| for the entries in ``where``. In place."""
    for old, value in zip(window.values.unbind(-2), (update, update.abs()), strict=True):
        overwrite_(old, where, torch.lerp(value, old, decay))
    window.count.add_(where & ~_is(window.count, LONGEST))


def measure(entries: Entries, steady: Steady, most: int | None = None) -> Tensor:
    """Algorithm 2, Measure, at a round's start: M of the round. Frozen entries stay frozen, probing ones active.

    ``most``: so many entries [d] may be frozen; of those that would be, the most unstable stay active.
    """
    eligible = entries.active & ~entries.probe
    calm = steady(entries.score, entries.count, eligible, ~entries.active).logical_and_(eligible)
    if most is not None:
        excess = len(calm) - count_true(entries.active) + count_true(calm) - most
        calm = calm & ~top_count(entries.score, calm, excess)
    return entries.active & ~calm


def check(entries: Entries, active: Tensor, steady: Steady, halving: str = "ceil", thaw: bool = True) -> Entries:
    """Algorithm 2, Check, at a round's end, after one more round of waiting for what was not ``active``.

    ``entries`` has the score and count of the round. Without ``thaw`` nothing is ever probed (ours: F = infinity).
    """
    calm = steady(entries.score, entries.count, active, ~active)
    interval = entries.interval + (entries.probe & calm)
    overwrite_(interval, entries.probe & ~calm, HALVED[halving](entries.interval))
    frozen = entries.frozen + ~active
    due = ~(interval.clamp_min(1) - frozen).clamp_min_(0).bool() if thaw else torch.zeros_like(active)  # F <= L
    return Entries(active | due, due, interval, frozen * ~due, entries.score, entries.count)

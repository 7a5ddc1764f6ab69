"""Pure functions on rows: a client is a row of [S, e], a mask a boolean of the same shape.

Sums run row by row into one vector, so that aggregating ten rows of eleven million entries needs two vectors more and
not several gigabytes, and so that a plain mean and a masked mean over the same rows round alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

SAMPLED = 257  # every 257th entry tells where a cut-off lies
BLOCK = 2**16  # entries worked on together where temporaries would leave the cache
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # as wide as a float of that many bytes
ClientRows = Tensor | tuple[Tensor, ...]  # [N, e] as one block, or as a tuple of N rows where N e is large
ABSENT: Any = None  # a tensor that a state or a result may lack; its field is typed as Tensor
T = TypeVar("T")


def bits(mask: Tensor, like: Tensor, room: Tensor | None = None) -> Tensor:
    """A mask as integers of ``like``'s width, all bits set where True: ``keep_`` takes it.

    On a CPU an "and" of bits is many times as fast as ``torch.where`` or ``masked_fill`` with a scattered mask.
    ``room``: what an earlier call returned and is no longer needed, to be written into if it has the mask's shape.
    """
    if room is None or room.shape != mask.shape:
        return mask.to(_INTEGERS[like.element_size()]).neg_()
    return room.copy_(mask).neg_()


def keep_(x: Tensor, on: Tensor) -> Tensor:
    """x where ``on = bits(mask, x)`` is set, 0 elsewhere (even where x is not a number); in place."""
    x.view(on.dtype).bitwise_and_(on)
    return x


def accumulate(total: Tensor, theta: Tensor, share: Tensor) -> Tensor:
    """``total`` [e] + sum_s share_s theta_s, written into ``total``; theta [S, e], share [S]."""
    term = torch.empty_like(total)
    for row, s in zip(theta, share.tolist(), strict=True):
        total += torch.mul(row, s, out=term)
    return total


def mean(theta: Tensor, weight: Tensor | None = None) -> Tensor:
    """sum_k w_k theta_k / sum_k w_k; theta [S, e], weight [S] (default: all equal) -> [e]."""
    return accumulate(torch.zeros_like(theta[0]), theta, normalised(_weights(theta, weight)))


def normalised(weight: Tensor) -> Tensor:
    """weight [S] over its sum, added up one by one as ``masked_mean`` does, so that the two give the same bits."""
    return weight / reduce(add, weight)


def _weights(theta: Tensor, weight: Tensor | None) -> Tensor:
    return torch.ones(len(theta)).to(theta) if weight is None else weight.to(theta)


def masked_mean(theta: Tensor, active: Tensor, weight: Tensor | None, otherwise: Tensor) -> Tensor:
    """sum_k w_k m_kj theta_kj / sum_k w_k m_kj, and ``otherwise`` [e] where no client is active.

    theta [S, e], active [S, e] bool, weight [S] > 0 or None for equal ones. The weights are normalised first, so that a
    lone sharer keeps its bits; an inactive entry counts for nothing even if it is not a number.
    """
    out = torch.empty_like(otherwise)
    for start in range(0, theta.shape[1], BLOCK):  # block by block, so that what is in work stays in the cache
        part = slice(start, start + BLOCK)
        out[part] = _masked_mean(theta[:, part], active[:, part], weight, otherwise[part])
    return out


def _masked_mean(theta: Tensor, active: Tensor, weight: Tensor | None, otherwise: Tensor) -> Tensor:
    weights = _weights(theta, weight)
    total, out, term = (torch.zeros_like(theta[0]) for _ in range(3))
    kept = [bits(mask, theta) for mask in active]
    for w, on in zip(weights.tolist(), kept, strict=True):
        total.sub_(on.to(total.dtype), alpha=w)  # on = -1 where active
    share = 1 / total if weight is None else None
    for w, row, on in zip(weights, theta, kept, strict=True):
        torch.mul(row, w / total if share is None else share, out=term)
        out += keep_(term, on)
    return torch.where(total > 0, out, otherwise)


def mix(matrix: Tensor, theta: Tensor) -> Tensor:
    """Every client its own average: row-stochastic ``matrix`` [N, N] times theta [N, e]."""
    return matrix.to(theta) @ theta


def server_step(old: Tensor, new: Tensor, lr_server: float) -> Tensor:
    """old + lr_server (new - old), each [e]; exactly ``new`` for a step of 1."""
    return torch.lerp(old, new, lr_server)


def take(x: ClientRows, clients: Tensor) -> Tensor:
    """The rows of these clients as a block [S, e]; ``x`` itself if they are all, in order."""
    if not isinstance(x, Tensor):
        return torch.stack([x[k] for k in clients.tolist()])
    return x if _all_of(x, clients) else x[clients]


@overload
def put(x: Tensor, clients: Tensor, rows: Tensor) -> Tensor: ...
@overload
def put(x: tuple[T, ...], clients: Tensor, rows: Iterable[T]) -> tuple[T, ...]: ...
@overload
def put(x: ClientRows, clients: Tensor, rows: Tensor | Sequence[Tensor]) -> ClientRows: ...
def put(x: Any, clients: Tensor, rows: Any) -> Any:
    """``x`` with the rows of these clients replaced, ``x`` itself unchanged; ``rows`` if they are all, in order."""
    if isinstance(x, Tensor):
        rows = rows if isinstance(rows, Tensor) else torch.stack(list(rows))
        if _all_of(x, clients):
            return rows
        out = x.clone()
        out[clients] = rows
        return out
    new = dict(zip(clients.tolist(), rows, strict=True))
    return tuple(new.get(k, row) for k, row in enumerate(x))


def _all_of(x: Tensor, clients: Tensor) -> bool:
    return clients.tolist() == list(range(len(x)))


def select(personal: Tensor, own: Tensor, shared: Tensor) -> Tensor:
    """``own`` where personal, ``shared`` elsewhere, to the bit; own and personal [S, e] or [e], shared [e]."""
    out = own.clone(memory_format=torch.contiguous_format)
    if out.dim() > 1:
        for row, mask, other in zip(out, personal.expand_as(own), shared.expand_as(own), strict=True):
            _put_elsewhere(row, mask, other)
    else:
        _put_elsewhere(out, personal, shared)
    return out


def _put_elsewhere(row: Tensor, mask: Tensor, other: Tensor) -> None:
    """row <- row where mask, other elsewhere: other ^ ((row ^ other) & bits)."""
    for start in range(0, len(row), BLOCK):
        part = slice(start, start + BLOCK)
        on = bits(mask[part], row)
        there = other[part].contiguous().view(on.dtype)
        row[part].view(on.dtype).bitwise_xor_(there).bitwise_and_(on).bitwise_xor_(there)


def count_true(mask: Tensor) -> int:
    """True entries of one mask [e]; many times as fast as ``mask.sum()``, and as a count over rows."""
    return int(np.count_nonzero(mask.numpy()) if mask.device.type == "cpu" else torch.count_nonzero(mask))


def any_true(mask: Tensor) -> bool:
    """Whether the mask has a True entry; looks no further than the first."""
    return bool(mask.numpy().any() if mask.device.type == "cpu" else mask.any())


def differ(x: Tensor, y: Tensor) -> Tensor:
    """Where two vectors [e] are not equal; numpy compares several times as fast."""
    return torch.from_numpy(x.numpy() != y.numpy()) if x.device.type == "cpu" else x != y


def counts_true(masks: Iterable[Tensor]) -> Tensor:
    """[S] True entries of each mask: of a block [S, e], or of S masks one after the other."""
    return torch.tensor([count_true(mask) for mask in masks])


def top_count(score: Tensor, among: Tensor, count: int) -> Tensor:
    """Bool mask of the ``count`` largest scores among the True entries of ``among``; ties: lower index first.

    score [d], among [d] bool; not-a-number ranks first, so that a diverged entry cannot hide. All of ``among`` if it
    has no more than ``count`` entries.
    """
    total = count_true(among)
    if count >= total:
        return among.clone()
    if count <= 0:
        return torch.zeros_like(among)
    x, where = score.cpu().numpy(), among.cpu().numpy()  # numpy compares, finds and partitions several times as fast
    out, index = _between(x, where, *_bracket(x, where, count / total))
    missing = count - np.count_nonzero(out)
    if not 0 <= missing <= len(index):  # the sample misled, or ties fill the bracket: look at all
        out, index, missing = np.zeros_like(where), np.flatnonzero(where), count
    if missing:
        values = np.nan_to_num(x[index], copy=False, nan=np.inf)
        place = len(values) - missing
        threshold = np.partition(values, place)[place]
        above = index[values > threshold]
        out[above] = True
        out[index[values == threshold][: missing - len(above)]] = True
    return torch.from_numpy(out).to(among.device)


def _bracket(x: np.ndarray, where: np.ndarray, share: float) -> tuple[float, float]:
    """Two values that most likely lie on either side of the cut-off above which ``share`` of x[where] lies."""
    sample = np.sort(np.nan_to_num(x[::SAMPLED][where[::SAMPLED]], copy=False, nan=np.inf))[::-1]
    expected = share * len(sample)
    margin = 4 * math.sqrt(expected) + 1
    last, first = math.ceil(expected + margin), math.floor(expected - margin)
    return float(sample[last]) if last < len(sample) else -math.inf, float(sample[first]) if first >= 0 else math.inf


def _between(x: np.ndarray, where: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Within ``where``: a mask of what reaches ``high`` (or is not a number), indices of what reaches only ``low``."""
    out, found = np.empty_like(where), []
    for start in range(0, len(x), BLOCK):
        part = slice(start, start + BLOCK)
        values, here, reached = x[part], where[part], out[part]
        np.logical_not(np.less(values, high, out=reached), out=reached)
        reached &= here
        only_low = ~np.less(values, low)
        only_low &= here
        only_low ^= reached
        found.append(np.flatnonzero(only_low) + start)
    return out, np.concatenate(found)


def round_half_up(x: float) -> int:
    """floor(x + 0.5): the rounding that the papers' counts use (Python's round() goes to even)."""
    return math.floor(x + 0.5)

"""Tensor operations on rows: a client is a row of [S, e], a mask is a boolean tensor of the same shape.

Sums are accumulated row by row in one vector. So an aggregation needs two extra vectors [e], not a second [S, e], and
``mean`` and ``masked_mean`` of the same rows round equally.
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

SAMPLED = 257  # top_count estimates its threshold from every 257th entry
BLOCK = 2**16  # entries in a block; its temporaries stay in the cache
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # bytes of a float -> integer type of the same size
ClientRows = Tensor | tuple[Tensor, ...]  # [N, e] as one block, or as a tuple of N rows where N e is large
ABSENT: Any = None  # a tensor that a state or a result may lack; its field is typed as Tensor
T = TypeVar("T")


def bits(mask: Tensor, like: Tensor, out: Tensor | None = None) -> Tensor:
    """The mask as integers as wide as ``like``'s floats: all bits are 1 where True and 0 where False. For ``keep_``.

    On a CPU, a bitwise "and" is many times faster than ``torch.where`` or ``masked_fill`` with an irregular mask.
    ``out``: the result of an earlier call, overwritten if it has the mask's shape.
    """
    if out is None or out.shape != mask.shape:
        return mask.to(_INTEGERS[like.element_size()]).neg_()  # -1 has all bits set
    return out.copy_(mask).neg_()


def keep_(x: Tensor, mask_bits: Tensor) -> Tensor:
    """x where ``mask_bits = bits(mask, x)`` is set, 0 elsewhere (even where x is NaN); in place."""
    x.view(mask_bits.dtype).bitwise_and_(mask_bits)
    return x


def accumulate(total: Tensor, theta: Tensor, share: Tensor) -> Tensor:
    """total <- total + sum_s share_s theta_s, in place; total [e], theta [S, e], share [S]."""
    term = torch.empty_like(total)
    for row, s in zip(theta, share.tolist(), strict=True):
        total += torch.mul(row, s, out=term)
    return total


def mean(theta: Tensor, weight: Tensor | None = None) -> Tensor:
    """sum_k w_k theta_k / sum_k w_k; theta [S, e], weight [S] (default: all equal) -> [e]."""
    return accumulate(torch.zeros_like(theta[0]), theta, normalised(_weights(theta, weight)))


def normalised(weight: Tensor) -> Tensor:
    """weight [S] / sum. The sum runs in order, as in ``masked_mean``, so that both give bitwise equal results."""
    return weight / reduce(add, weight)


def _weights(theta: Tensor, weight: Tensor | None) -> Tensor:
    return torch.ones(len(theta)).to(theta) if weight is None else weight.to(theta)


def masked_mean(theta: Tensor, active: Tensor, weight: Tensor | None, otherwise: Tensor) -> Tensor:
    """sum_k w_k m_kj theta_kj / sum_k w_k m_kj, and ``otherwise`` [e] where no client is active.

    theta [S, e], active [S, e] bool, weight [S] > 0 or None for equal weights. The weights are normalised first, so
    that an entry with one active client is bitwise unchanged. Inactive entries are ignored even if they are NaN.
    """
    out = torch.empty_like(otherwise)
    for start in range(0, theta.shape[1], BLOCK):  # in blocks, so that temporaries stay in the cache
        part = slice(start, start + BLOCK)
        out[part] = _masked_mean(theta[:, part], active[:, part], weight, otherwise[part])
    return out


def _masked_mean(theta: Tensor, active: Tensor, weight: Tensor | None, otherwise: Tensor) -> Tensor:
    weights = _weights(theta, weight)
    out, term = torch.zeros_like(theta[0]), torch.empty_like(theta[0])
    masks = [bits(mask, theta) for mask in active]  # -1 where active, else 0
    if weight is None:
        total = torch.zeros_like(masks[0])
        for mask in masks:
            total.sub_(mask)  # the number of active clients
        total = total.to(out.dtype)
    else:
        total = torch.zeros_like(out)
        for w, mask in zip(weights.tolist(), masks, strict=True):
            total.sub_(mask.to(total.dtype), alpha=w)  # total = sum_k w_k m_k
    share = 1 / total if weight is None else None  # equal weights: the same share for all clients
    for w, row, mask in zip(weights, theta, masks, strict=True):
        torch.mul(row, w / total if share is None else share, out=term)
        out += keep_(term, mask)  # out = sum_k m_k theta_k w_k / total
    return torch.where(total > 0, out, otherwise)


def mix(matrix: Tensor, theta: Tensor) -> Tensor:
    """A weighted average for each client: ``matrix`` [N, N], whose rows sum to 1, times theta [N, e]."""
    return matrix.to(theta) @ theta


def server_step(old: Tensor, new: Tensor, lr_server: float) -> Tensor:
    """old + lr_server (new - old), each [e]; exactly ``new`` for a step of 1."""
    return torch.lerp(old, new, lr_server)


def take(x: ClientRows, clients: Tensor) -> Tensor:
    """The rows of ``clients`` as one block [S, e]; ``x`` itself if these are all clients in order."""
    if not isinstance(x, Tensor):
        return torch.stack([x[k] for k in clients.tolist()])
    return x if _all_of(x, clients) else x[clients]


@overload
def put(x: Tensor, clients: Tensor, rows: Tensor) -> Tensor: ...
@overload
def put(x: tuple[T, ...], clients: Tensor, rows: Iterable[T]) -> tuple[T, ...]: ...  # type: ignore[overload-overlap]
@overload
def put(x: ClientRows, clients: Tensor, rows: Tensor | Sequence[Tensor]) -> ClientRows: ...
def put(x: Any, clients: Tensor, rows: Any) -> Any:
    """A copy of ``x`` with the rows of ``clients`` replaced; ``rows`` itself if these are all clients in order."""
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
    """Whether ``clients`` are all rows of x in order."""
    return clients.tolist() == list(range(len(x)))


def select(personal: Tensor, local: Tensor, shared: Tensor, *, in_place: bool = False) -> Tensor:
    """``local`` where personal, ``shared`` elsewhere, bitwise exact; local and personal [S, e] or [e], shared [e].

    ``in_place``: write into ``local``.
    """
    out = local if in_place else local.clone(memory_format=torch.contiguous_format)
    if out.dim() > 1:
        for row, mask, other in zip(out, personal.expand_as(local), shared.expand_as(local), strict=True):
            _put_elsewhere(row, mask, other)
    else:
        _put_elsewhere(out, personal, shared)
    return out


def _put_elsewhere(row: Tensor, mask: Tensor, other: Tensor) -> None:
    """row <- row where mask, other elsewhere; in place."""
    for start in range(0, len(row), BLOCK):
        part = slice(start, start + BLOCK)
        mask_bits = bits(mask[part], row)
        other_bits = other[part].contiguous().view(mask_bits.dtype)
        # ((row ^ other) & mask) ^ other
        row[part].view(mask_bits.dtype).bitwise_xor_(other_bits).bitwise_and_(mask_bits).bitwise_xor_(other_bits)


def count_true(mask: Tensor) -> int:
    """Number of True entries of a mask [e]; many times faster than ``mask.sum()``."""
    return int(np.count_nonzero(mask.numpy()) if mask.device.type == "cpu" else torch.count_nonzero(mask))


def any_true(mask: Tensor) -> bool:
    """Whether the mask has a True entry."""
    return bool(mask.numpy().any() if mask.device.type == "cpu" else mask.any())


def differ(x: Tensor, y: Tensor) -> Tensor:
    """Bool [e], True where two vectors differ; NumPy compares several times faster than torch."""
    return torch.from_numpy(x.numpy() != y.numpy()) if x.device.type == "cpu" else x != y


def counts_true(masks: Iterable[Tensor]) -> Tensor:
    """Number of True entries of each mask, [S]; ``masks`` is a block [S, e] or any iterable of S masks."""
    return torch.tensor([count_true(mask) for mask in masks])


def top_count(score: Tensor, among: Tensor, count: int) -> Tensor:
    """Mask of the ``count`` largest scores among the True entries of ``among``; ties: lower index first.

    score [d], among [d] bool -> [d] bool. NaN counts as the largest score, so that diverged entries are selected.
    Returns all of ``among`` if it has at most ``count`` entries.
    """
    total = count_true(among)
    if count >= total:
        return among.clone()
    if count <= 0:
        return torch.zeros_like(among)
    x, where = score.cpu().numpy(), among.cpu().numpy()  # several times faster than torch for these operations
    # A sample brackets the threshold: scores above the bracket are selected, those inside it are compared exactly.
    out, index = _between(x, where, *_bracket(x, where, count / total))
    missing = count - int(np.count_nonzero(out))
    if not 0 <= missing <= len(index):  # the threshold lies outside the bracket: compare all scores
        out, index, missing = np.zeros_like(where), np.flatnonzero(where), count
    if missing:
        values = np.nan_to_num(x[index], copy=False, nan=np.inf)
        position = len(values) - missing
        threshold = np.partition(values, position)[position]
        above = index[values > threshold]
        out[above] = True
        out[index[values == threshold][: missing - len(above)]] = True
    return torch.from_numpy(out).to(among.device)


def _bracket(x: np.ndarray, where: np.ndarray, share: float) -> tuple[float, float]:
    """(low, high): the threshold above which a fraction ``share`` of x[where] lies is most likely between them."""
    sample = np.sort(np.nan_to_num(x[::SAMPLED][where[::SAMPLED]], copy=False, nan=np.inf))[::-1]
    expected = share * len(sample)
    margin = 4 * math.sqrt(expected) + 1  # four standard deviations of the rank in the sample
    last, first = math.ceil(expected + margin), math.floor(expected - margin)
    return float(sample[last]) if last < len(sample) else -math.inf, float(sample[first]) if first >= 0 else math.inf


def _between(x: np.ndarray, where: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Within ``where``: the mask of values >= ``high`` or NaN, and the indices of values in [``low``, ``high``)."""
    out, indices = np.empty_like(where), []
    for start in range(0, len(x), BLOCK):
        part = slice(start, start + BLOCK)
        values, here, above = x[part], where[part], out[part]
        np.logical_not(np.less(values, high, out=above), out=above)  # not (x < high): True for NaN as well
        above &= here
        inside = ~np.less(values, low)
        inside &= here
        inside ^= above
        indices.append(np.flatnonzero(inside) + start)
    return out, np.concatenate(indices)


def round_half_up(x: float) -> int:
    """floor(x + 0.5), the rounding of the papers' counts; Python's round() rounds halves to even."""
    return math.floor(x + 0.5)

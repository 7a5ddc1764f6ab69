"""Pure functions on rows: a client is a row of [S, e], a mask a boolean of the same shape.

Sums run row by row into one vector, so that aggregating ten rows of eleven million entries needs two vectors more and
not several gigabytes, and so that a plain mean and a masked mean over the same rows round alike.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import add

import torch
from torch import Tensor

Rows = Tensor | tuple[Tensor, ...]  # [N, e] as one block, or as a sequence of rows where N e is large


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
    weight = _weights(theta, weight).tolist()
    total, out, share = (torch.zeros_like(theta[0]) for _ in range(3))
    for w, mask in zip(weight, active, strict=True):
        total.add_(mask, alpha=w)
    for w, row, mask in zip(weight, theta, active, strict=True):
        torch.div(total.new_tensor(w), total, out=share)
        out += share.mul_(row).masked_fill_(~mask, 0.0)
    return torch.where(total > 0, out, otherwise)


def mix(matrix: Tensor, theta: Tensor) -> Tensor:
    """Every client its own average: row-stochastic ``matrix`` [N, N] times theta [N, e]."""
    return matrix.to(theta) @ theta


def server_step(old: Tensor, new: Tensor, lr_server: float) -> Tensor:
    """old + lr_server (new - old), each [e]; exactly ``new`` for a step of 1."""
    return torch.lerp(old, new, lr_server)


def take(x: Rows, clients: Tensor) -> Tensor:
    """The rows of these clients as a block [S, e]."""
    return x[clients] if isinstance(x, Tensor) else torch.stack([x[k] for k in clients.tolist()])


def put(x: Rows, clients: Tensor, rows: Tensor) -> Rows:
    """A copy of ``x`` with the rows of these clients replaced."""
    if isinstance(x, Tensor):
        out = x.clone()
        out[clients] = rows
        return out
    new = dict(zip(clients.tolist(), rows, strict=True))
    return tuple(new.get(k, row) for k, row in enumerate(x))


def select(personal: Tensor, own: Tensor, shared: Tensor) -> Tensor:
    """``own`` where personal, ``shared`` elsewhere; personal [S, e] or [e], own [S, e], shared [e]."""
    return torch.where(personal, own, shared)


def top_count(score: Tensor, among: Tensor, count: int) -> Tensor:
    """Bool mask of the ``count`` largest scores among the True entries of ``among``; ties: lower index first.

    score [d], among [d] bool; not-a-number ranks first, so that a diverged entry cannot hide. All of ``among`` if it
    has no more than ``count`` entries.
    """
    index = among.nonzero().squeeze(1)
    if count >= len(index):
        return among.clone()
    out = torch.zeros_like(among)
    if count <= 0:
        return out
    values = torch.nan_to_num(score[index], nan=torch.inf)
    threshold = torch.kthvalue(values, len(values) - count + 1).values
    above = values > threshold
    out[index[above]] = True
    out[index[(values == threshold).nonzero().squeeze(1)[: count - int(above.sum())]]] = True
    return out


def round_half_up(x: float) -> int:
    """floor(x + 0.5): the rounding that the papers' counts use (Python's round() goes to even)."""
    return math.floor(x + 0.5)

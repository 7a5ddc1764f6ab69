r"""pFedGate's block selection as a 0/1 knapsack problem.

    maximise Σ_b v_b I_b   subject to   Σ_b w_b I_b ≤ capacity,   I_b ∈ {0, 1}

v are integer importances and w are block sizes. ``exact`` decides most items by a bound and solves the rest by dynamic
programming over values. ``greedy`` takes items in order of decreasing importance, as the released code does.
"""

from __future__ import annotations

import numpy as np

UNREACHED = np.int64(2**62)


def exact(value: np.ndarray, size: np.ndarray, capacity: int) -> np.ndarray:
    """The optimal selection, bool [n]. Ties: the smaller total size, then the lower indices.

    value [n] int >= 0, size [n] int >= 1, capacity >= 0.
    """
    taken, undecided = _decided(value, size, capacity)
    items = np.flatnonzero(undecided)
    if len(items):
        taken[items] = _by_value(value[items], size[items], capacity - int(size[taken].sum()))
    return taken


def _decided(value: np.ndarray, size: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Items that are in every optimal selection, and items that are undecided; bool [n] each. All others are in none.

    For a price e per entry, the value of any selection is at most U = e capacity + Σ max(0, v - e w). If a selection
    takes item b with v_b < e w_b, or leaves out item b with v_b > e w_b, its value is at most U - |v_b - e w_b|. Where
    this is below the value of a known (greedy) selection, item b is decided. Equality decides nothing, so ties are left
    to ``_by_value``.
    """
    order = np.argsort(-value / size, kind="stable")
    fits = np.cumsum(size[order]) <= capacity
    if fits.all():
        return value > 0, np.zeros(len(value), dtype=bool)
    critical = order[np.argmin(fits)]  # the first item that does not fit sets the price
    gain = value - size * (value[critical] / size[critical])  # v - e w
    bound = (capacity * value[critical]) / size[critical] + np.maximum(gain, 0.0).sum()  # U
    known = value[fill(order, size, capacity)].sum()
    undecided = bound - np.abs(gain) >= known - 1e-6  # values are integers, so the tolerance only absorbs rounding
    return (gain > 0) & ~undecided, undecided


def _by_value(value: np.ndarray, size: np.ndarray, capacity: int) -> np.ndarray:
    """Dynamic programming: min_size[v] is the smallest size of a selection with value exactly v."""
    top = int(value.sum())
    min_size = np.full(top + 1, UNREACHED)
    min_size[0] = 0
    takes = np.zeros((len(value), top + 1), dtype=bool)  # whether the selection with value v takes item i
    reach = 0  # total value of the items so far
    for i in range(len(value) - 1, -1, -1):
        v, reach = int(value[i]), reach + int(value[i])
        with_item = min_size[: reach + 1 - v] + size[i]
        np.less_equal(with_item, min_size[v : reach + 1], out=takes[i, v : reach + 1])
        np.minimum(with_item, min_size[v : reach + 1], out=min_size[v : reach + 1])
    remaining = int(np.flatnonzero(min_size <= capacity)[-1])  # the largest value that fits
    taken = np.zeros(len(value), dtype=bool)
    for i, v in enumerate(value.tolist()):  # from the first item, so that ties go to the lower index
        if takes[i, remaining] and v > 0:
            taken[i], remaining = True, remaining - v
    return taken


def greedy(value: np.ndarray, size: np.ndarray, capacity: int) -> np.ndarray:
    """Take items in order of decreasing value and skip those that no longer fit, bool [n]; ties: lower index first."""
    taken = np.zeros(len(value), dtype=bool)
    taken[fill(np.argsort(-value, kind="stable"), size, capacity)] = True
    return taken


def fill(order: np.ndarray, size: np.ndarray, capacity: int) -> np.ndarray:
    """The items taken if those in ``order`` (indices) are tried one after the other and each that fits is taken.

    Vectorised: all items up to the next one that must be skipped are taken at once.
    """
    parts = [order[:0]]
    while len(order):
        order = order[size[order] <= capacity]
        num_taken = int(np.searchsorted(np.cumsum(size[order]), capacity, side="right"))
        parts.append(order[:num_taken])
        capacity -= int(size[parts[-1]].sum())
        order = order[num_taken:]
    return np.concatenate(parts)

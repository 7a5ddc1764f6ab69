r"""Which blocks pFedGate keeps: specification section 4.4.

    maximise Σ_b v_b I_b   subject to   Σ_b w_b I_b ≤ capacity,   I_b ∈ {0, 1}

v are integer importances, w block sizes. ``exact`` is a dynamic programme over values, after most items have been
decided by a bound; ``greedy`` goes by falling importance, as the released code does.
"""

from __future__ import annotations

import numpy as np

UNREACHED = np.int64(2**62)


def exact(value: np.ndarray, size: np.ndarray, capacity: int) -> np.ndarray:
    """The best selection, bool [n]; of equal values the smaller one, then the one with lower indices.

    value [n] int >= 0, size [n] int >= 1, capacity >= 0.
    """
    taken, open_ = _decided(value, size, capacity)
    items = np.flatnonzero(open_)
    if len(items):
        taken[items] = _by_value(value[items], size[items], capacity - int(size[taken].sum()))
    return taken


def _decided(value: np.ndarray, size: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Items that every best selection takes, and those still open; the others are in none; bool [n] each.

    With a price e per entry, no selection is worth more than U = e capacity + Σ max(0, v - e w), nor more than
    U - |v_b - e w_b| where item b is decided against its price. If that is less than a selection at hand is worth,
    the price was right. Equal worth decides nothing, so that ties are left to ``_by_value``.
    """
    order = np.argsort(-value / size, kind="stable")
    fits = np.cumsum(size[order]) <= capacity
    if fits.all():
        return value > 0, np.zeros(len(value), dtype=bool)
    last = order[np.argmin(fits)]  # the first that does not fit sets the price
    gain = value - size * (value[last] / size[last])
    bound = (capacity * value[last]) / size[last] + np.maximum(gain, 0.0).sum()
    at_hand = value[fill(order, size, capacity)].sum()
    open_ = bound - np.abs(gain) >= at_hand - 1e-6  # so far from a whole number that rounding cannot matter
    return (gain > 0) & ~open_, open_


def _by_value(value: np.ndarray, size: np.ndarray, capacity: int) -> np.ndarray:
    """Dynamic programme: least[v] = smallest size of a selection worth exactly v; from the last item to the first."""
    top = int(value.sum())
    least = np.full(top + 1, UNREACHED)
    least[0] = 0
    better = np.zeros((len(value), top + 1), dtype=bool)  # whether a selection worth v begins with this item
    reach = 0  # worth of the items seen so far
    for i in range(len(value) - 1, -1, -1):
        v, reach = int(value[i]), reach + int(value[i])
        with_it = least[: reach + 1 - v] + size[i]
        np.less_equal(with_it, least[v : reach + 1], out=better[i, v : reach + 1])
        np.minimum(with_it, least[v : reach + 1], out=least[v : reach + 1])
    at = int(np.flatnonzero(least <= capacity)[-1])
    taken = np.zeros(len(value), dtype=bool)
    for i, v in enumerate(value.tolist()):  # forwards, taking a lower index where both ways are as good
        if better[i, at] and v > 0:
            taken[i], at = True, at - v
    return taken


def greedy(value: np.ndarray, size: np.ndarray, capacity: int) -> np.ndarray:
    """By falling value, whatever the size: an item that fits is taken, another is skipped; ties: lower index first."""
    taken = np.zeros(len(value), dtype=bool)
    taken[fill(np.argsort(-value, kind="stable"), size, capacity)] = True
    return taken


def fill(order: np.ndarray, size: np.ndarray, capacity: int) -> np.ndarray:
    """The items taken if each in turn is taken that still fits; ``order`` are indices of items.

    Not item by item: all that fit one after the other are taken at once, up to the next that has to be skipped.
    """
    parts = [order[:0]]
    while len(order):
        order = order[size[order] <= capacity]
        together = int(np.searchsorted(np.cumsum(size[order]), capacity, side="right"))
        parts.append(order[:together])
        capacity -= int(size[parts[-1]].sum())
        order = order[together:]
    return np.concatenate(parts)

"""How much clients' masks have in common: intersection over union, three ways, and whether labels explain it.

FedSelect, Figure 4; its specification's section 9 ("Mask overlap").
"""

from __future__ import annotations

from functools import cache

import numpy as np

from pfl_core.seeding import numpy_generator


def iou_raw(both: np.ndarray) -> np.ndarray:
    """|m_i and m_j| / |m_i or m_j| from the counts in common [N, N] (their diagonal is |m_i|).

    Two empty masks give NaN; the diagonal is 1.
    """
    size = np.diag(both)
    union = size[:, None] + size[None, :] - both
    ratio = np.divide(both, union, out=np.full(both.shape, np.nan), where=union > 0)
    np.fill_diagonal(ratio, 1.0)
    return ratio


def iou_minmax(both: np.ndarray) -> np.ndarray:
    """(IoU - min) / (max - min) over the pairs of one matrix; 0 if they are all alike. Our reading of "normalized"."""
    ratio = iou_raw(both)
    pairs = ratio[~np.eye(len(ratio), dtype=bool)]
    if np.isnan(pairs).all():
        return ratio
    low, high = np.nanmin(pairs), np.nanmax(pairs)
    scaled = (ratio - low) / (high - low) if high > low else np.where(np.isnan(ratio), np.nan, 0.0)
    np.fill_diagonal(scaled, 1.0)
    return scaled


def iou_chance(both: np.ndarray, entries: int) -> np.ndarray:
    """(IoU - E) / (1 - E), where E is what random masks of the same densities would have; 0 = chance, 1 = the same.

    Raw overlap grows with the personalization limit by density alone; use this one for numbers.
    """
    density = np.diag(both) / entries
    product = density[:, None] * density[None, :]
    total = density[:, None] + density[None, :] - product
    expected = np.divide(product, total, out=np.full(both.shape, np.nan), where=total > 0)
    room = 1 - expected
    ratio = iou_raw(both)
    scaled = np.divide(ratio - expected, room, out=np.zeros(both.shape), where=room > 1e-12)
    scaled[np.isnan(ratio)] = np.nan
    np.fill_diagonal(scaled, 1.0)
    return scaled


def common_classes(counts: np.ndarray) -> np.ndarray:
    """[N, N] bool from class counts [N, C]: do two clients hold samples of one class?"""
    held = np.asarray(counts) > 0
    return (held[:, None, :] & held[None, :, :]).any(2)


def contrast(matrix: np.ndarray, common: np.ndarray, draws: int = 1000, seed: int = 0) -> tuple[float, float]:
    """Mean over pairs with a common class minus mean over pairs without, and its permutation p-value (one-sided).

    Client labels are permuted ``draws`` times; the p-value counts the observed labelling as one more draw. NaN where
    one of the two groups has no pair.
    """
    i, j = np.triu_indices(len(matrix), 1)
    usable = ~np.isnan(matrix[i, j])
    i, j = i[usable], j[usable]
    orders = _relabellings(len(matrix), draws, seed)
    together = common[orders[:, i], orders[:, j]]  # [1 + draws, pairs]
    groups = together.sum(1), (~together).sum(1)
    if len(i) == 0 or min(groups[0][0], groups[1][0]) == 0:
        return np.nan, np.nan
    values = matrix[i, j]
    with np.errstate(invalid="ignore", divide="ignore"):
        differences = together @ values / groups[0] - ~together @ values / groups[1]
    differences = differences[~np.isnan(differences)]
    return float(differences[0]), float((differences >= differences[0] - 1e-12).mean())


@cache
def _relabellings(clients: int, draws: int, seed: int) -> np.ndarray:
    """[1 + draws, clients]: the order as it is, then permutations of it; the same for every matrix of one size."""
    stream = numpy_generator(seed, "overlap", "permutation")
    return np.array([np.arange(clients), *(stream.permutation(clients) for _ in range(draws))])

"""How much clients have in common, in their masks or gates, and whether their labels explain it.

Masks: intersection over union, three ways (FedSelect, Figure 4; its specification's section 9, "Mask overlap"). Scores
(Star-PFL, Figure 2): see ``pfl_core.ranks``. Gates: distances (pFedGate, Figure 4).
"""

from __future__ import annotations

from functools import cache

import numpy as np

from pfl_core.ranks import ranks_of
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
    expected = iou_expected(both, entries)
    room = 1 - expected
    ratio = iou_raw(both)
    scaled = np.divide(ratio - expected, room, out=np.zeros(both.shape), where=room > 1e-12)
    scaled[np.isnan(ratio)] = np.nan
    np.fill_diagonal(scaled, 1.0)
    return scaled


def iou_expected(both: np.ndarray, entries: int) -> np.ndarray:
    """E, the IoU of random masks of the same densities [N, N]; NaN for two empty masks."""
    density = np.diag(both) / entries
    product = density[:, None] * density[None, :]
    total = density[:, None] + density[None, :] - product
    return np.divide(product, total, out=np.full(both.shape, np.nan), where=total > 0)


def common_classes(counts: np.ndarray) -> np.ndarray:
    """[N, N] bool from class counts [N, C]: do two clients hold samples of one class?"""
    held = np.asarray(counts) > 0
    return (held[:, None, :] & held[None, :, :]).any(2)


def label_distance(counts: np.ndarray) -> np.ndarray:
    """[N, N] total variation between clients' label distributions, from class counts [N, C]; 0 alike, 1 disjoint."""
    share = np.asarray(counts) / np.sum(counts, axis=1, keepdims=True)
    return np.abs(share[:, None, :] - share[None, :, :]).sum(2) / 2


def mantel(
    matrix: np.ndarray,
    other: np.ndarray,
    draws: int = 1000,
    seed: int = 0,
    *,
    ranks: bool = False,
    two_sided: bool = False,
) -> tuple[float, float]:
    """Correlation of two symmetric [N, N] over pairs of clients, and its permutation p-value (one-sided: above 0).

    ``ranks``: Spearman's. Pairs are not independent of each other, so clients of ``other`` are relabelled as a whole,
    as in ``contrast``. NaN where one of the two does not vary.
    """
    i, j = np.triu_indices(len(matrix), 1)
    moved = other.astype(float)
    if ranks:
        moved = np.zeros(other.shape)
        moved[i, j] = moved[j, i] = ranks_of(other[i, j])
    usable = ~np.isnan(matrix[i, j])
    i, j = i[usable], j[usable]
    orders = _relabellings(len(matrix), draws, seed)
    values, others = matrix[i, j], moved[orders[:, i], orders[:, j]]  # [pairs], [1 + draws, pairs]
    if len(i) < 2 or np.ptp(values) == 0 or np.ptp(others[0]) == 0:
        return np.nan, np.nan
    values = ranks_of(values) if ranks else values
    values, others = values - values.mean(), others - others.mean(1, keepdims=True)
    spread = np.sqrt((values**2).sum() * (others**2).sum(1))
    found = np.divide(others @ values, spread, out=np.zeros(len(others)), where=spread > 0)
    reached = (np.abs(found) if two_sided else found) >= (abs(found[0]) if two_sided else found[0]) - 1e-12
    return float(found[0]), float(reached.mean())


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


def common_share(held: np.ndarray) -> np.ndarray:
    """[N, N] labels that two clients both hold over those that one of them holds; ``held`` bool [N, C]."""
    held = np.asarray(held, dtype=float)
    return iou_raw(held @ held.T)


def neighbours(likeness: np.ndarray, draws: int = 1000, seed: int = 0) -> tuple[float, float, float]:
    """Mean likeness [N, N] of clients next to each other in the order given, of all pairs, and a p-value (one-sided).

    The p-value counts random orders, and the given one, with neighbours at least as much alike.
    """
    orders = _relabellings(len(likeness), draws, seed)
    found = likeness[orders[:, :-1], orders[:, 1:]].mean(1)
    pairs = likeness[np.triu_indices(len(likeness), 1)]
    return float(found[0]), float(pairs.mean()), float((found >= found[0] - 1e-12).mean())


@cache
def _relabellings(clients: int, draws: int, seed: int) -> np.ndarray:
    """[1 + draws, clients]: the order as it is, then permutations of it; the same for every matrix of one size."""
    stream = numpy_generator(seed, "overlap", "permutation")
    return np.array([np.arange(clients), *(stream.permutation(clients) for _ in range(draws))])


def ward(distances: np.ndarray) -> dict[str, list]:
    """Ward's clustering of Euclidean distances [N, N], as scipy draws it: ``leaves``, and ``icoord``, ``dcoord``."""
    from scipy.cluster.hierarchy import dendrogram, linkage

    return dendrogram(linkage(distances[np.triu_indices(len(distances), 1)], "ward"), no_plot=True)

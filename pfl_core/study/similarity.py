"""Similarity of clients' masks or gates, and whether their labels explain it.

Masks: intersection over union with three normalizations (FedSelect, Figure 4). Scores (Star-PFL, Figure 2): see
``pfl_core.ranks``. Gates: distances (pFedGate, Figure 4).
"""

from __future__ import annotations

from functools import cache

import numpy as np

from pfl_core.ranks import ranks_of
from pfl_core.seeding import numpy_generator

DRAWS = 1000  # permutations of a test


def iou_raw(intersection: np.ndarray) -> np.ndarray:
    """IoU |m_i ∩ m_j| / |m_i ∪ m_j| from the intersections |m_i ∩ m_j| [N, N], whose diagonal is |m_i|.

    NaN for two empty masks; the diagonal is 1.
    """
    size = np.diag(intersection)
    union = size[:, None] + size[None, :] - intersection
    ratio = np.divide(intersection, union, out=np.full(intersection.shape, np.nan), where=union > 0)
    np.fill_diagonal(ratio, 1.0)
    return ratio


def iou_minmax(intersection: np.ndarray) -> np.ndarray:
    """(IoU - min) / (max - min) over the pairs of one matrix; 0 if all pairs are equal.

    This is the project's interpretation of "normalized" in the paper.
    """
    ratio = iou_raw(intersection)
    pairs = ratio[~np.eye(len(ratio), dtype=bool)]
    if np.isnan(pairs).all():
        return ratio
    low, high = np.nanmin(pairs), np.nanmax(pairs)
    scaled = (ratio - low) / (high - low) if high > low else np.where(np.isnan(ratio), np.nan, 0.0)
    np.fill_diagonal(scaled, 1.0)
    return scaled


def iou_chance(intersection: np.ndarray, entries: int) -> np.ndarray:
    """Chance-corrected IoU (IoU - E) / (1 - E), with E the IoU of random masks of the same densities.

    0 is chance level, 1 are equal masks. Raw IoU grows with the density of the masks, so numbers are reported with this
    correction. ``entries``: size of the masks.
    """
    expected = iou_expected(intersection, entries)
    maximum = 1 - expected
    ratio = iou_raw(intersection)
    scaled = np.divide(ratio - expected, maximum, out=np.zeros(intersection.shape), where=maximum > 1e-12)
    scaled[np.isnan(ratio)] = np.nan
    np.fill_diagonal(scaled, 1.0)
    return scaled


def iou_expected(intersection: np.ndarray, entries: int) -> np.ndarray:
    """IoU of random masks with densities p_i: p_i p_j / (p_i + p_j - p_i p_j) [N, N]; NaN for two empty masks."""
    density = np.diag(intersection) / entries
    product = density[:, None] * density[None, :]
    total = density[:, None] + density[None, :] - product
    return np.divide(product, total, out=np.full(intersection.shape, np.nan), where=total > 0)


def common_classes(counts: np.ndarray) -> np.ndarray:
    """[N, N] bool: whether two clients have samples of a common class, from class counts [N, C]."""
    held = np.asarray(counts) > 0
    return np.asarray((held[:, None, :] & held[None, :, :]).any(2))


def label_distance(counts: np.ndarray) -> np.ndarray:
    """[N, N] total variation distance of label distributions, from class counts [N, C]; 0 equal, 1 disjoint."""
    share = np.asarray(counts) / np.sum(counts, axis=1, keepdims=True)
    return np.abs(share[:, None, :] - share[None, :, :]).sum(2) / 2


def mantel(
    matrix: np.ndarray,
    other: np.ndarray,
    draws: int = DRAWS,
    *,
    ranks: bool = False,
    two_sided: bool = False,
) -> tuple[float, float]:
    """Mantel test: correlation of two symmetric matrices [N, N] over pairs of clients, and its permutation p-value.

    The p-value is one-sided (correlation above 0) unless ``two_sided``. ``ranks``: Spearman's correlation instead of
    Pearson's. Pairs are not independent, so whole clients of ``other`` are permuted, as in ``contrast``. NaN if one of
    the matrices is constant.
    """
    i, j = np.triu_indices(len(matrix), 1)
    second = other.astype(float)
    if ranks:
        second = np.zeros(other.shape)
        second[i, j] = second[j, i] = ranks_of(other[i, j])
    usable = ~np.isnan(matrix[i, j])
    i, j = i[usable], j[usable]
    orders = _permutations(len(matrix), draws)
    values, permuted = matrix[i, j], second[orders[:, i], orders[:, j]]  # [pairs], [1 + draws, pairs]
    if len(i) < 2 or np.ptp(values) == 0 or np.ptp(permuted[0]) == 0:
        return np.nan, np.nan
    values = ranks_of(values) if ranks else values
    # Pearson's correlation for each permutation; the first is the observed order
    values, permuted = values - values.mean(), permuted - permuted.mean(1, keepdims=True)
    norms = np.sqrt((values**2).sum() * (permuted**2).sum(1))
    correlation = np.divide(permuted @ values, norms, out=np.zeros(len(permuted)), where=norms > 0)
    statistic = np.abs(correlation) if two_sided else correlation
    return float(correlation[0]), float((statistic >= statistic[0] - 1e-12).mean())


def contrast(matrix: np.ndarray, common: np.ndarray, draws: int = DRAWS) -> tuple[float, float]:
    """Mean over pairs with a common class minus mean over pairs without, and its permutation p-value (one-sided).

    ``common`` [N, N] bool. Clients are permuted ``draws`` times; the p-value includes the observed order. NaN if one of
    the two groups has no pair.
    """
    i, j = np.triu_indices(len(matrix), 1)
    usable = ~np.isnan(matrix[i, j])
    i, j = i[usable], j[usable]
    orders = _permutations(len(matrix), draws)
    together = common[orders[:, i], orders[:, j]]  # [1 + draws, pairs]
    num_with, num_without = together.sum(1), (~together).sum(1)  # [1 + draws]
    if len(i) == 0 or min(num_with[0], num_without[0]) == 0:
        return np.nan, np.nan
    values = matrix[i, j]
    with np.errstate(invalid="ignore", divide="ignore"):
        differences = together @ values / num_with - ~together @ values / num_without
    differences = differences[~np.isnan(differences)]
    return float(differences[0]), float((differences >= differences[0] - 1e-12).mean())


def common_share(held: np.ndarray) -> np.ndarray:
    """[N, N] IoU of the sets of labels that two clients hold; ``held`` bool [N, C]."""
    held = np.asarray(held, dtype=float)
    return iou_raw(held @ held.T)


def neighbours(likeness: np.ndarray, draws: int = DRAWS) -> tuple[float, float, float]:
    """Mean similarity of adjacent clients in the given order, mean over all pairs, and a one-sided p-value.

    ``likeness`` [N, N]: similarity of two clients. The p-value is the fraction of random orders, including the given
    one, whose adjacent clients are at least as similar.
    """
    orders = _permutations(len(likeness), draws)
    adjacent = likeness[orders[:, :-1], orders[:, 1:]].mean(1)  # [1 + draws]
    pairs = likeness[np.triu_indices(len(likeness), 1)]
    return float(adjacent[0]), float(pairs.mean()), float((adjacent >= adjacent[0] - 1e-12).mean())


@cache
def _permutations(clients: int, draws: int) -> np.ndarray:
    """[1 + draws, clients]: the identity, then random permutations; the same for all matrices of one size."""
    stream = numpy_generator(0, "overlap", "permutation")
    return np.array([np.arange(clients), *(stream.permutation(clients) for _ in range(draws))])


def ward(distances: np.ndarray) -> dict[str, list]:
    """Ward clustering of Euclidean distances [N, N]: scipy's dendrogram with ``leaves``, ``icoord``, ``dcoord``."""
    from scipy.cluster.hierarchy import dendrogram, linkage

    return dendrogram(linkage(distances[np.triu_indices(len(distances), 1)], "ward"), no_plot=True)

"""Labels in common, rank correlation and neighbours, by hand and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.cluster.hierarchy import leaves_list
from scipy.cluster.hierarchy import ward as scipy_ward
from scipy.spatial.distance import pdist, squareform
from scipy.stats import spearmanr

from pfl_core.overlap import common_share, neighbours, rank_correlation, ward


def test_common_share_by_hand():
    """Labels {0, 1}, {1, 2}, {1}: 1 of 3, 1 of 2, 1 of 2."""
    held = np.array([[1, 1, 0], [0, 1, 1], [0, 1, 0]], dtype=bool)
    assert common_share(held) == pytest.approx(np.array([[1, 1 / 3, 1 / 2], [1 / 3, 1, 1 / 2], [1 / 2, 1 / 2, 1]]))


def test_rank_correlation_is_spearmans_with_ties():
    rng = np.random.default_rng(0)
    one, other = (squareform(rng.integers(0, 4, 45).astype(float)) for _ in range(2))
    pairs = np.triu_indices(10, 1)
    found, p = rank_correlation(one, other, draws=50)
    assert found == pytest.approx(spearmanr(one[pairs], other[pairs]).statistic)
    assert 1 / 51 <= p <= 1


def test_rank_correlation_of_points_and_their_labels():
    """Points on a line, likeness falling with distance: -1, which few relabellings reach (the mirrored order)."""
    place = np.arange(8.0)
    distance = np.abs(place[:, None] - place)
    found, p = rank_correlation(distance, -distance)
    assert found == pytest.approx(-1) and p < 0.01
    assert np.isnan(rank_correlation(distance, np.ones((8, 8)))).all()
    assert rank_correlation(distance, -distance, draws=0) == (pytest.approx(-1), 1)


def test_neighbours_by_hand():
    """Order 0, 1, 2: likenesses 1 and 0 next to each other, of all pairs 1, 0 and 0.5."""
    likeness = np.array([[1, 1, 0.5], [1, 1, 0], [0.5, 0, 1]])
    mean, of_all, p = neighbours(likeness)
    assert (mean, of_all) == (0.5, 0.5) and p > 0.5
    line = -np.abs(np.arange(8.0)[:, None] - np.arange(8.0))
    assert neighbours(line)[0] == -1 and neighbours(line)[2] < 0.01


def test_wards_tree_is_scipys():
    points = np.random.default_rng(1).normal(size=(10, 4))
    tree = ward(squareform(pdist(points)))
    assert tree["leaves"] == leaves_list(scipy_ward(points)).tolist()
    assert len(tree["icoord"]) == 9

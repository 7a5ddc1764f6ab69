"""Statistics on pairs of clients: compared with scipy and with explicit permutations, and edge cases."""

import math

import numpy as np
import pytest
from scipy.cluster.hierarchy import leaves_list
from scipy.cluster.hierarchy import ward as scipy_ward
from scipy.spatial.distance import pdist, squareform
from scipy.stats import spearmanr

from pfl_core.runs import Record, RunSpec
from pfl_core.study import mask_overlap
from pfl_core.study import similarity as overlap

RANKS = {"ranks": True, "two_sided": True}
GROUPS = np.kron(np.eye(3, dtype=bool), np.ones((2, 2), dtype=bool))  # three pairs of clients


def test_expected_iou_is_what_random_masks_have():
    masks = np.random.default_rng(0).random((6, 40_000)) < np.array([0.1, 0.2, 0.3, 0.5, 0.8, 0.9])[:, None]
    both = (masks.astype(float) @ masks.T).round()
    pairs = np.triu_indices(6, 1)
    np.testing.assert_allclose(overlap.iou_expected(both, 40_000)[pairs], overlap.iou_raw(both)[pairs], atol=0.01)
    assert np.isnan(overlap.iou_expected(np.zeros((2, 2)), 10)).all()


def test_label_distance():
    counts = np.array([[10, 0, 0], [5, 0, 0], [0, 3, 3], [5, 5, 0]])
    assert overlap.label_distance(counts).tolist() == [
        [0.0, 0.0, 1.0, 0.5], [0.0, 0.0, 1.0, 0.5], [1.0, 1.0, 0.0, 0.5], [0.5, 0.5, 0.5, 0.0],
    ]  # fmt: skip


def test_mantel_finds_what_explains_a_matrix():
    noise = np.random.default_rng(1).random((6, 6))
    alike = GROUPS + 0.01 * (noise + noise.T)
    strength, chance = overlap.mantel(alike, GROUPS.astype(float))
    assert strength > 0.99 and chance < 0.12  # of 15 different ways to pair six clients one is this one
    opposite, certain = overlap.mantel(alike, ~GROUPS)
    assert opposite == pytest.approx(-strength) and certain == 1.0


def test_mantel_of_noise_is_spread_evenly():
    stream, found = np.random.default_rng(2), []
    for _ in range(200):
        a, b = stream.random((2, 8, 8))
        found.append(overlap.mantel(a + a.T, b + b.T, draws=99)[1])
    assert 0.02 <= np.mean(np.array(found) <= 0.1) <= 0.2


def test_mantel_needs_something_that_varies():
    assert all(math.isnan(x) for x in overlap.mantel(np.ones((4, 4)), np.random.default_rng(0).random((4, 4))))
    holes = np.full((4, 4), np.nan)
    assert all(math.isnan(x) for x in overlap.mantel(holes, np.ones((4, 4))))


def test_masks_of_several_tensors_count_as_one():
    """Clients share 1 of 2 + 2 entries of the weight and 1 of 1 + 1 of the bias: 1/3 and 1, together 2 of 4."""
    arrays = {
        "overlap/head.weight": np.array([[2, 1], [1, 2]]), "size/head.weight": 4,
        "overlap/head.bias": np.array([[1, 1], [1, 1]]), "size/head.bias": 2,
    }  # fmt: skip
    made = RunSpec(method={"name": "fedselect"})
    record = Record("", made, {}, arrays, clients={"train": [[1, 0], [1, 0]]})
    for tensors, raw, chance in (
        (["head.weight"], 1 / 3, 0.0),
        (["head.bias"], 1.0, 1.0),
        (["head.weight", "head.bias"], 1 / 2, 1 / 4),  # densities 1/2: E = 1/3
    ):
        found = mask_overlap.overlaps(record, *tensors)
        assert (found["iou_raw"][0, 1], found["iou_chance"][0, 1]) == pytest.approx((raw, chance))
        assert mask_overlap.overlap_contrast(record, *tensors)["iou_raw_mean"] == pytest.approx(raw)


def test_common_share_by_hand():
    """Labels {0, 1}, {1, 2}, {1}: 1 of 3, 1 of 2, 1 of 2."""
    held = np.array([[1, 1, 0], [0, 1, 1], [0, 1, 0]], dtype=bool)
    assert overlap.common_share(held) == pytest.approx(
        np.array([[1, 1 / 3, 1 / 2], [1 / 3, 1, 1 / 2], [1 / 2, 1 / 2, 1]])
    )


def test_mantel_of_ranks_is_spearmans_with_ties():
    """And p its share of the relabellings, the given one among them, that are at least as far from 0."""
    rng = np.random.default_rng(0)
    one, other = (squareform(rng.integers(0, 4, 45).astype(float)) for _ in range(2))
    pairs = np.triu_indices(10, 1)
    found, p = overlap.mantel(other, one, draws=50, **RANKS)
    assert found == pytest.approx(spearmanr(one[pairs], other[pairs]).statistic)
    orders = overlap._permutations(10, 50)
    all_found = [abs(spearmanr(one[np.ix_(order, order)][pairs], other[pairs]).statistic) for order in orders]
    assert p == np.mean(np.array(all_found) >= abs(found) - 1e-12) and 1 / 51 < p < 1


def test_mantel_of_ranks_of_points_and_their_labels():
    """Points on a line, likeness falling with distance: -1, which few relabellings reach (the mirrored order)."""
    place = np.arange(8.0)
    distance = np.abs(place[:, None] - place)
    found, p = overlap.mantel(-distance, distance, **RANKS)
    assert found == pytest.approx(-1) and p < 0.01
    assert np.isnan(overlap.mantel(np.ones((8, 8)), distance, **RANKS)).all()
    assert overlap.mantel(-distance, distance, draws=0, **RANKS) == (pytest.approx(-1), 1)


def test_neighbours_by_hand():
    """Order 0, 1, 2: likenesses 1 and 0 next to each other, of all pairs 1, 0 and 0.5."""
    likeness = np.array([[1, 1, 0.5], [1, 1, 0], [0.5, 0, 1]])
    mean, of_all, p = overlap.neighbours(likeness)
    assert (mean, of_all) == (0.5, 0.5) and p > 0.5
    line = -np.abs(np.arange(8.0)[:, None] - np.arange(8.0))
    assert overlap.neighbours(line)[0] == -1 and overlap.neighbours(line)[2] < 0.01


def test_wards_tree_is_scipys():
    points = np.random.default_rng(1).normal(size=(10, 4))
    tree = overlap.ward(squareform(pdist(points)))
    assert tree["leaves"] == leaves_list(scipy_ward(points)).tolist()
    assert len(tree["icoord"]) == 9

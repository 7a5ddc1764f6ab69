"""Mask overlap computed by hand: the three normalizations, the permutation test, and the overlap in a record."""

import itertools

import numpy as np
import pytest

from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.runs import Record
from pfl_core.study import mask_overlap
from pfl_core.study import similarity as overlap

MASKS = np.array([[1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 0], [0] * 6, [0] * 6])
BOTH = MASKS @ MASKS.T
OF_HEAD = np.array([[3, 3, 1, 1], [3, 3, 1, 1], [1, 1, 3, 2], [1, 1, 2, 3]])  # 6 entries, three personal in each mask
OF_CONV = np.array(
    [[2, 0, 0, 2], [0, 2, 2, 0], [0, 2, 2, 0], [2, 0, 0, 2]]
)  # 4 entries; clients 0 and 3, 1 and 2 alike
CLASSES = [[5, 5, 0, 0], [0, 5, 0, 0], [0, 0, 5, 0], [0, 0, 5, 5]]  # 0 and 1 have one in common, 2 and 3
SCORES = {"correct": [[5, 5, 5, 5]], "count": [[10] * 4], "loss": [[1.0] * 4], "upload": [[12, 6, 6, 0]]}


def record() -> Record:
    made = PAPER.settings.spec("fedselect", preset="ci", alpha=0.3)
    arrays = {
        "overlap/conv.weight": OF_CONV, "size/conv.weight": 4,
        "overlap/conv.bias": OF_CONV, "size/conv.bias": 4,
        "overlap/head.weight": OF_HEAD, "size/head.weight": 6,
    }  # fmt: skip
    series = {name: ([made.rounds], values) for name, values in SCORES.items()}
    return Record("", made, series, arrays, clients={"train": CLASSES}, num_params=12)


def test_raw_overlap():
    """Masks 012, 123, 4 and twice none: 2 of 4, nothing in common, nothing to compare."""
    nan = np.nan
    assert overlap.iou_raw(BOTH) == pytest.approx(
        np.array([[1, 0.5, 0, 0, 0], [0.5, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, nan], [0, 0, 0, nan, 1]]),
        nan_ok=True,
    )


def test_overlap_between_the_least_and_the_most_of_the_matrix():
    """Pairs of 1/2, 1/5 and 1/5: 1, 0 and 0. The diagonal does not count for the most."""
    both = np.array([[3, 2, 1], [2, 3, 1], [1, 1, 3]])
    assert overlap.iou_minmax(both) == pytest.approx(np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]]))
    four = np.array([[4, 3, 2, 1], [3, 4, 1, 1], [2, 1, 4, 1], [1, 1, 1, 4]])  # 3/5, 2/6 and 1/7
    assert overlap.iou_minmax(four)[0] == pytest.approx([1, 1, (1 / 3 - 1 / 7) / (3 / 5 - 1 / 7), 0])


def test_overlap_that_is_the_same_everywhere_is_0_and_none_is_not_a_number():
    assert overlap.iou_minmax(np.array([[3, 1, 1], [1, 3, 1], [1, 1, 3]])).tolist() == np.eye(3).tolist()
    empty = overlap.iou_minmax(np.zeros((3, 3), dtype=int))
    assert np.isnan(empty[np.triu_indices(3, 1)]).all() and (np.diag(empty) == 1).all()
    assert np.isnan(overlap.iou_minmax(BOTH)[3, 4]) and overlap.iou_minmax(BOTH)[0, 1] == 1


def test_overlap_beyond_chance():
    """Half of six entries each: random masks have E = (1/4) / (3/4) = 1/3; masks of the same entries stay at 1."""
    found = overlap.iou_chance(OF_HEAD, 6)
    assert found[0] == pytest.approx([1, 1, (1 / 5 - 1 / 3) / (2 / 3), -0.2])
    assert found[2, 3] == pytest.approx((1 / 2 - 1 / 3) / (2 / 3))
    full = overlap.iou_chance(np.full((2, 2), 6), 6)
    assert full.tolist() == [[1, 0], [0, 1]]  # full masks say nothing
    assert np.isnan(overlap.iou_chance(BOTH, 6)[3, 4])


def test_common_classes():
    assert overlap.common_classes(np.array(CLASSES)).astype(int).tolist() == [
        [1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1],
    ]  # fmt: skip


def test_contrast_is_a_difference_of_means_and_counts_relabellings():
    """Pairs 01 and 23 have a common class: (0.9 + 0.5) / 2 - (0.1 + 0.2 + 0.3 + 0.4) / 4; of the three ways to pair
    four clients one reaches it, so the p-value of many draws is about a third."""
    matrix = np.zeros((4, 4))
    for (i, j), value in zip(itertools.combinations(range(4), 2), (0.9, 0.1, 0.2, 0.3, 0.4, 0.5), strict=True):
        matrix[i, j] = matrix[j, i] = value
    common = overlap.common_classes(np.array(CLASSES))
    difference, p = overlap.contrast(matrix, common, draws=3000)
    assert difference == pytest.approx(0.7 - 0.25) and p == pytest.approx(1 / 3, abs=0.04)
    opposite, certain = overlap.contrast(1 - matrix, common)
    assert opposite == pytest.approx(-0.45) and certain == 1.0
    assert overlap.contrast(matrix, common, draws=0) == (difference, 1.0)


def test_a_contrast_leaves_out_pairs_without_a_number_and_needs_both_groups():
    matrix, common = np.full((4, 4), 0.2), overlap.common_classes(np.array(CLASSES))
    matrix[0, 1] = matrix[1, 0] = 0.6
    matrix[2, 3] = matrix[3, 2] = np.nan
    assert overlap.contrast(matrix, common)[0] == pytest.approx(0.4)
    for group in (np.ones((4, 4), dtype=bool), np.eye(4, dtype=bool)):
        assert np.isnan(overlap.contrast(matrix, group)).all()


def test_layer_contrasts_has_a_row_for_each_weight():
    """The head's masks follow the classes: 1 and 1/4 against -1/5. The convolution's are alike where nothing is common:
    0 and 1 -> E = (1/4) / (3/4), so -1/2 and 1."""
    found = mask_overlap.layer_contrasts([record()])
    assert found["tensor"].tolist() == ["conv.weight", "head.weight"]
    assert found["personal"].tolist() == [0.5, 0.5] and found["alpha"].tolist() == [0.3, 0.3]
    assert found["contrast"].tolist() == pytest.approx([-0.5 - (1 + 1 - 0.5 - 0.5) / 4, (1 + 0.25) / 2 + 0.2])
    common = overlap.common_classes(np.array(CLASSES))
    ps = [overlap.contrast(overlap.iou_chance(both, n), common)[1] for both, n in ((OF_CONV, 4), (OF_HEAD, 6))]
    assert found["p_value"].tolist() == ps and ps[1] < ps[0]


def test_a_runs_row_has_the_heads_overlap_and_what_was_sent():
    """Table 2's claims and Figure 4's are judged on these: 12, 6, 6 and 0 of 12 entries sent."""
    rows = PAPER.frame([record()]).iloc[0]
    assert rows["uplink_fraction"] == pytest.approx(0.5)
    assert rows["iou_raw"] == pytest.approx((1 + 0.5 + 4 / 5) / 6)
    assert rows["iou_chance"] == pytest.approx((1 + 0.25 - 4 / 5) / 6)
    assert rows["iou_contrast"] == pytest.approx((1 + 0.25) / 2 + 0.2)

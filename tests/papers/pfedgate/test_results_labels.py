"""Tests of Figure 4's statement: leaves, neighbours and correlations, on hand-stored records."""

import numpy as np
import pytest

from pfl_core.papers.pfedgate import published as printed
from pfl_core.papers.pfedgate.results import labels, studies
from pfl_core.study import similarity as overlap
from tests.papers.pfedgate.test_results_studies import record

DISTANCE = np.abs(np.arange(5.0)[:, None] - np.arange(5.0))


def stored():
    masks = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    arrays = {"gate_distances": DISTANCE, "test_masks": masks, "block_sizes": np.array([40, 60])}
    return record(dataset="pathological", arrays=arrays, keep_ratio=0.3)


def test_rows_of_the_tree():
    run, leaves = stored(), printed.figure4()
    tree = overlap.ward(DISTANCE)
    rows = labels.tree_rows(tree, studies.labels_held(run), leaves)
    assert rows["part"].value_counts().to_dict() == {
        "paper, leaf": 10,
        "here, leaf": 5,
        "here, branch": 4,
    }
    assert rows.query("part == 'here, leaf' and client == 1")["labels"].item() == "1 2"
    assert len(rows["across"].dropna().iloc[0].split()) == 4


def test_neighbours_of_the_paper_and_of_each_run():
    table = labels.neighbours([stored()], printed.figure4())
    assert table.index.tolist() == ["paper, Figure 4", "here, pFedGate, s = 0.3, seed 0"]
    assert table.loc["paper, Figure 4", ["neighbours", "all pairs"]].round(3).tolist() == [0.296, 0.12]


def test_correlations_of_a_run():
    run = stored()
    row = labels.correlations([run]).iloc[0]
    assert (row["run"], row["seed"]) == ("pFedGate, s = 0.3", 0)
    assert row["gates"] == pytest.approx(studies.gate_rank(run)["gate_rank"])
    assert -1 <= row["masks"] <= 1 and 0 < row["p"] <= 1

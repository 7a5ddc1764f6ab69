"""Star-PFL's tables beside our runs."""

import pytest

from pfl_core.papers.star_pfl.comparison import COMPARISON
from tests.study.cells import cell, results


def test_star_pfl_is_shown_in_its_unit():
    run = dict(paper="star_pfl", dataset="organamnist", data="organamnist", method="star_pfl", variant="alpha=0.1")
    run["metric"] = "acc_mean_picked"  # of the round that is best on validation data
    where = dict(dataset="Axial", method="Star-PFL", variant="alpha=0.1", table="table2")
    row = cell(COMPARISON, results(dict(run, value=91.0), dict(run, value=93.0, seed=1)), **where)
    assert (row["paper"], row["ours"], row["spread"]) == (0.9247, pytest.approx(0.92), pytest.approx(0.0141421356))

"""Comparison of Star-PFL's tables with stored runs."""

from dataclasses import replace

import pytest

from pfl_core.data.dataset import UNOFFICIAL
from pfl_core.papers.star_pfl.comparison import COMPARISON
from pfl_core.runs import Record, RunSpec
from pfl_core.study.frames import published_set
from tests.study.cells import cell, filled, results


def test_accuracies_are_converted_to_the_paper_unit():
    run = dict(paper="star_pfl", dataset="organamnist", data="organamnist", method="star_pfl", variant="alpha=0.1")
    run["metric"] = "acc_mean_picked"  # of the round that is best on validation data
    where = dict(dataset="Axial", method="Star-PFL", variant="alpha=0.1", table="table2")
    row = cell(COMPARISON, results(dict(run, value=91.0), dict(run, value=93.0, seed=1)), **where)
    assert (row["paper"], row["ours"], row["spread"]) == (0.9247, pytest.approx(0.92), pytest.approx(0.0141421356))


@pytest.mark.parametrize(("about", "cells"), [("", 1), (f"organamnist, {UNOFFICIAL}: 680 images", 0)])
def test_an_unofficial_data_file_fills_no_cell(about, cells):
    record = Record(key="k", spec=RunSpec(method={"name": "star_pfl"}, data={"name": "organamnist"}), series={})
    run = dict(paper="star_pfl", data=about or "organamnist", method="star_pfl", variant="alpha=0.1", value=91.0)
    dataset = published_set(replace(record, about=about))
    assert len(filled(COMPARISON, results(dict(run, metric="acc_mean_picked", dataset=dataset)))) == cells

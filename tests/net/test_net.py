"""See ``net``."""

from pathlib import Path

import pytest

from pfl_core import papers
from pfl_core.study.compare import compare
from tests.net import net


def test_every_notebook_has_the_runs_that_it_had():
    assert net.keys() == net.read("keys")


@pytest.mark.parametrize("name", papers.PAPERS)
def test_cells_beside_the_same_records_are_the_same(name):
    paper = papers.paper(name)
    rows = compare(paper.comparison, paper.metrics_frame(net.records()[name]))
    got = [{column: net.plain(value) for column, value in {"of": name, **row}.items()} for row in rows]
    assert got == [row for row in net.read("cells") if row["of"] == name]


def test_all_counted_records_are_here():
    assert {r.key for own in net.records().values() for r in own} == set(net.read("records"))
    assert Path(net.HERE / "words.json").exists()

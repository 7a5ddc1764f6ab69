"""Comparison of the papers' tables with invented results, tested on FedSelect's tables."""

import json

import pandas as pd
import pytest

from pfl_core import papers
from pfl_core.papers import PAPERS
from pfl_core.study.compare import ROW, as_frame, compare, counts

PAPER = papers.paper("fedselect")
RUN = dict(
    dataset="cifar10", setting="cifar10", method="fedselect", alpha=0.3, changed=(), acc_mean=80.0, seed=0,
    preset="real", data="cifar10 (JPEG copy)", differs="network", stale=False, partial=False, flat=True, rounds=40,
)  # fmt: skip


def results(*runs: dict) -> pd.DataFrame:
    """RUN with some of its fields replaced; ``value`` is the accuracy."""
    rows = [RUN | {("acc_mean" if name == "value" else name): v for name, v in run.items()} for run in runs]
    return pd.DataFrame(rows, columns=list(RUN))


def cell(stored, **where):
    """The row of Table 2 on CIFAR-10 at the default limit, unless ``where`` says another."""
    where = dict(table="table2", dataset="CIFAR-10", variant="alpha=0.30") | where
    (found,) = (row for row in compare(PAPER, stored) if where.items() <= row.items())
    return found


@pytest.mark.parametrize("paper", PAPERS)
def test_a_row_for_each_cell_and_nothing_of_ours_in_an_empty_store(paper):
    rows = compare(papers.paper(paper), results())
    assert len(rows) == len(papers.paper(paper).table())
    assert all(list(row) == ROW for row in rows)
    assert all(row["ours"] is None and row["seeds"] is None and row["stale"] is None for row in rows)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows


@pytest.mark.parametrize(
    "value, changed, reproduced",
    [
        (81.0, {}, True),  # the paper's 82.25, within 2 points
        (80.0, {}, False),
        (84.2, {}, True),
        (81.0, dict(preset="real"), None),
        (81.0, dict(partial=True), None),
        (81.0, dict(partial=True, flat=True), True),  # stopped early, but its accuracy no longer changed
        (81.0, dict(dataset="digits", data="digits"), None),
    ],
)
def test_a_printed_number_is_reproduced_only_at_its_own_setting(value, changed, reproduced):
    stored = results(dict(preset="paper", value=value, flat=False) | changed)
    assert cell(stored)["reproduced"] is reproduced


def test_a_tables_cells_are_counted():
    stored = results(dict(preset="paper", value=80.0))
    text = counts(as_frame(compare(PAPER, stored)))["Table 2"]
    judged = "1 of them judged, at the paper's setting; 0 of 1 within the printed spread or 2 accuracy points"
    assert text == f"1 of 16 cells have runs, {judged}"
    two = [
        dict(preset="paper", value=v, alpha=a, changed=("alpha",), differs=d)
        for v, a, d in ((80, 0.3, "rounds"), (82, 0.5, ""))
    ]
    text = counts(as_frame(compare(PAPER, results(*two))))["Table 2"]
    assert "2 of them judged, at the paper's setting (1 stopped early" in text
    assert "; 1 of 2 within the printed spread" in text
    made = stored.assign(data="generated here: its clusters are not published")
    assert "(with data generated here); 0 of 1" in counts(as_frame(compare(PAPER, made)))["Table 2"]


QUICK, REAL, LARGE = (dict(preset=preset, value=v) for preset, v in (("quick", 1.0), ("real", 2.0), ("paper", 3.0)))
DIGITS = dict(dataset="digits", data="digits", value=99.0, preset="paper")
COPY = "cifar10 (JPEG copy)"


@pytest.mark.parametrize(
    ("runs", "shown"),
    [
        (
            [dict(value=80.0), dict(value=84.0, seed=2), dict(value=82.0, seed=1)],
            dict(paper=82.25, ours=82.0, spread=2.0, seeds=[0, 1, 2], preset="real", data=COPY, stale=False),
        ),
        ([{}], dict(spread=None)),
        ([QUICK], dict(ours=1.0)),
        ([QUICK, REAL], dict(ours=2.0)),
        ([QUICK, REAL, LARGE], dict(ours=3.0)),
        ([dict(preset="ci")], dict(ours=None)),
        ([dict(value=1.0, stale=True), dict(value=2.0)], dict(ours=2.0, stale=False, seeds=[0])),
        ([dict(stale=True), dict(seed=1)], dict(stale=True)),
        ([DIGITS], dict(ours=99.0, data="digits (stand-in)", differs="data, network")),
        ([DIGITS, QUICK], dict(ours=1.0, data=COPY, differs="network")),  # the paper's data first
        ([dict(value=90.0, rounds=60), dict(value=10.0, rounds=5), dict(seed=1, rounds=5)], dict(ours=90.0, seeds=[0])),
        ([dict(value=90.0, data="cifar10"), dict(seed=1)], dict(ours=90.0, data="cifar10", seeds=[0])),  # one copy
        ([dict(value=90.0, setting="cifar10, with validation"), dict(rounds=60)], dict(ours=90.0)),  # rates searched
    ],
)
def test_which_runs_a_cell_shows(runs, shown):
    row = cell(results(*runs))
    assert {name: row[name] for name in shown} == shown
    json.dumps(row)


@pytest.mark.parametrize(
    "other",
    [
        dict(dataset="mnist", data="mnist"), dict(method="ditto"), dict(setting="cifar10, 20 images"),
        dict(alpha=0.5, changed=("alpha",)), dict(changed=("p",)),
    ],
)  # fmt: skip
def test_other_data_methods_settings_and_fields_never_fill_a_cell(other):
    assert cell(results(other))["ours"] is None


def test_frame():
    rows = compare(PAPER, results({}, dict(seed=1, value=81.0)))
    assert as_frame(rows).shape == (len(rows), len(ROW))
    assert list(as_frame([]).columns) == ["here" if name == "ours" else name for name in ROW]

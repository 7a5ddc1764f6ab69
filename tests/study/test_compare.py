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


def test_mean_spread_and_seeds():
    row = cell(results(dict(value=80.0), dict(value=84.0, seed=2), dict(value=82.0, seed=1)))
    assert (row["paper"], row["ours"], row["spread"], row["seeds"]) == (82.25, 82.0, 2.0, [0, 1, 2])
    assert (row["preset"], row["data"], row["stale"]) == ("real", "cifar10 (JPEG copy)", False)
    json.dumps(row)


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
    assert text == "1 of 16 cells have runs; at the paper's setting: 1 run, 0 within its spread or 2 points of it"
    made = stored.assign(data="generated here: its clusters are not published")
    text = counts(as_frame(compare(PAPER, made)))["Table 2"]
    assert text.endswith(
        "at the paper's setting: 1 run, all of them with data generated here, 0 within its spread or 2 points of it"
    )


def test_one_seed_has_no_spread():
    assert cell(results({}))["spread"] is None


def test_presets_in_order_and_never_ci():
    stored = [dict(preset=preset, value=value) for preset, value in (("quick", 1.0), ("real", 2.0), ("paper", 3.0))]
    assert [cell(results(*stored[:n]))["ours"] for n in (1, 2, 3)] == [1.0, 2.0, 3.0]
    assert cell(results(dict(preset="ci")))["ours"] is None


def test_a_fresh_run_before_a_stale_one():
    row = cell(results(dict(value=1.0, stale=True), dict(value=2.0)))
    assert (row["ours"], row["stale"], row["seeds"]) == (2.0, False, [0])
    assert cell(results(dict(stale=True), dict(seed=1)))["stale"] is True


def test_a_stand_in_shows_its_name_and_only_where_the_papers_data_are_not_stored():
    digits = dict(dataset="digits", data="digits", value=99.0, preset="paper")
    row = cell(results(digits))
    assert (row["ours"], row["data"]) == (99.0, "digits (stand-in)")
    row = cell(results(digits, dict(preset="quick")))
    assert (row["ours"], row["data"]) == (80.0, "cifar10 (JPEG copy)")


@pytest.mark.parametrize(
    "other",
    [
        dict(dataset="mnist", data="mnist"), dict(method="ditto"), dict(setting="cifar10, 20 images"),
        dict(alpha=0.5, changed=("alpha",)), dict(changed=("p",)),
    ],
)  # fmt: skip
def test_other_data_methods_settings_and_fields_never_fill_a_cell(other):
    assert cell(results(other))["ours"] is None


def test_runs_of_different_length_are_not_mixed():
    stored = results(dict(value=90.0, rounds=60), dict(value=10.0, rounds=5), dict(seed=1, rounds=5))
    row = cell(stored)
    assert (row["ours"], row["seeds"]) == (90.0, [0])


def test_copies_of_a_data_set_are_not_mixed():
    row = cell(results(dict(value=90.0, data="cifar10"), dict(seed=1)))
    assert (row["ours"], row["data"], row["seeds"]) == (90.0, "cifar10", [0])


def test_frame():
    rows = compare(PAPER, results({}, dict(seed=1, value=81.0)))
    assert as_frame(rows).shape == (len(rows), len(ROW))
    assert list(as_frame([]).columns) == ["here" if name == "ours" else name for name in ROW]

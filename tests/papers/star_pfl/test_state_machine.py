"""The state machine on made-up updates: the specification's table cell by cell, and what patterns come to."""

import pandas as pd
import pytest

from pfl_core.algorithms.star_pfl.probe import FROZEN
from pfl_core.papers.star_pfl import state_machine as star_machine

NO = None
# Section 4 of star_pfl.md: round -> state, score, M, dW, W, score', L, F, M' and M after
TABLE = {
    "a": [
        ("active", NO, 1, 0.5, 0.5, 1, 0, 1, 0, 1),
        ("active", 1, 1, -0.5, 0, 0, 0, 1, 0, 1),
        ("frozen", 0, 0, NO, 0, NO, 0, 1, 1, 1),
        ("probing", NO, 1, 0.5, 0.5, 1 / 3, 0, 1, 0, 1),
        ("active", 1 / 3, 1, -0.5, 0, 0, 0, 1, 0, 1),
        ("frozen", 0, 0, NO, 0, NO, 0, 1, 1, 1),
        ("probing", NO, 1, 0.5, 0.5, 0, 0, 2, 0, 1),
        ("frozen", 0, 0, NO, 0.5, NO, 1, 2, 0, 0),
    ],
    "b": [("active", NO if t == 1 else 1, 1, 0.25, 0.25 * t, 1, 0, 1, 0, 1) for t in range(1, 9)],
    "c": [
        ("active", NO, 1, 0.5, 0.5, 1, 0, 1, 0, 1),
        ("active", 1, 1, -0.5, 0, 0, 0, 1, 0, 1),
        ("frozen", 0, 0, NO, 0, NO, 0, 1, 1, 1),
        ("probing", NO, 1, 1, 1, 1 / 2, 0, 1, 0, 1),
        ("active", 1 / 2, 1, 0.25, 1.25, 5 / 9, 0, 1, 0, 1),
        ("active", 5 / 9, 1, -0.5, 0.75, 1 / 9, 0, 1, 0, 1),
        ("active", 1 / 9, 1, 0.5, 1.25, 5 / 9, 0, 1, 0, 1),
        ("active", 5 / 9, 1, -0.25, 1, 0, 0, 1, 0, 1),
    ],
    "d": [
        ("active", NO, 1, 0, 0, 0, 0, 1, 0, 1),
        ("frozen", 0, 0, NO, 0, NO, 0, 1, 1, 1),
        ("probing", NO, 1, 0, 0, 0, 0, 2, 0, 1),
        ("frozen", 0, 0, NO, 0, NO, 1, 2, 0, 0),
        ("frozen", NO, 0, NO, 0, NO, 0, 2, 1, 1),
        ("probing", NO, 1, 0, 0, 0, 0, 3, 0, 1),
        ("frozen", 0, 0, NO, 0, NO, 1, 3, 0, 0),
        ("frozen", NO, 0, NO, 0, NO, 2, 3, 0, 0),
    ],
}


@pytest.mark.parametrize("entry", TABLE)
def test_the_worked_example_cell_by_cell(entry):
    made = star_machine.worked_example()
    rows = made[made["entry"] == entry].drop(columns=["round", "entry"]).itertuples(index=False, name=None)
    for told, row in zip(TABLE[entry], rows, strict=True):
        assert [None if not isinstance(x, str) and pd.isna(x) else x for x in row] == pytest.approx(
            list(told), abs=1e-6
        )


def shares(threshold, length, **options):
    return star_machine.trained_share(star_machine.courses(threshold, length, rounds=60, **options))


def test_an_odd_window_keeps_an_oscillating_entry_active():
    for length in range(2, 13):
        free = star_machine.courses(-1.0, length, rounds=30, patterns=("oscillation",))
        assert (free["state"] != FROZEN).all(), "with T below 0 nothing is frozen"
        assert free["score"].iloc[-1] == pytest.approx(1 / length if length % 2 else 0, abs=1e-6)
    assert shares(0.1, 4)["oscillation"] < 30 and shares(0.1, 5)["oscillation"] > 95


def test_patterns_come_to_what_the_notebook_says():
    found = shares(0.1, 10)
    assert found["drift"] > 95 > found["noise"] > 50
    assert found["dead"] == pytest.approx(100 * 10 / 60), "rounds 1, 3, 6, 10, 15, 21, 28, 36, 45, 55"
    assert shares(0.1, 4, thaw=False)["noise"] < shares(0.1, 4)["noise"]


@pytest.mark.parametrize("length", [4, 5, 10])
def test_what_wakes_up_is_found_by_a_probe_and_by_nothing_else(length):
    found, lost = (star_machine.courses(0.1, length, patterns=("wakes up",), thaw=thaw) for thaw in (True, False))
    early = found["round"] <= star_machine.WAKES
    assert (found["state"][early] == FROZEN).any() and (found["state"].tail(8) == 0).all()
    assert found["score"].iloc[-1] == 1
    assert (lost["state"].iloc[2:] == FROZEN).all(), "from its first two updates on, which cancel"


def test_a_client_records_several_updates_a_round():
    course = star_machine.courses(0.1, 4, rounds=3, recorded=4, patterns=("oscillation", "drift"))
    assert course.loc[course["pattern"] == "oscillation", "score"].iloc[0] == 0
    assert len(course) == 6 and set(course["pattern"]) == {"oscillation", "drift"}


@pytest.mark.parametrize(("decay", "score"), [(0.5, 1 / 3), (0.9, 0.1 / 1.9)])
def test_moving_averages_of_an_oscillation(decay, score):
    course = star_machine.courses(-1.0, 2, rounds=200, decay=decay, patterns=("oscillation",))
    assert course["score"].iloc[-1] == pytest.approx(score, rel=1e-3)


def test_waiting_times_by_the_specification():
    """Section 5, invariant 4."""
    made = star_machine.waiting_times("sssusuus")
    assert made["ceil"].tolist() == [2, 3, 4, 2, 3, 2, 1, 2]
    assert made["floor"].tolist() == [2, 3, 4, 2, 3, 1, 1, 2]
    assert made["real"].tolist() == [2, 3, 4, 2, 3, 1.5, 0.75, 1.75]

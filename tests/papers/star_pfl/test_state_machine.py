"""The state machine on artificial updates: a worked example cell by cell, and typical patterns."""

import pandas as pd
import pytest

from pfl_core.algorithms.star_pfl.probe import FROZEN
from pfl_core.papers.star_pfl import state_machine as star_machine
from tests.algorithms.star_pfl.worked_example import TABLE
from tests.plots import drawn


def shown(entry):
    """The rows of the notebook's table: state, score, M, dW, W, score', L, F, M' and M after."""
    probes = False
    for score, m, update, value, _, new_score, waited, interval, probe, after in TABLE[entry]:
        state = "frozen" if not m else "probing" if probes else "active"
        yield state, score, m, update if m else None, value, new_score if m else None, waited, interval, probe, after
        probes = probe


@pytest.mark.parametrize("entry", TABLE)
def test_the_worked_example_cell_by_cell(entry):
    table = star_machine.worked_example()
    rows = table[table["entry"] == entry].drop(columns=["round", "entry"]).itertuples(index=False, name=None)
    for expected, row in zip(shown(entry), rows, strict=True):
        found = [None if not isinstance(x, str) and pd.isna(x) else x for x in row]
        assert found == pytest.approx(list(expected), abs=1e-6)


def shares(threshold, length, **options):
    return star_machine.trained_share(star_machine.trajectories(threshold, length, rounds=60, **options))


def test_an_odd_window_keeps_an_oscillating_entry_active():
    for length in range(2, 13):
        free = star_machine.trajectories(-1.0, length, rounds=30, patterns=("oscillation",))
        assert (free["state"] != FROZEN).all(), "with T below 0 nothing is frozen"
        assert free["score"].iloc[-1] == pytest.approx(1 / length if length % 2 else 0, abs=1e-6)
    assert shares(0.1, 4)["oscillation"] < 30 and shares(0.1, 5)["oscillation"] > 95


def test_trained_shares_of_the_patterns():
    trained = shares(0.1, 10)
    assert trained["drift"] > 95 > trained["noise"] > 50
    assert trained["dead"] == pytest.approx(100 * 10 / 60), "rounds 1, 3, 6, 10, 15, 21, 28, 36, 45, 55"
    assert shares(0.1, 4, thaw=False)["noise"] < shares(0.1, 4)["noise"]


@pytest.mark.parametrize("length", [4, 5, 10])
def test_only_a_probe_detects_renewed_movement(length):
    probed, never_thawed = (
        star_machine.trajectories(0.1, length, patterns=("wakes up",), thaw=thaw) for thaw in (True, False)
    )
    early = probed["round"] <= star_machine.WAKES_AT
    assert (probed["state"][early] == FROZEN).any() and (probed["state"].tail(8) == 0).all()
    assert probed["score"].iloc[-1] == 1
    assert (never_thawed["state"].iloc[2:] == FROZEN).all(), "from its first two updates on, which cancel"


def test_a_client_records_several_updates_a_round():
    table = star_machine.trajectories(0.1, 4, rounds=3, recorded=4, patterns=("oscillation", "drift"))
    assert table.loc[table["pattern"] == "oscillation", "score"].iloc[0] == 0
    assert len(table) == 6 and set(table["pattern"]) == {"oscillation", "drift"}


@pytest.mark.parametrize(("decay", "score"), [(0.5, 1 / 3), (0.9, 0.1 / 1.9)])
def test_moving_averages_of_an_oscillation(decay, score):
    table = star_machine.trajectories(-1.0, 2, rounds=200, decay=decay, patterns=("oscillation",))
    assert table["score"].iloc[-1] == pytest.approx(score, rel=1e-3)


def test_panels_have_the_states_of_each_setting():
    table = star_machine.panels({"H = 4": {"length": 4}, "H = 5": {"length": 5}}, threshold=0.1, rounds=20)
    assert table["setting"].unique().tolist() == ["H = 4", "H = 5"]
    alone = star_machine.trajectories(0.1, 5, rounds=20)
    assert table.loc[table["setting"] == "H = 5", "state"].tolist() == alone["state"].tolist()
    fig = drawn(star_machine.pattern_panels(table, 0.1))
    assert [ax.get_title() for ax in fig.axes[:2]] == ["H = 4", "H = 5"] and len(fig.axes) == 2 * 5
    oscillation, threshold = fig.axes[0].lines
    assert list(oscillation.get_ydata()) == table["score"].iloc[:20].tolist()
    assert list(threshold.get_ydata()) == [0.1, 0.1]


def test_the_raster_separates_parties_and_layers():
    rows = [(party, t, e, f"fc{e // 2 + 1}", (e + t) % 3) for party in "ab" for t in (1, 2, 3) for e in range(4)]
    first, second = drawn(
        star_machine.raster(pd.DataFrame(rows, columns=["party", "round", "entry", "layer", "state"]))
    ).axes
    assert [first.get_title(), second.get_title()] == ["a", "b"]
    assert [text.get_text() for text in first.get_yticklabels()] == ["fc1", "fc2"]
    assert first.images[0].get_array().tolist() == [[(e + t) % 3 for t in (1, 2, 3)] for e in range(4)]

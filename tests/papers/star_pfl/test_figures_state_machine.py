"""Frames and figures of Star-PFL's stability traces and state machine."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pfl_core.papers.star_pfl import figures
from pfl_core.papers.star_pfl import state_machine as star_machine
from pfl_core.papers.star_pfl.paper import PAPER
from pfl_core.papers.star_pfl.results import traces as star_pfl_traces
from pfl_core.runs import Record
from pfl_core.runs.execute import execute
from pfl_core.runs.store import Store
from tests.plots import drawn, named

NAME = "01_stability_traces"
SETTINGS = {"rounds": 6, "history_len_global": 3, "history_len_local": 2, "threshold_local": 0.3}


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> list[Record]:
    store = Store(tmp_path_factory.mktemp("runs"))
    return [store.get(execute(spec, store).key) for spec in PAPER.specs(NAME, "ci", [0], SETTINGS)]


def test_traces_match_the_arrays_of_the_record(records):
    table = star_pfl_traces.traces(records[0])
    one = table[(table["party"] == "client 0") & (table["round"] == 4)]
    assert one["value"].tolist() == np.array(records[0].arrays["value"])[3, 1].tolist()
    sizes = star_pfl_traces.layer_sizes(records[0])
    first = list(sizes)[0]
    assert (table.loc[table["entry"] < sizes[first], "layer"] == first).all() and sum(sizes.values()) == 1746


def example_lines():
    """Twenty entries at times 0, 1, 2, 3: two large ones, medium ones that drift or swing, small ones."""
    course = {0: (9, 9.3, 8.9, 9.2), 1: (8.5, 8.6, 8.5, 8.6), 2: (9, 9, 9, 9)}  # the last never moves
    course |= {k: (2, 2 + 0.1 * (-1) ** k, 2, 2 + 0.01 * k) for k in range(3, 13)}
    course |= {7: (2, 1.9, 1.8, 1.7), 8: (2, 1.7, 1.4, 1.1), 9: (2, 0.1, 3.9, 2.1)}
    course |= {k: (0.1, 0.2, 0.1, 0.2) for k in range(13, 20)}
    return pd.DataFrame(
        [{"entry": k, "layer": "fc1", "time": t, "value": x} for k, xs in course.items() for t, x in enumerate(xs)]
    )


def test_the_pair_is_a_large_steady_and_a_smaller_moving_entry():
    shapes = star_pfl_traces.line_shapes(example_lines())
    assert 2 not in shapes.index, "entries that never moved are left out"
    assert shapes.loc[8].tolist() == pytest.approx([1.55, 0.9, -0.9, 1.0])
    assert shapes.loc[0, "one_way"] == pytest.approx(0.2 / 1.0)
    assert star_pfl_traces.select_pair(shapes) == {"large, steady": 1, "smaller, moving": 8}
    norms = example_lines().assign(layer=lambda t: t["layer"].where(t["entry"] != 1, "bn1"))
    assert 1 not in star_pfl_traces.line_shapes(norms).index, "batch norm is left out"
    pairs = star_pfl_traces.large_steadier_share(shapes)
    large, medium = star_pfl_traces.candidates(shapes)
    steadier = [large.loc[i, "range"] < medium.loc[j, "range"] for i in large.index for j in medium.index]
    assert pairs["range"] == pytest.approx(100 * np.mean(steadier)) and 0 < pairs["range"] < 100
    assert set(star_pfl_traces.random_entries(shapes, 0)) <= {*large.index, *medium.index}


def test_client_values_have_a_point_for_each_local_epoch(records):
    table, epochs = star_pfl_traces.epoch_by_epoch(records[2]), records[2].spec.train.epochs
    one = table[table["entry"] == records[2].arrays["entries"][7]]
    assert one["time"].tolist() == pytest.approx([t + e / epochs for t in range(6) for e in range(epochs + 1)])
    assert one["value"].tolist() == [row[7] for t in records[2].arrays["course"] for row in t]
    after = star_pfl_traces.traces(records[1]).query("party == 'client 0'")
    same = after[after["entry"] == one["entry"].iloc[0]]["value"]
    assert one["value"].iloc[epochs :: epochs + 1].tolist() == same.tolist(), (
        "the same values as without recording epochs"
    )


def test_frozen_shares_by_reason_add_up(records):
    layers, why = star_pfl_traces.frozen_by_layer(records[0]), star_pfl_traces.why_frozen(records[0])
    of_all = layers[layers["layer"] == "all"].set_index(["party", "round"])["mean"]
    assert np.allclose(why.groupby(["party", "round"])["mean"].sum().loc[of_all.index], of_all)
    active = records[0].values("active_share").mean(axis=1)
    assert np.allclose(of_all["clients"], 100 * (1 - active))
    assert {"noise"} <= set(layers["layer"]) and (why["low"] >= 0).all() and of_all["clients"].max() > 0


def test_histograms_are_shares_and_counts(records):
    waits = star_pfl_traces.waits(records[0], [3, 6])
    assert waits.groupby(["party", "round"])["entries"].sum().loc["server"].tolist() == [1746, 1746]
    scores = star_pfl_traces.score_shares(records[1])
    assert scores.groupby(["party", "of"])["share"].sum().tolist() == pytest.approx([100.0] * 4)


def test_payload_is_compared_with_all_parameters_and_with_noise(records):
    sent = star_pfl_traces.payload(records[0])
    assert sent["percent"].iloc[0] == 100 and sent["percent"].min() < 100
    assert sent["saved"].iloc[-1] == pytest.approx(sent["percent"].mean()) and sent["noise"].between(0, 100).all()
    ablated = replace(records[0].spec, method=records[0].spec.method | {"thaw": False})
    assert star_pfl_traces.payload(replace(records[0], spec=ablated))["noise"].isna().all()


def test_accuracy_is_given_at_both_scoring_points(records):
    curves = star_pfl_traces.accuracy(records[0], "Star-PFL", "b")
    received, trained = (part["value"].tolist() for _, part in curves.groupby("panel", sort=False))
    assert received == records[0].curve()["acc_mean"].tolist()
    assert trained == records[0].curve(trained=True)["acc_mean"].tolist()


def test_score_shares_of_the_run_and_of_noise(records):
    """12.7 % of the windows of five normal updates score below 0.1, and 18.9 % of the windows of ten."""
    plain = replace(records[1], spec=replace(records[1].spec, method={"name": "star_pfl"}))
    scores = star_pfl_traces.score_shares(plain)
    low = scores[(scores["of"] == "noise") & (scores["low"] < 0.0999)].groupby("party")["share"].sum()
    assert low["clients"] == pytest.approx(12.7, abs=0.8) and low["server"] == pytest.approx(18.9, abs=0.9)
    counts, share = np.array(plain.arrays["scores"])[-1, 1], scores.query("of == 'run' and party == 'clients'")["share"]
    assert share.tolist() == pytest.approx((100 * counts / counts.sum()).tolist())


def test_trace_figures(records):
    table = star_pfl_traces.traces(records[0])
    server = table[table["party"] == "server"].rename(columns={"round": "time"})
    courses = {"client 0": star_pfl_traces.epoch_by_epoch(records[2]), "server": server}
    values = star_pfl_traces.figure_1(courses, 0)
    scores = star_pfl_traces.pair_scores(values, table, star_pfl_traces.traces(records[1]))
    assert values.groupby("party")["name"].nunique().tolist() == [3, 3] and len(scores) == 2 * 2 * 6
    grid = drawn(figures.traces.values_and_scores(values, scores, 0.1, "caption")).axes
    assert [len(ax.lines) for ax in grid] == [len(grid[0].lines), 3, 3, len(grid[3].lines), 3, 3]
    assert len(grid[0].lines) > 3, "the pair, the control, zero"
    alone = [part[part["party"] == "server"] for part in (values, scores)]
    drawn(figures.traces.values_and_scores(*alone, None))
    assert [ax.get_title() for ax in drawn(figures.traces.raster(table)).axes] == [
        "server",
        "client 0",
    ]
    layers = star_pfl_traces.frozen_by_layer(records[0])
    fig = drawn(figures.traces.frozen_shares(layers, star_pfl_traces.why_frozen(records[0])))
    server, clients, *by_layer = fig.axes
    assert [ax.get_title() for ax in (server, clients)] == ["server: all entries", "clients: all entries"]
    assert [ax.get_title() for ax in by_layer] == list(star_pfl_traces.layer_sizes(records[0]))
    assert all(list(named(ax)) == ["server", "clients"] for ax in by_layer)
    bands = [band.get_paths()[0].vertices[:, 1].max() for band in by_layer[0].collections]
    first = layers[(layers["party"] == "clients") & (layers["layer"] == by_layer[0].get_title())]
    assert bands == pytest.approx([first["high"].max()])
    without = layers.query("layer != 'noise'")
    alone = drawn(figures.traces.frozen_shares(without, star_pfl_traces.why_frozen(records[0])))
    assert "noise alone" in named(server) and "noise alone" not in named(alone.axes[0])
    drawn(
        figures.traces.waits_and_scores(
            star_pfl_traces.waits(records[0], [2, 6]), star_pfl_traces.score_shares(records[1]), 0.1
        )
    )
    fig = drawn(figures.traces.size_against_score(table[table["round"] == 6], {"server": 0.1, "client 0": -0.2}))
    assert "+0.10" in fig.axes[0].get_title()
    sent = star_pfl_traces.payload(records[0]).assign(noise=np.nan)
    rows = [("a", "x", "k", 0, t, 50.0) for t in (1, 2)] + [("b", "x", "k", 0, t, 50.0) for t in (1, 2)]
    accuracy = pd.DataFrame(rows, columns=["panel", "label", "color", "seed", "round", "value"])
    drawn(figures.traces.payload_and_accuracy(sent, accuracy))


def test_state_machine_figures():
    steps = drawn(figures.state_machine.machine_steps(star_machine.worked_example()))
    texts = [text.get_text() for text in steps.axes[0].texts]
    assert "waits" in texts and "+0.5\nscore 0.33" in texts
    course = star_machine.trajectories(1.0, 4, rounds=10, patterns=("noise",))
    drawn(figures.state_machine.pattern_panels(course.assign(setting="H = 4"), 1.0))
    drawn(figures.state_machine.triangular_rounds(course.assign(trained=1, formula=1)))

"""Star-PFL's stability traces and state machine: frames say what the record says, and every figure draws them."""

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
from tests.plots import drawn

NAME = "01_stability_traces"
SETTINGS = {"rounds": 6, "history_len_global": 3, "history_len_local": 2, "threshold_local": 0.3}


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> list[Record]:
    store = Store(tmp_path_factory.mktemp("runs"))
    return [store.get(execute(spec, store).key) for spec in PAPER.specs(NAME, "ci", [0], SETTINGS)]


def test_traces_are_the_records_arrays(records):
    table = star_pfl_traces.traces(records[0])
    one = table[(table["party"] == "client 0") & (table["round"] == 4)]
    assert one["value"].tolist() == np.array(records[0].arrays["value"])[3, 1].tolist()
    sizes = star_pfl_traces.layer_sizes(records[0])
    first = list(sizes)[0]
    assert (table.loc[table["entry"] < sizes[first], "layer"] == first).all() and sum(sizes.values()) == 1746


def test_the_two_entries_follow_the_rule():
    rounds, score = np.tile([1, 2], 8), np.repeat([0.05, 0.9, 0.5, 0.6, 0.7, 1.0, 1.0, 0.0], 2)
    size, entry = np.repeat([9.0, 8.9, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0], 2), np.repeat(np.arange(8), 2)
    value = size + np.where((rounds == 2) & (entry == 6), 0.5, 0.0)
    table = pd.DataFrame({"entry": entry, "round": rounds, "value": value, "score": score, "layer": "fc1"})
    large = table.assign(value=np.where(entry == 1, 9.5, table["value"]))
    assert star_pfl_traces.two_entries(large)["large, lowest score"] == 1, "of the largest tenth, which is one entry"
    assert star_pfl_traces.two_entries(table)["medium, moving"] == 6, "as high a score as 5, and it went farther"


def test_shares_add_up(records):
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
    sent = star_pfl_traces.payload(records[0])
    assert sent["percent"].iloc[0] == 100 and sent["percent"].min() < 100


def test_scores_stand_beside_those_of_noise(records):
    """Section 6.6: of normal updates 12.7 % score below 0.1 in windows of five, 18.9 % in windows of ten."""
    plain = replace(records[1], spec=replace(records[1].spec, method={"name": "star_pfl"}))
    scores = star_pfl_traces.score_shares(plain)
    low = scores[(scores["of"] == "noise") & (scores["low"] < 0.0999)].groupby("party")["share"].sum()
    assert low["clients"] == pytest.approx(12.7, abs=0.8) and low["server"] == pytest.approx(18.9, abs=0.9)
    counts, share = np.array(plain.arrays["scores"])[-1, 1], scores.query("of == 'run' and party == 'clients'")["share"]
    assert share.tolist() == pytest.approx((100 * counts / counts.sum()).tolist())


def test_every_trace_figure_draws(records):
    table = star_pfl_traces.traces(records[0])
    client = table[table["party"] == "client 0"]
    pair = client[client["entry"].isin(client["entry"].unique()[:2])].assign(name=lambda t: t["entry"].astype(str))
    drawn(figures.traces.values_and_scores(pair, pair.assign(unfrozen_score=pair["score"]), 0.1, "caption"))
    drawn(figures.traces.values_and_scores(pair, pair.assign(unfrozen_score=pair["score"]), None))
    assert [ax.get_title() for ax in drawn(figures.traces.raster(table, "", "(c)")).axes] == [
        "(c) server",
        "(c) client 0",
    ]
    layers = star_pfl_traces.frozen_by_layer(records[0])
    server, clients, *_ = drawn(figures.traces.frozen_shares(layers, star_pfl_traces.why_frozen(records[0]))).axes
    bands = [band.get_paths()[0].vertices[:, 1].max() for band in clients.collections]
    highest = layers[layers["party"] == "clients"].groupby("layer", sort=False)["high"].max()
    assert not server.collections and bands == pytest.approx(highest.tolist())
    without = layers.query("layer != 'noise'")
    drawn(figures.traces.frozen_shares(without, star_pfl_traces.why_frozen(records[0])))
    drawn(
        figures.traces.waits_and_scores(
            star_pfl_traces.waits(records[0], [2, 6]), star_pfl_traces.score_shares(records[1]), 0.1
        )
    )
    fig = drawn(figures.traces.size_against_score(table[table["round"] == 6], {"server": 0.1, "client 0": -0.2}))
    assert "+0.10" in fig.axes[0].get_title()
    sent = star_pfl_traces.payload(records[0]).assign(seed=0, saved=99.0, noise=np.nan)
    rows = [("a", "x", "k", 0, t, 50.0) for t in (1, 2)] + [("b", "x", "k", 0, t, 50.0) for t in (1, 2)]
    accuracy = pd.DataFrame(rows, columns=["panel", "label", "color", "seed", "round", "value"])
    drawn(figures.traces.payload_and_accuracy(sent, accuracy))


def test_the_machines_figures_draw():
    steps = drawn(figures.state_machine.machine_steps(star_machine.worked_example()))
    told = [text.get_text() for text in steps.axes[0].texts]
    assert "waits" in told and "+0.5\nscore 0.33" in told
    course = star_machine.courses(1.0, 4, rounds=10, patterns=("noise",))
    drawn(figures.state_machine.pattern_panels(course.assign(setting="H = 4"), 1.0))
    drawn(figures.state_machine.triangular_rounds(course.assign(trained=1, formula=1)))

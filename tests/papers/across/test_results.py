"""Tables, answer and figures of the comparison of all methods, from invented runs and from a few small ones."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

from pfl_core import papers
from pfl_core.papers.across import figures, results
from pfl_core.papers.across.results import ALL
from pfl_core.papers.across.study import SCORE, STUDY
from pfl_core.runs import sweep
from pfl_core.study.methods import NAMES
from pfl_core.study.style import COLORS
from tests.plots import drawn, texts

FEW = ("local", "fedavg", "fedbn", "fednova")


@pytest.fixture
def records(folders, store):
    specs = [s for s in STUDY.specs("00_all_methods", "ci", (0, 1), {"rounds": 2}) if s.method["name"] in FEW]
    return sweep(specs, jobs=1, store=store)


def invented(*rows: tuple[str, str, int, float]) -> pd.DataFrame:
    """where, method, seed, accuracy."""
    frame = pd.DataFrame(rows, columns=["where", "method", "seed", SCORE])
    return frame.assign(label=frame["method"].map(NAMES), color=frame["method"].map(COLORS))


def test_a_front_has_no_method_that_another_beats():
    points = pd.DataFrame(
        [("free", 0.0, 70.0), ("dear", 9.0, 80.0), ("worse", 5.0, 69.0), ("tie", 0.0, 60.0), ("equal", 12.0, 80.0)],
        columns=["label", "passes", SCORE],
    )
    assert results.front(points, "passes") == ["free", "dear"]


def test_ranks_average_over_data_sets_and_seeds():
    """Local is first, first and second: mean 4/3, deviation 1/sqrt(3), so the interval is 4/3 ± 4.303 / 3."""
    runs = invented(
        *[("A", "local", seed, 80.0) for seed in (0, 1)], *[("A", "fedavg", seed, 70.0) for seed in (0, 1)],
        ("B", "local", 0, 50.0), ("B", "fedavg", 0, 60.0),
    )  # fmt: skip
    ranked = results.ranks(runs).set_index(["where", "label"])
    local = ranked.loc[ALL, "Local"]
    assert (local["rank"], local["runs"]) == (pytest.approx(4 / 3), 3)
    assert local["high"] - local["rank"] == pytest.approx(4.3027 / 3, rel=1e-4)
    assert ranked.loc[("B", "FedAvg"), "rank"] == 1 and math.isnan(ranked.loc[("B", "FedAvg"), "low"])
    assert set(results.ranks(runs[runs["where"] == "A"])["where"]) == {"A"}, "one data set needs no mean over all"


def test_equal_scores_share_a_rank():
    ranked = results.ranks(invented(("A", "local", 0, 1.0), ("A", "fedavg", 0, 2.0), ("A", "fedbn", 0, 2.0)))
    assert dict(zip(ranked["label"], ranked["rank"], strict=True)) == {"FedAvg": 1.5, "FedBN": 1.5, "Local": 3.0}


def test_what_each_paper_compared_is_read_from_its_tables():
    has = results.compared()
    assert list(has.columns) == [NAMES[name] for name in papers.PAPERS] and len(has) == len(NAMES)
    assert all(has.loc[own, own] for own in has.columns), "each paper has its own method"
    assert has.loc["FedAvg"].all() and has.loc["MOON"].tolist() == [False, False, True, False]


def test_left_out_methods_are_those_that_are_ahead():
    points = invented(("A", "fedselect", 0, 80.0), ("A", "fedem", 0, 85.0), ("A", "ditto", 0, 90.0))
    row = results.left_out(points).loc["FedSelect"]
    assert row["higher mean, in its tables"] == "Ditto", "Ditto is in FedSelect's tables"
    assert row["higher mean, not in its tables"] == "FedEM"
    assert row["in its tables"] == results.compared()["FedSelect"].sum()
    absent = results.left_out(points).loc["pFedGate"]
    assert math.isnan(absent["accuracy here"])
    assert absent["higher mean, in its tables"] == absent["higher mean, not in its tables"] == "not stored"


def test_same_scores_are_found_and_runs_are_scored_at_one_point(records):
    runs = results.table(records)
    assert results.same_scores(runs, "FedAvg") == "FedBN, FedNova"
    assert results.same_scores(runs, "MOON") == "MOON is not stored"
    assert set(results.means(runs)["label"]) == {NAMES[name] for name in FEW}
    first = records[0].summary()
    assert runs.loc[0, SCORE] == first["acc_mean_merged"] and runs.loc[0, "passes"] == 2.0


def test_searches_are_shown_with_the_names_of_methods_and_data():
    found = results.searches("real")
    assert list(dict.fromkeys(found.index.get_level_values("setting"))) == ["Fashion-MNIST", "CIFAR-10"]
    assert "FedAvg + FT" in found.index.get_level_values("method") and "preset" not in found


def test_only_methods_with_every_seed_are_compared(records):
    """FedNova lacks a seed, and FedBN was stopped early in one: both are left out and named."""
    assert results.comparable(records) == (records, [])
    lacking = [r for r in records if (r.spec.method["name"], r.spec.seed) != ("fednova", 1)]
    stopped = [
        replace(r, rounds_done=1) if (r.spec.method["name"], r.spec.seed) == ("fedbn", 0) else r for r in lacking
    ]
    kept, (out,) = results.comparable(stopped)
    assert {r.spec.method["name"] for r in kept} == {"local", "fedavg"} and len(kept) == 4
    assert "FedNova, Digits, seed 0" in out and "FedBN, Digits, seed 0" in out and "Local" not in out


def test_a_data_set_with_few_methods_changes_no_rank_over_all():
    runs = invented(
        ("A", "local", 0, 80.0), ("A", "fedavg", 0, 70.0), ("B", "scaffold", 0, 30.0), ("B", "local", 0, 20.0)
    )
    ranked = results.ranks(runs).set_index(["where", "label"])["rank"]
    assert ALL not in ranked.index.get_level_values("where"), "one method in common has no rival"
    both = results.ranks(pd.concat([runs, invented(("B", "fedavg", 0, 10.0))])).set_index(["where", "label"])["rank"]
    assert both[ALL].to_dict() == {"Local": 1.0, "FedAvg": 2.0} and both["B"].to_dict()["Local"] == 2.0


def test_each_data_set_has_its_own_order():
    runs = invented(("A", "local", 0, 80.0), ("A", "fedavg", 0, 90.0), ("B", "local", 0, 30.0))
    runs = runs.assign(**{score: runs[SCORE] for score in results.SCORES})
    cells = figures.accuracy_cells(runs)
    assert list(dict.fromkeys(cells.loc[cells["dataset"] == "A", "label"])) == ["FedAvg", "Local"]


def test_figures_show_every_method(records):
    runs = results.table(records)
    points = results.means(runs)
    fig = drawn(figures.fronts(points, "caption"))
    named = figures.named_in_fronts(points)
    assert named >= {"Local", "FedAvg"} and named < {NAMES[name] for name in FEW}
    assert texts(fig.legends[0].get_texts()) == [*sorted(named), "other methods"]
    for ax, cost in zip(fig.axes[:2], results.COSTS, strict=True):
        assert ax.get_title().replace("\n", " ") == f"front: {', '.join(results.front(points, cost))}"
    titles = [panel.get_title().replace("\n", " ") for panel in drawn(figures.accuracies(runs)).axes]
    assert titles == list(results.SCORES.values())
    (ax,) = drawn(figures.ranks(results.ranks(runs))).axes
    assert texts(ax.get_yticklabels()) == results.ranks(runs)["label"].tolist()


def test_far_outliers_are_named_below_the_panels():
    points = invented(*[("A", name, 0, 80.0 + i) for i, name in enumerate(FEW)], ("A", "fedem", 0, 10.0))
    points = points.assign(upload_mb=range(5), passes=range(1, 6), train_tflop=range(1, 6), seeds=1)
    fig = drawn(figures.fronts(points, "caption"))
    assert "below the scale: FedEM (10.0 %)" in fig.get_supxlabel().replace("\n", " ")


def three_seeds(records, gaps) -> pd.DataFrame:
    """The frame with a third seed, and FedAvg behind Local by these gaps, one per seed."""
    runs = STUDY.frame(records)
    third = runs[runs["seed"] == 0].assign(seed=2, key=lambda table: table["key"] + "c")
    runs = pd.concat([runs, third], ignore_index=True)
    local = runs[runs["method"] == "local"].set_index("seed")[SCORE]
    ours = runs["method"] == "fedavg"
    runs.loc[ours, SCORE] = [local[seed] - gap for seed, gap in zip(runs.loc[ours, "seed"], gaps, strict=True)]
    return runs


def test_small_presets_show_and_do_not_decide(records):
    judged = results.against_local(three_seeds(records, (5.0, 5.1, 5.05)))
    assert set(judged["label"]) == {"FedAvg", "FedBN", "FedNova"} and set(judged["outcome"]) == {"shown"}
    assert judged.set_index("label").loc["FedAvg", "side"] == "behind"


def test_the_side_is_after_holm_over_all_methods(records):
    """The interval is below 0, but not clear enough for 27 comparisons."""
    judged = results.against_local(three_seeds(records, (5.0, 3.0, 4.0))).set_index("label").loc["FedAvg"]
    assert judged["high"] < 0 and judged["side"] == "unclear"


def test_without_local_nothing_is_compared_with_it(records):
    runs = STUDY.frame(record for record in records if record.spec.method["name"] != "local")
    assert results.against_local(runs).empty


def test_leads_of_one_seed_are_shown_alone(records):
    runs = STUDY.frame(records)
    one = results.against_local(runs[runs["seed"] == 0])
    assert list(results.shown_leads(one).columns) == ["lead", "seeds"]
    judged = results.against_local(runs)
    caption = " ".join(drawn(figures.leads({"Digits": judged, "Others": one}, "caption")).get_supxlabel().split())
    assert "the lead of each method over Local" in caption and "hollow: no interval" in caption

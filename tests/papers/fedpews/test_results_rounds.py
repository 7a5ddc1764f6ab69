"""Frames of FedPeWS's notebooks 01 and 02, on small frames and hand-stored records."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pfl_core.papers.fedpews.results import cells, grids, masks, rounds
from pfl_core.papers.fedpews.results.metrics import run_label
from pfl_core.papers.fedpews.settings import SETTINGS
from pfl_core.runs import Record

PEWS = "FedAvg + PeWS"


def record(
    method="fedavg", setting="lr_server=1", seed=0, correct=(5, 10), warm=0, preset="quick", series=(), **fields
):
    """A run with one test client of ten samples; ``warm`` rounds of warm-up, in which seconds are 3 and else 1."""
    spec = SETTINGS.spec(method, preset=preset, dataset=setting, seed=seed, **fields)
    spec = replace(spec, rounds=len(correct))
    at = list(range(1, len(correct) + 1))
    kept = {"correct": (at, [[n] for n in correct]), "count": (at, [[10]] * len(at))}
    kept |= {"seconds": (at, [3.0] * warm + [1.0] * (len(at) - warm))}
    if warm:
        kept |= {name: (at[:warm], [[value]] * warm) for name, value in (("selected", 0.5), ("upload_bits", 8.0))}
        kept |= {"upload": (at[:warm], [[25.0]] * warm)}
    return Record("key", spec, kept | dict(series), num_params=100)


def scores(label, seed, values, setting="lr_server=1"):
    rows = [("acc_pooled", setting, label, seed, t, value) for t, value in enumerate(values, 1)]
    return pd.DataFrame(rows, columns=["metric", "setting", "label", "seed", "round", "value"])


def test_labels_of_runs_are_those_of_figures():
    assert run_label(record()) == "η_g = 1, FedAvg"
    assert (
        run_label(record("fedpews", "four clients", lam=0.0, base="fedprox")) == "four clients, FedProx + PeWS, λ = 0"
    )
    assert run_label(record("fedpews_fixed", "cifar_mnist", tau=0.4)) == "CIFAR-MNIST, FedPeWS-Fixed"


def test_curves_have_accuracy_time_and_the_switch():
    frame = rounds.curves([record(), record("fedpews", warm=1, lam=5.0, tau=0.5)])
    warm = frame[frame["method"] == "fedpews"]
    assert warm["switch"].unique().tolist() == [1] and warm["lam"].unique().tolist() == [5.0]
    assert warm[warm["metric"] == "time"]["value"].tolist() == [3.0, 4.0], "in rounds after the warm-up"
    assert frame[(frame["method"] == "fedavg") & (frame["metric"] == "acc_pooled")]["value"].tolist() == [50.0, 100.0]
    table = rounds.of_table(frame, "fedavg", {"lr_server=1": "points, T = 2"})
    assert table["panel"].unique().tolist() == ["lr_server=1 (points, T = 2)\nλ = 5, τ = 0.5"] and len(table) == len(
        frame
    )
    assert rounds.of_table(frame, "fedprox", {}).empty


def test_outcomes():
    """The target is 99. FedAvg: rounds 2 and 3; with the warm-up round 3 and never."""
    runs = [
        ("FedAvg", 0, [50, 99, 99]),
        ("FedAvg", 1, [50, 60, 100]),
        (PEWS, 0, [10, 20, 100]),
        (PEWS, 1, [10, 20, 30]),
    ]
    table = rounds.outcomes(pd.concat(scores(*run) for run in runs))
    assert table["final"].tolist() == [99, 100, 100, 30]
    assert table["rounds"].tolist()[:3] == [2, 3, 3] and math.isnan(table["rounds"].iloc[3])
    assert table["to_the_end"].tolist()[:3] == [2, 3, 3], "the first round at FedAvg's own end"
    assert rounds.outcome_table(table)["reached"].tolist() == ["2 of 2", "1 of 2"]


def test_the_last_rounds():
    table = rounds.ends(pd.concat([scores("a", 0, range(20)), scores("b", 0, range(0, 40, 2))]))
    assert table["last round", "mean"].tolist() == [19, 38]
    assert table["mean of the last ten", "mean"].tolist() == [14.5, 29]
    assert rounds.ends(scores("a", 0, [])).empty


def test_what_a_warm_up_round_costs():
    runs = [record(), record("fedpews", warm=1, lam=5.0, tau=0.5)]
    sent = rounds.uploads(runs)
    assert sent.index.tolist() == [("lr_server=1", "FedPeWS", 5.0)] and sent["share of d"].tolist() == [0.25]
    cost = rounds.costs(runs)
    assert cost.index.tolist() == [("lr_server=1", "FedPeWS", "fedavg", 5.0)]
    assert cost.iloc[0].tolist() == [3.0, 1.5, 2.0]
    assert rounds.uploads(runs[:1]).empty


def test_masks_at_the_switch():
    at = [1]
    settled = {"mask_low": 0.5, "mask_high": 0.45, "neurons_shared": 0.1, "mask_distance": 0.9, "diversity": 4.0}
    rest = dict.fromkeys(set(masks.MASKS) - {*settled, "selected"}, 0.5)

    series = {name: (at, [[value]]) for name, value in (settled | rest).items()}
    run = record("fedpews", warm=1, lam=5.0, tau=0.5, series=series.items())
    table = masks.at_the_switch([run])
    assert table["settled"].tolist() == [0.95] and table["random masks"].tolist() == [0.25]
    assert table["diversity / h"].tolist() == [0.5] and table["in [0.1, 0.5]"].tolist() == [1.0]
    assert masks.at_the_switch([]).empty
    assert masks.longest_warmup([run])["shared"].tolist() == [0.1] and masks.longest_warmup([]).empty


def test_four_masks_differ_most_if_two_of_them_have_each_neuron():
    """Six pairs: four of them differ. The diversity reward, summed over the clients, has its maximum there, too."""

    def reward(selected):
        others = (selected.sum() - selected) / 3
        return ((selected - others) ** 2).sum()

    ways = [np.array(bits) for bits in itertools.product((0.0, 1.0), repeat=4)]
    assert {int(bits.sum()) for bits in ways if np.isclose(reward(bits), max(map(reward, ways)))} == {2}
    four = record(
        "fedpews", "four clients", warm=1, lam=5.0, tau=0.5, series=[(n, ([1], [[0.5]])) for n in masks.MASKS]
    )
    assert masks.at_the_switch([four])["of the most different"].tolist() == [pytest.approx(4 / 6)]


def test_cells_are_counted_by_row_and_column():
    """Table 7, as in the checks of claim 6."""
    theirs = cells.printed_cells(7)
    by_lam = grids.above({"a": theirs}, "lam")["a"]
    assert by_lam["0.1"] == "0 of 5" and by_lam["0.3"] == "4 of 5" and by_lam.index.name == "λ"
    assert grids.crossed(theirs).loc["0.3 to 1"].tolist() == ["5 of 6", "9 of 9"]
    assert grids.regions((0.4, 0.5), theirs)["inside"] == pytest.approx(3.52, abs=0.01)
    assert grids.regions((0.4, 0.5), theirs)["λ = 0"] == pytest.approx(-3.22)


def test_rounds_of_a_grid():
    """FedAvg reaches 99 % in round 2, one of two cells in round 3."""
    runs = [record(setting="sensitivity", preset="real", correct=(5, 10, 10))]
    for lam, correct in ((0.0, (5, 5, 10)), (5.0, (5, 5, 5))):
        runs.append(record("fedpews", "sensitivity", correct=correct, preset="real", warm=1, lam=lam, tau=0.2))
    runs = [Record("key", replace(r.spec, train=runs[0].spec.train), r.series) for r in runs]
    found = grids.first_rounds(runs)
    means = found.groupby("method")["mean"].agg(["min", "count"])
    assert means.loc["fedavg"].tolist() == [2, 1] and means.loc["fedpews"].tolist() == [3, 1]
    assert grids.first_rounds(runs[:1]).empty
    assert grids.plain_rates(runs)["first round at the target"].tolist() == [2.0]
    assert grids.row_label(runs[1]) == "Synthetic-32K, 2 clients: λ = 0"
    panels = grids.main_runs(runs)["panel"].unique().tolist()
    assert panels == ["beside Table 7, CIFAR-MNIST\nSynthetic-32K, 2 clients; λ = 5, τ = 0.2"]
    assert grids.convergence(runs)[["runs", "judged"]].values.tolist() == [[3, 0]]


def test_shared_warm_ups_are_computed_once():
    """Two τ of one λ: 4 rounds each; warm-ups of 1 and 2 rounds. Shared: 2 rounds, then 3 and 2."""
    specs = [record("fedpews", correct=(0,) * 4, lam=5.0, tau=tau).spec for tau in (0.25, 0.5)]
    assert grids.rounds_needed([record().spec, *specs]) == (8, 7)

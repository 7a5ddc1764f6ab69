"""Frames of FedPeWS's notebooks 03 to 05, on small frames and hand-stored records."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pfl_core.papers.fedpews.results import activations, methods
from pfl_core.papers.fedpews.settings import SETTINGS
from pfl_core.runs import Record


def record(method, setting, correct, seed=0, warm=0, train=((1, 1),), arrays=None, **fields):
    """A run: correct predictions of ten, [rounds][clients]."""
    spec = SETTINGS.spec(method, preset="quick", dataset=setting, seed=seed, **fields)
    spec = replace(spec, rounds=len(correct))
    at = list(range(1, len(correct) + 1))
    series = {"correct": (at, [list(row) for row in correct]), "count": (at, [[10] * len(row) for row in correct])}
    if warm:
        series["selected"] = (at[:warm], [[0.5]] * warm)
    return Record("key", spec, series, arrays or {}, {"train": [list(row) for row in train]})


def results(*rows):
    """(method, base, seed, accuracy) on CIFAR-MNIST's stand-in. Only FedPeWS has a base."""
    return pd.DataFrame(rows, columns=["method", "base", "seed", "acc_pooled"]).assign(setting="cifar_mnist")


DATA = {"cifar_mnist": "synthetic_3200"}


def test_the_warm_up_is_compared_with_its_base():
    rows = [("fedavg", None, 0, 50.0), ("fedavg", None, 1, 60.0)]
    rows += [("fedpews", "fedavg", 0, 53.0), ("fedpews", "fedavg", 1, 61.0)]
    rows += [("fedpews", "fedprox", 0, 70.0), ("moon", None, 0, 40.0)]
    final = methods.final_accuracies(results(*rows), DATA)
    assert final["label"].tolist()[2:] == ["FedAvg + PeWS", "FedAvg + PeWS", "FedProx + PeWS", "MOON"]
    assert set(final["where"]) == {"cifar_mnist (stand-in: Synthetic-3.2K)"}
    assert set(methods.final_accuracies(results(*rows), {"cifar_mnist": "cifar_mnist"})["where"]) == {"cifar_mnist"}
    table = methods.differences(final).droplevel("setting")
    assert table.loc["FedAvg + PeWS − FedAvg"].tolist() == [2.0, 1.0, 3.0]
    assert table.loc["MOON − FedAvg", "mean"] == -10 and math.isnan(table.loc["FedProx + PeWS − FedProx", "mean"])


def test_reproduced_means_stand_beside_table_3():
    final = methods.final_accuracies(results(("fedavg", None, 0, 50.0), ("fedavg", None, 1, 60.0)), DATA)
    published = pd.DataFrame(
        [("CIFAR-MNIST", "FedAvg", "fedavg", 71.78, 0.66), ("CIFAR-MNIST", "FedProx+PeWS", "fedpews", 75.04, 0.85)],
        columns=["dataset", "method", "key", "value", "std"],
    )
    cells = methods.beside_table_3(final, DATA, published)
    assert cells["panel"].tolist() == ["paper", "paper", "here: Synthetic-3.2K"]
    assert cells["base"].tolist() == ["fedavg", "fedprox", "fedavg"] and cells["value"].tolist()[2] == 55.0
    texts = methods.as_texts(cells.assign(label=["FedAvg", "FedProx + PeWS", "FedAvg"]))
    assert texts.loc["FedAvg"].tolist() == ["71.78 ± 0.66", "55.00 ± 7.07"]
    assert texts.loc["FedProx + PeWS"].tolist() == ["75.04 ± 0.85", ""]


def test_fednova_is_compared_with_fedavg_in_every_round():
    runs = [record("fedavg", "cifar_mnist", [[5, 5], [6, 6]]), record("fednova", "cifar_mnist", [[5, 7], [6, 6]])]
    table = methods.nova_gaps([*runs, record("fednova", "cifar_mnist", [[0, 0]], seed=1)])
    assert table.index.tolist() == [("cifar_mnist", 0)] and table.iloc[0].tolist() == [[2], 2, 20]


def test_gains_are_paired_by_seed_in_the_last_round():
    runs = [record("fedavg", "many clients", [[1], [5]], seed=seed) for seed in (0, 1)]
    runs += [record("fedpews", "many clients", [[1], [n]], seed=seed, warm=1, lam=0.5) for seed, n in ((0, 6), (1, 9))]
    curves = methods.curves(runs)
    assert curves["switch"].tolist() == [0] * 4 + [1] * 4 and list(curves.columns) == methods.CURVES
    labelled = curves.assign(label=curves["method"].map({"fedavg": "FedAvg", "fedpews": "FedAvg + PeWS"}))
    gains = methods.gains(labelled, "clients")
    assert gains["gain"].tolist() == pytest.approx([10, 40])
    assert methods.gains(labelled[labelled["label"] == "FedAvg"], "clients")["gain"].isna().all()
    assert methods.gains(methods.curves([]).assign(label=[]), "clients").empty


def test_the_samples_of_a_dirichlet_split():
    """Two clients: 3 + 1 samples, and 4 of one class. The second seed is left out."""
    runs = [record("fedavg", "dirichlet", [[1, 1]], seed, train=((3, 1), (0, 4))) for seed in (0, 1)]
    held = methods.held(runs)
    assert held["samples"].tolist() == [3, 1, 0, 4] and held["client"].tolist() == [0, 0, 1, 1]
    assert methods.skew(held).iloc[0].tolist() == [4, 4, (0.75 + 1) / 2, 1.5]


def test_participants_of_the_warm_up():
    run = record("fedpews", "many clients", [[1]] * 3, warm=2, lam=0.5)
    clients = {int(k) for t in (0, 1) for k in run.spec.schedule.clients(run.spec.clients, 0, t)}
    assert methods.warmup_participants(run) == f"W = 2: {len(clients)} of 40 clients took part in the warm-up"


def test_shares_of_the_neurons_are_compared():
    equal = record("fedpews_fixed", "cifar_mnist", [[1, 1], [2, 6]], warm=1, tau=0.4)
    unequal = record("fedpews_fixed", "cifar_mnist", [[1, 1], [4, 8]], warm=1, tau=0.4, shares=(0.25, 0.75))
    curves = activations.length_curves([equal, unequal])
    assert set(curves["label"]) == {"shares 0.5 / 0.5", "shares 0.25 / 0.75"} and set(curves["switch"]) == {1}
    ends = activations.length_ends(curves)
    assert ends["unequal minus equal"].tolist() == pytest.approx([20, 20, 20])
    alone = activations.length_ends(activations.length_curves([equal]))
    assert alone.columns.tolist() == ["shares 0.5 / 0.5"]
    assert activations.length_ends(activations.length_curves([])).empty


def test_shares_of_the_own_group():
    """Two neurons, one a client. Masked: (1, 0), (0, 1) in the warm-up, then (3, 1), (2, 2). FedAvg: (1, 1) always."""
    masked = np.array([[[1.0, 0], [0, 1]], [[3, 1], [2, 2]]])
    arrays = {"activations": masked, "activations_whole": masked + 1, "layer_sizes": [2]}
    run = record("fedpews_fixed", "activations", [[1, 1]] * 2, warm=1, arrays=arrays, tau=0.5)
    plain = record("fedpews_fixed", "activations", [[1, 1]] * 2, arrays=arrays | {"activations": np.ones((2, 2, 2))})
    tables = activations.tables([run, plain])
    table = tables["fixed masks"][1]
    assert table["value"].tolist() == masked.ravel().tolist() and set(table["layer"]) == {"FC1"}
    assert activations.by_neuron(run, table).equals(table), "few rounds are all drawn"
    assert len(activations.by_group(table)) == 8
    shares = activations.own_shares(tables)
    assert shares["warm-up (by construction)"].tolist() == [1, 1] and shares["all rounds after"].tolist() == [0.75, 0.5]
    assert (
        shares["warm-up, whole model"].tolist() == [2 / 3, 2 / 3] and shares["FedAvg, last round"].tolist() == [0.5] * 2
    )
    assert activations.rises(tables).loc["fixed masks"].tolist() == [4, 4]
    assert activations.own_shares(activations.tables([run])).empty

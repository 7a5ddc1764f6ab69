"""Data frames from records: identical final states, standings, names of data."""

from types import SimpleNamespace

import pandas as pd
import pytest

from pfl_core.study.frames import data_name, same_end, standings


def test_an_option_without_effect_ends_alike_on_every_common_seed():
    rows = [("plain", 0, "a"), ("plain", 1, "b"), ("void", 0, "a"), ("void", 1, "b")]
    rows += [("once", 0, "a"), ("once", 1, "c"), ("swapped", 0, "b"), ("swapped", 1, "a"), ("short", 0, "a")]
    rows += [("alone", 2, "a")]
    table = pd.DataFrame(rows, columns=["label", "seed", "state"])
    assert same_end(table, "plain") == ["void", "short"]


@pytest.mark.parametrize(
    ("about", "shown"),
    [
        ("our generator: no centres are published", "generated here: no centres are published"),
        ("CIFAR-10 (JPEG copy)", "CIFAR-10 (JPEG copy)"),
        ("", "mnist"),
    ],
)
def test_figures_name_the_data_of_older_records_in_the_present_words(about, shown):
    record = SimpleNamespace(about=about, spec=SimpleNamespace(data={"name": "mnist"}))
    assert data_name(record) == shown


def test_standings_name_the_highest_mean_and_the_best_variant_of_the_papers_own_method():
    rows = [("ditto", "Ditto", 0, 80.0), ("ditto", "Ditto", 1, 82.0), ("local", "Local", 0, 70.0)]
    rows += [("own", "Own, a = 1", 0, 60.0), ("own", "Own, a = 2", 0, 65.0), ("fedavg", "FedAvg", 1, 50.0)]
    table = pd.DataFrame(rows, columns=["method", "label", "seed", "acc_mean"]).assign(where="cifar10")
    table = pd.concat([table, table[table["method"] == "local"].assign(where="mnist")])
    assert standings(table, "own") == [
        "CIFAR-10, 2 seeds: Ditto is highest of 5, 81.0 %; Own, a = 2 65.0 % at best (1 of 2 seeds); "
        "Local 70.0 % (1 of 2 seeds); FedAvg 50.0 % (1 of 2 seeds).",
        "MNIST, 1 seed: Local is highest of 1, 70.0 %.",
    ]

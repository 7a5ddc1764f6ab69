"""Which stored run fills which cell of FedSelect's tables."""

import pandas as pd
import pytest

from pfl_core.papers.fedselect.comparison import COMPARISON
from tests.study import cells
from tests.study.cells import RUN, filled, results


def cell(stored, **where):
    """Of Table 2 on CIFAR-10 at the default limit, unless ``where`` says another."""
    return cells.cell(COMPARISON, stored, **dict(table="table2", dataset="CIFAR-10", variant="alpha=0.30") | where)


def test_the_same_run_also_fills_table_3():
    assert cell(results({}), table="table3")["ours"] == 80.0


def test_the_small_presets_data_sets_are_stand_ins_for_cifar10_only():
    for name in ("fashion_small", "digits"):
        rows = filled(COMPARISON, results(dict(dataset=name, data=name)))
        assert {row["dataset"] for row in rows} == {"CIFAR-10"}


@pytest.mark.parametrize(
    ("variant", "fits"),
    [
        ("", True),  # alpha = 0.30 is the default
        ("p=0.05;alpha=0.3", True),
        ("alpha=0.3;p=0.1", False),  # an experiment on p
        ("alpha=0.3;buffer_policy=average", False),
        ("alpha=0.3;reading=authors_code", False),
        ("alpha=0.3;stem=cifar", False),
        ("alpha=0.8", False),
    ],
)
def test_settings_must_be_the_papers(variant, fits):
    assert (cell(results(dict(variant=variant)))["ours"] is not None) == fits


def test_fedselect_cells_are_of_table_1s_runs():
    """Not of other sizes or epochs, nor of the workshop's; runs from before settings had names count."""
    for setting, fits in {
        "cifar10": True, "": True, "cifar10, 20 images": False, "cifar10, twice the epochs": False,
        "workshop s=2": False, "cifar10_c": False,
    }.items():  # fmt: skip
        stored = pd.DataFrame([RUN | dict(setting=setting)])
        assert (cell(stored)["ours"] is not None) == fits
    corrupt = pd.DataFrame([RUN | dict(dataset="cifar10_c", setting="cifar10_c", value=60.0)])
    assert cell(corrupt, dataset="CIFAR10-C")["ours"] == 60.0 and cell(corrupt)["ours"] is None


@pytest.mark.parametrize(
    ("variant", "model", "rule"),
    [
        ("ranking=least_change", "cnn_small", "Personalize Least"),
        ("masks=random", "cnn_small", "Random"),
        ("masks=layers;layers=('fc1',)", "cnn_small", "Layer C"),
        ("masks=layers;layers=('fc1',)", "mlp", "Layer A"),
        ("masks=layers;layers=('layer4',)", "resnet18", "Layer D"),
        ("masks=layers;layers=('layer4.1.conv2',)", "resnet18", None),
        ("masks=layers;layers=('conv1', 'conv2')", "cnn_small", None),
        ("ranking=random", "cnn_small", None),  # grows at random: not the paper's "random partition"
        ("masks=common_random", "cnn_small", None),
        ("ranking=least_change;alpha=0.5", "cnn_small", None),
        ("ranking=least_change;p=0.1", "cnn_small", None),
    ],
)
def test_a_rule_of_table_3(variant, model, rule):
    stored = pd.DataFrame([RUN | dict(variant=variant, model=model)])
    found = [(row["table"], row["variant"]) for row in filled(COMPARISON, stored)]
    assert found == ([("table3", rule)] if rule else [])


def test_table_1_takes_the_best_limit_once_all_four_are_stored():
    values = {"alpha=0.05": 70.0, "alpha=0.3": 71.0, "alpha=0.5": 72.0, "alpha=0.8": 60.0}
    stored = [dict(variant=variant, value=value, seed=s) for variant, value in values.items() for s in (0, 1)]
    where = dict(table="table1", method="FedSelect", variant="best row of table2")
    row = cell(results(*stored), **where)
    assert (row["paper"], row["ours"], row["seeds"]) == (82.25, 72.0, [0, 1])
    assert cell(results(*stored[:-2]), **where)["ours"] is None
    assert cell(results(*stored[:-2], *({**run, "preset": "quick"} for run in stored[-2:])), **where)["ours"] is None
    one_more = cell(results(*stored, {**stored[2], "preset": "paper", "value": 99.0}), **where)
    assert (one_more["ours"], one_more["preset"]) == (72.0, row["preset"])  # one limit at a better preset is no row


def test_fedavg_of_one_paper_fills_table_1():
    row = cell(results(dict(method="fedavg", variant="")), table="table1", method="FedAvg", variant="")
    assert (row["paper"], row["ours"]) == (27.7, 80.0)

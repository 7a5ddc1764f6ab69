"""Comparison of pFedGate's tables with stored runs: which run fills which cell."""

import pandas as pd
import pytest

from pfl_core.papers.pfedgate.comparison import COMPARISON
from pfl_core.papers.pfedgate.paper import PAPER
from pfl_core.study.compare import compare
from tests.papers.pfedgate.invented import rows
from tests.study.invented import frame


def ours(number, variant="", method="pFedGate", dataset="CIFAR10", metric="acc_mean", *runs) -> float | None:
    """Value of this project for a cell of the paper's table."""
    rows = compare(COMPARISON, frame(*runs))
    (row,) = (
        row
        for row in rows
        if (row["table"], row["variant"], row["method"], row["dataset"], row["metric"])
        == (f"table{number}", variant, method, dataset, metric)
    )
    return row["ours"]


def result(value, variant="", metric="acc_pooled", method="pfedgate", **fields):
    return rows(method, (value,) * 3, variant, metric, **fields)


def test_every_cell_of_every_table_has_a_row():
    rows = pd.DataFrame(compare(COMPARISON, frame()))
    assert len(rows) == len(PAPER.table()) and rows["ours"].isna().all()
    assert set(rows["table"]) == {f"table{n}" for n in (1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13)}


@pytest.mark.parametrize(
    ("number", "variant", "run"),
    [
        (1, "s=0.5", {}),
        (1, "s=0.3", {"variant": "keep_ratio=0.3"}),
        (3, "s=0.5;sampling=0.2", {"participation": 0.2}),
        (12, "s=0.5;alpha=0.1", {"dirichlet": 0.1}),
        (13, "s=0.3;B=2", {"variant": "keep_ratio=0.3;blocks_per_tensor=2"}),
    ],
)
def test_a_run_fills_only_the_cells_of_its_settings(number, variant, run):
    assert ours(number, variant, "pFedGate", "CIFAR10", "acc_mean", result(70.0, **run)) == 70.0
    elsewhere = [{"setting": name} for name in ("pathological", "cifar10, lr_gate=0.05")]
    for other in ({"epochs": 2}, {"novel": 0.2}, {"variant": "keep_ratio=0.7"}, *elsewhere):
        assert ours(number, variant, "pFedGate", "CIFAR10", "acc_mean", result(70.0, **{**run, **other})) is None


def test_local_epochs_gates_and_the_global_model():
    grey = {"dataset": "emnist", "data": "emnist", "setting": "emnist"}
    cell = ("pFedGate", "EMNIST", "acc_mean")
    assert ours(11, "s=0.5;step=4", *cell, result(71.0, epochs=4, **grey)) == 71.0
    assert ours(4, "s=0.5;gate=no_sigmoid", *cell, result(72.0, "sigmoid=False", **grey)) == 72.0
    assert ours(4, "s=0.5;gate=full", *cell, result(72.0, "sigmoid=False", **grey)) is None
    assert ours(10, "s=0.5;model=global", *cell, result(73.0, "", "global_acc_pooled", **grey)) == 73.0
    assert ours(10, "s=0.5;model=local", *cell, result(74.0, **grey)) == 74.0


def test_clients_that_never_took_part():
    run = {"novel": 0.2, "setting": "cifar10, novel"}
    cell = (8, "s=0.5", "pFedGate", "CIFAR10")
    assert ours(*cell, "acc_mean_novel", result(73.0, "", "acc_novel", **run)) == 73.0
    assert ours(*cell, "acc_mean_participating", result(74.0, "", "acc_participating", **run)) == 74.0
    assert ours(*cell, "gap", result(1.0, "", "novel_gap", **run)) == 1.0


def test_novel_clients_of_fedavg_fine_tune():
    run = {"novel": 0.2, "setting": "cifar10, novel"}
    cell = (8, "", "FedAvg", "CIFAR10")
    plain, tuned = (result(v, "", "acc_novel", m, **run) for m, v in (("fedavg", 60.0), ("fedavg_ft", 70.0)))
    assert ours(*cell, "acc_mean_novel", plain, tuned) == 70.0 and ours(*cell, "acc_mean_novel", plain) is None
    assert ours(*cell, "gap", result(5.0, "", "novel_gap", "fedavg", **run)) is None


def test_other_methods():
    assert ours(1, "s=0.55", "HeteroFL", "CIFAR10", "acc_mean", result(60.0, method="heterofl")) == 60.0
    assert ours(13, "s=0.3", "FedMask", "CIFAR10", "acc_mean", result(61.0, "keep_ratio=0.3", method="fedmask")) == 61.0
    near = result(62.0, "public=cifar100;public_normalise=cifar10", method="fedmd")
    assert ours(6, "public=near_transfer", "FedMD", "CIFAR10", "acc_mean", near) == 62.0
    assert ours(6, "public=far_transfer", "FedMD", "CIFAR10", "acc_mean", near) is None


@pytest.mark.parametrize("variant", ["reading=authors_code", "keep_momentum=False"])
def test_other_readings_and_options_fill_no_cell(variant):
    assert ours(1, "s=0.5", "pFedGate", "CIFAR10", "acc_mean", result(70.0, variant)) is None


def test_the_stand_in_for_emnist_is_named():
    run = result(80.0, dataset="fashion_mnist", data="fashion_mnist", setting="fashion_mnist")
    rows = [row for row in compare(COMPARISON, frame(run)) if row["ours"] is not None]
    assert {row["dataset"] for row in rows} == {"EMNIST"}
    assert {row["data"] for row in rows} == {"fashion_mnist (stand-in)"}

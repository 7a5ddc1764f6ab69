"""Which stored run fills which cell of FedPeWS's tables."""

import pandas as pd

from pfl_core.papers.fedpews.comparison import COMPARISON
from tests.study import cells
from tests.study.cells import RUN, filled, results

PEWS = dict(paper="fedpews", dataset="cifar_mnist", data="cifar_mnist", method="fedpews", metric="acc_pooled")
CIFAR_MNIST = dict(dataset="CIFAR-MNIST", metric="final_accuracy")
MEDICAL = dict(CIFAR_MNIST, dataset="{Path-OCT-Tissue}MNIST")


def cell(stored, **where):
    return cells.cell(COMPARISON, stored, **where)


def test_on_another_base_and_pooled_accuracy():
    learned = "lam=2;tau=0.5"  # of Table 3 as well, which does not state them
    stored = results(dict(PEWS, variant=f"base=fedprox;{learned}", value=74.0), dict(PEWS, variant=learned, value=75.0))
    assert cell(stored, **CIFAR_MNIST, table="table3", method="FedProx+PeWS", variant="")["ours"] == 74.0
    assert cell(stored, **CIFAR_MNIST, table="table3", method="FedAvg+PeWS", variant="")["ours"] == 75.0
    where = dict(CIFAR_MNIST, table="table7", method="FedAvg+PeWS")
    assert cell(stored, **where, variant="lambda=2.0;tau=0.5")["ours"] == 75.0
    assert cell(stored, **where, variant="lambda=5.0;tau=0.5")["ours"] is None


def test_main_run_has_the_columns_of_table_2():
    """Its variant names only what differs from the method's defaults: nothing, at lr_server 1."""
    run = dict(PEWS, dataset="synthetic_32k", data="synthetic_32k", variant="")
    rows = filled(COMPARISON, results(run))
    assert [(row["method"], row["paper"]) for row in rows] == [("FedAvg+PeWS", 99.96)]
    half = dict(run, variant="tau=0.2;lr_server=0.5;lam=2", metric="rounds_to_target", value=180.0)
    rows = filled(COMPARISON, results(half))
    assert [(row["table"], row["paper"], row["ours"]) for row in rows] == [("table2", 182.0, 180.0)]
    prox = dict(run, variant="base=fedprox;lam=0.1")
    rows = filled(COMPARISON, results(prox))
    assert [(row["table"], row["method"], row["paper"]) for row in rows] == [("table6", "FedProx+PeWS", 99.96)]


def test_fixed_masks_and_no_warmup():
    stored = results(
        dict(PEWS, method="fedpews_fixed", variant="tau=0.4", value=74.0),
        dict(PEWS, method="fedpews_fixed", variant="tau=0.4;shares=(0.25, 0.75)", value=10.0),
        dict(PEWS, method="fedavg", variant="", value=71.0),
    )
    where = dict(CIFAR_MNIST, table="table7")
    assert cell(stored, **where, method="FedPeWS-Fixed", variant="tau=0.4")["ours"] == 74.0
    assert cell(stored, **where, method="FedPeWS-Fixed", variant="tau=0.5")["ours"] is None
    assert cell(stored, **where, method="FedAvg", variant="tau=0.0")["ours"] == 71.0
    assert cell(stored, **CIFAR_MNIST, table="table3", method="FedAvg", variant="")["ours"] == 71.0


def test_rounds_are_of_the_seeds_that_reach_the_target():
    run = dict(PEWS, dataset="synthetic_32k", method="fedavg", variant="", metric="rounds_to_target")
    stored = results(dict(run, value=140.0), dict(run, seed=1, value=float("nan")), dict(run, seed=2, value=150.0))
    [row] = filled(COMPARISON, stored)
    assert (row["paper"], row["ours"], row["seeds"]) == (148.0, 145.0, [0, 2])


def test_stand_ins_are_marked_and_come_last():
    where = dict(MEDICAL, table="table8", method="FedPeWS-Fixed", variant="tau=0.2")
    run = dict(PEWS, method="fedpews_fixed", variant="tau=0.2", setting="path_oct_tissue")
    small = run | dict(dataset="synthetic_3200", data="our generator", preset="quick")
    mixed = run | dict(dataset="mnist+fashion_mnist+cifar10", data="cifar10: JPEG copy", value=70.0)
    own = run | dict(dataset="path_oct_tissue", data="path_oct_tissue", preset="quick", value=50.0)

    def shown(*runs):
        return cell(pd.DataFrame([RUN | run for run in runs]), **where)

    assert shown(small)["data"] == "synthetic_3200 (our generator) (stand-in)"
    row = shown(small, mixed)
    assert (row["ours"], row["data"]) == (70.0, "mnist+fashion_mnist+cifar10 (cifar10: JPEG copy) (stand-in)")
    assert (shown(small, mixed, own)["ours"], shown(own)["data"]) == (50.0, "path_oct_tissue")


def test_experiments_on_one_data_set_stay_apart():
    run = dict(PEWS, method="fedavg", variant="", dataset="synthetic_3200", data="synthetic_3200", preset="quick")
    names = ("lr_server=1", "cifar_mnist", "path_oct_tissue", "four clients")
    stored = pd.DataFrame([RUN | run | dict(setting=name, value=float(i)) for i, name in enumerate(names)])
    found = {(r["table"], r["dataset"]): r["ours"] for r in filled(COMPARISON, stored)}
    assert found == {
        ("table2", "Synthetic-32K"): 0.0,
        ("table3", "CIFAR-MNIST"): 1.0,
        ("table7", "CIFAR-MNIST"): 1.0,
        ("table3", "{Path-OCT-Tissue}MNIST"): 2.0,
        ("table8", "{Path-OCT-Tissue}MNIST"): 2.0,
    }


def test_columns_differ_by_the_server_rate():
    run = dict(paper="fedpews", dataset="synthetic_32k", data="synthetic_32k", method="fedavg", metric="acc_pooled")
    stored = results(dict(run, variant="", value=99.0), dict(run, variant="lr_server=0.5", value=91.0))
    rows = filled(COMPARISON, stored)
    assert [(row["table"], row["paper"], row["ours"]) for row in rows] == [
        ("table2", 99.94, 99.0),
        ("table2", 91.4, 91.0),
    ]

"""The papers' cells beside made-up results."""

import json

import pandas as pd
import pytest

from pfl_core.paper import PAPERS, as_frame, table
from pfl_core.study import compare
from pfl_core.study.compare import ROW
from pfl_core.study.statistics import COLUMNS

RUN = dict(
    paper="fedselect", dataset="cifar10", method="fedselect", variant="alpha=0.3", metric="acc_mean", value=80.0,
    seed=0, preset="real", data="cifar10 (JPEG copy)", stale=False,
)  # fmt: skip


def results(*runs):
    return pd.DataFrame([RUN | run for run in runs], columns=COLUMNS)


def cell(stored, **where):
    """The one row of the comparison that fits."""
    where = dict(table="table2", dataset="CIFAR-10", variant="alpha=0.30") | where
    found = [row for row in compare(where.pop("paper", "fedselect"), stored) if where.items() <= row.items()]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("paper", PAPERS)
def test_a_row_for_each_cell_and_nothing_of_ours_in_an_empty_store(paper):
    rows = compare(paper, results())
    assert len(rows) == len(table(paper))
    assert all(list(row) == ROW for row in rows)
    assert all(row["ours"] is None and row["seeds"] is None and row["stale"] is None for row in rows)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows


def test_mean_spread_and_seeds():
    row = cell(results(dict(value=80.0), dict(value=84.0, seed=2), dict(value=82.0, seed=1)))
    assert (row["paper"], row["ours"], row["spread"], row["seeds"]) == (82.25, 82.0, 2.0, [0, 1, 2])
    assert (row["preset"], row["data"], row["stale"]) == ("real", "cifar10 (JPEG copy)", False)
    json.dumps(row)


def test_one_seed_has_no_spread():
    assert cell(results({}))["spread"] is None


def test_the_same_run_stands_in_table_3_too():
    assert cell(results({}), table="table3")["ours"] == 80.0


def test_presets_in_order_and_never_ci():
    stored = [dict(preset=preset, value=value) for preset, value in (("quick", 1.0), ("real", 2.0), ("paper", 3.0))]
    assert [cell(results(*stored[:n]))["ours"] for n in (1, 2, 3)] == [1.0, 2.0, 3.0]
    assert cell(results(dict(preset="ci")))["ours"] is None


def test_a_fresh_run_before_a_stale_one():
    row = cell(results(dict(value=1.0, stale=True), dict(value=2.0)))
    assert (row["ours"], row["stale"], row["seeds"]) == (2.0, False, [0])
    assert cell(results(dict(stale=True), dict(seed=1)))["stale"] is True


def test_a_stand_in_shows_its_name_and_only_where_the_papers_data_are_not_stored():
    digits = dict(dataset="digits", data="digits", value=99.0, preset="paper")
    row = cell(results(digits))
    assert (row["ours"], row["data"]) == (99.0, "digits (stand-in)")
    row = cell(results(digits, dict(preset="quick")))
    assert (row["ours"], row["data"]) == (80.0, "cifar10 (JPEG copy)")


@pytest.mark.parametrize("other", [dict(dataset="mnist", data="mnist"), dict(paper="pfedgate"), dict(method="ditto")])
def test_other_data_papers_and_methods_never_fill_a_cell(other):
    assert cell(results(other))["ours"] is None


def test_digits_stand_in_for_nothing_else():
    rows = compare("fedselect", results(dict(dataset="digits", data="digits")))
    assert {row["dataset"] for row in rows if row["ours"] is not None} == {"CIFAR-10"}


def test_runs_of_different_length_are_not_mixed():
    stored = results(dict(value=90.0), dict(value=10.0), dict(seed=1)).assign(rounds=[60, 5, 5])
    row = cell(stored)
    assert (row["ours"], row["seeds"]) == (90.0, [0])


def test_copies_of_a_data_set_are_not_mixed():
    row = cell(results(dict(value=90.0, data="cifar10"), dict(seed=1)))
    assert (row["ours"], row["data"], row["seeds"]) == (90.0, "cifar10", [0])


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
    found = [(row["table"], row["variant"]) for row in compare("fedselect", stored) if row["ours"] is not None]
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


def test_a_file_without_variants_has_a_column_of_nan():
    stored = results(dict(method="fedavg", variant=float("nan")))
    assert cell(stored, table="table1", method="FedAvg", variant="")["ours"] == 80.0


def test_star_pfl_is_shown_in_its_unit():
    run = dict(paper="star_pfl", dataset="organamnist", data="organamnist", method="star_pfl", variant="alpha=0.1")
    run["metric"] = "acc_mean_picked"  # of the round that is best on validation data
    where = dict(paper="star_pfl", dataset="Axial", method="Star-PFL", variant="alpha=0.1", table="table2")
    row = cell(results(dict(run, value=91.0), dict(run, value=93.0, seed=1)), **where)
    assert (row["paper"], row["ours"], row["spread"]) == (0.9247, pytest.approx(0.92), pytest.approx(0.0141421356))


PEWS = dict(paper="fedpews", dataset="cifar_mnist", data="cifar_mnist", method="fedpews", metric="acc_pooled")
CIFAR_MNIST = dict(paper="fedpews", dataset="CIFAR-MNIST", metric="final_accuracy")
MEDICAL = dict(CIFAR_MNIST, dataset="{Path-OCT-Tissue}MNIST")


def test_fedpews_on_another_base_and_pooled_accuracy():
    learned = "lam=2;tau=0.5"  # of Table 3 as well, which does not state them
    stored = results(dict(PEWS, variant=f"base=fedprox;{learned}", value=74.0), dict(PEWS, variant=learned, value=75.0))
    assert cell(stored, **CIFAR_MNIST, table="table3", method="FedProx+PeWS", variant="")["ours"] == 74.0
    assert cell(stored, **CIFAR_MNIST, table="table3", method="FedAvg+PeWS", variant="")["ours"] == 75.0
    where = dict(CIFAR_MNIST, table="table7", method="FedAvg+PeWS")
    assert cell(stored, **where, variant="lambda=2.0;tau=0.5")["ours"] == 75.0
    assert cell(stored, **where, variant="lambda=5.0;tau=0.5")["ours"] is None


def test_fedpews_main_run_has_the_columns_of_table_2():
    """Its variant names only what differs from the method's defaults: nothing, at lr_server 1."""
    run = dict(PEWS, dataset="synthetic_32k", data="synthetic_32k", variant="")
    rows = [row for row in compare("fedpews", results(run)) if row["ours"] is not None]
    assert [(row["method"], row["paper"]) for row in rows] == [("FedAvg+PeWS", 99.96)]
    half = dict(run, variant="tau=0.2;lr_server=0.5;lam=2", metric="rounds_to_target", value=180.0)
    rows = [row for row in compare("fedpews", results(half)) if row["ours"] is not None]
    assert [(row["table"], row["paper"], row["ours"]) for row in rows] == [("table2", 182.0, 180.0)]
    prox = dict(run, variant="base=fedprox;lam=0.1")
    rows = [row for row in compare("fedpews", results(prox)) if row["ours"] is not None]
    assert [(row["table"], row["method"], row["paper"]) for row in rows] == [("table6", "FedProx+PeWS", 99.96)]


def test_fedpews_fixed_masks_and_no_warmup():
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


def test_fedpews_rounds_are_of_the_seeds_that_reach_the_target():
    run = dict(PEWS, dataset="synthetic_32k", method="fedavg", variant="", metric="rounds_to_target")
    stored = results(dict(run, value=140.0), dict(run, seed=1, value=float("nan")), dict(run, seed=2, value=150.0))
    [row] = [row for row in compare("fedpews", stored) if row["ours"] is not None]
    assert (row["paper"], row["ours"], row["seeds"]) == (148.0, 145.0, [0, 2])


def test_fedpews_stand_ins_are_marked_and_come_last():
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


def test_fedpews_experiments_on_one_data_set_stay_apart():
    run = dict(PEWS, method="fedavg", variant="", dataset="synthetic_3200", data="synthetic_3200", preset="quick")
    names = ("lr_server=1", "cifar_mnist", "path_oct_tissue", "four clients")
    stored = pd.DataFrame([RUN | run | dict(setting=name, value=float(i)) for i, name in enumerate(names)])
    found = {(r["table"], r["dataset"]): r["ours"] for r in compare("fedpews", stored) if r["ours"] is not None}
    assert found == {
        ("table2", "Synthetic-32K"): 0.0,
        ("table3", "CIFAR-MNIST"): 1.0,
        ("table7", "CIFAR-MNIST"): 1.0,
        ("table3", "{Path-OCT-Tissue}MNIST"): 2.0,
        ("table8", "{Path-OCT-Tissue}MNIST"): 2.0,
    }


def test_fedpews_columns_differ_by_the_server_rate():
    run = dict(paper="fedpews", dataset="synthetic_32k", data="synthetic_32k", method="fedavg", metric="acc_pooled")
    stored = results(dict(run, variant="", value=99.0), dict(run, variant="lr_server=0.5", value=91.0))
    rows = [row for row in compare("fedpews", stored) if row["ours"] is not None]
    assert [(row["table"], row["paper"], row["ours"]) for row in rows] == [
        ("table2", 99.94, 99.0),
        ("table2", 91.4, 91.0),
    ]


def test_columns_are_checked():
    with pytest.raises(ValueError, match="results lack stale; expected a tidy frame with paper, dataset"):
        compare("fedselect", results().drop(columns="stale"))


def test_frame():
    rows = compare("fedselect", results({}, dict(seed=1, value=81.0)))
    assert as_frame(rows).shape == (len(rows), len(ROW)) and list(as_frame([]).columns) == ROW

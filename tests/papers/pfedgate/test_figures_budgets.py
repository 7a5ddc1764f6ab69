"""Figures of pFedGate: labels, the paper's tables as lines, drawn values."""

import math

import numpy as np
import pandas as pd
import pytest

from pfl_core.papers.pfedgate import figures
from pfl_core.papers.pfedgate.paper import PAPER
from tests.plots import drawn, named


def runs() -> pd.DataFrame:
    budgets = [1.0, 0.5, 0.3, (0.5, 0.1)]
    rows = [("pfedgate", s, seed, 90.0 - i) for i, s in enumerate(budgets) for seed in (0, 1)]
    rows += [("fedavg", math.nan, seed, 80.0) for seed in (0, 1)]
    frame = pd.DataFrame(rows, columns=["method", "keep_ratio", "seed", "acc_pooled"])
    shares = {"acc_bottom_decile": 70.0, "achieved_keep_ratio": 0.4, "upload_ratio": 0.5}
    return figures.budgets.gates(frame.assign(**shares))


def test_labels_contain_budgets_and_methods():
    table = runs()
    assert list(dict.fromkeys(table["label"])) == [
        *("pFedGate, s = 1", "pFedGate, s = 0.5", "pFedGate, s = 0.3", "pFedGate, s = mixed", "FedAvg")
    ]
    assert table.groupby("label")["color"].nunique().eq(1).all() and table["color"].nunique() == 5


def test_labels_of_the_controls():
    rows = [("learned", None, "first_min_ratio"), ("learned", None, "output_rows")]  # the second is not a control
    rows += [(mask, scale, "balanced") for mask in ("learned", "small_blocks", "random") for scale in (None, 1.0)]
    found = figures.budgets.controls(pd.DataFrame(rows, columns=["mask", "gate_override", "block_layout"]))
    assert found["label"].tolist() == [
        "the paper's gate",
        *("learned mask, learned scales", "learned mask, scales of 1"),
        *("fixed mask, learned scales", "fixed mask, scales of 1"),
        *("random masks, learned scales", "random masks, scales of 1"),
    ]
    assert found["color"].nunique() == 6


def test_the_papers_accuracy_over_budgets():
    lines = figures.budgets.published_budgets(PAPER.table()).pivot(index="label", columns="s", values="value")
    assert lines.loc["EMNIST", ["1", "0.5", "0.3", "0.1"]].tolist() == [87.11, 87.28, 87.09, 83.58]
    assert lines.loc["CIFAR10", "0.1"] == 70.26 and math.isnan(lines.loc["CIFAR100", "0.1"])


@pytest.mark.parametrize(("number", "x", "texts"), [(11, "step", "1248"), (13, "B", ["2", "5", "10"])])
def test_the_papers_tables_over_an_option(number, x, texts):
    found = figures.budgets.published(PAPER.table(number), x)
    assert set(found["x"]) == set(texts) and set(found["panel"]) == {f"paper: Table {number}"}
    assert not found.duplicated(["label", "x"]).any()


def test_mixed_budgets_are_not_on_the_line():
    table = runs()
    own, rivals = table[table["method"] == "pfedgate"], table[table["method"] == "fedavg"]
    fig = figures.budgets.over_budgets(own, figures.budgets.published_budgets(PAPER.table()), rivals, "caption")
    assert [text.get_text() for text in fig.axes[1].get_xticklabels()] == ["1", "0.5", "0.3", "mixed"]
    line = next(line for line in fig.axes[1].lines if line.get_label() == "pFedGate, mean")
    assert len(line.get_xdata()) == 3
    drawn(fig)


@pytest.mark.parametrize(("falling", "order"), [(False, ["2", "5", "10"]), (True, ["10", "5", "2"])])
def test_options_are_in_order(falling, order):
    ours = runs().query("method == 'pfedgate' and s != 'mixed'").assign(blocks_per_tensor=5)
    table = [figures.budgets.published(PAPER.table(13), "B"), figures.budgets.options(ours, "blocks_per_tensor")]
    fig = figures.budgets.over_options(pd.concat(table), "B", falling=falling)
    assert [text.get_text() for text in fig.axes[1].get_xticklabels()] == order
    drawn(fig)


def test_client_differences_are_sorted_and_counted():
    points = {"FedEM": [1.0, -2.0, 3.0, 0.0], "FedRep": [-1.0, -1.0, -1.0, 1.0]}
    rows = [
        (label, seed, client, value + 2 * seed - 2)
        for label, values in points.items() for seed in range(3) for client, value in enumerate(values)
    ]  # fmt: skip
    fig = figures.budgets.client_differences(pd.DataFrame(rows, columns=["label", "seed", "client", "points"]))
    first, second = fig.axes
    assert [bar.get_height() for bar in first.patches] == [3.0, 1.0, 0.0, -2.0]
    assert first.get_title() == "minus FedEM: +0.50 [-4.47, +5.47]\nbetter for 2, worse for 1"
    assert second.get_title() == "minus FedRep: -0.50 [-5.47, +4.47]\nbetter for 1, worse for 3"
    drawn(fig)


def test_masks_have_a_panel_for_each_budget_below_the_block_sizes():
    use = {"s = 0.5": np.eye(4), "s = 0.3": np.ones((4, 4))}
    fig = figures.masks.mask_use(use, np.array([4, 3, 2, 1]), "caption")
    *panels, _ = fig.axes  # the last one is the colour bar
    assert [ax.get_title() for ax in panels] == ["s = 0.5", "s = 0.3", "", ""]
    assert [bar.get_height() for bar in panels[0].patches] == [40, 30, 20, 10]
    assert [ax.images[0].get_array().tolist() for ax in panels[2:]] == [mask.tolist() for mask in use.values()]
    drawn(fig)


def test_histograms_count_the_blocks_of_every_round():
    """Six blocks, three rounds: all at 0.5, in the middle one of 25 bins, or all at 0, in the first."""
    fig = figures.masks.gate_histograms({"s = 1": np.full((3, 6), 0.5), "s = 0.5": np.zeros((3, 6))})
    *panels, _ = fig.axes
    assert [ax.get_title() for ax in panels] == ["s = 1", "s = 0.5"]
    for ax, place in zip(panels, (12, 0), strict=True):
        assert ax.images[0].get_array().tolist() == [[6 * (i == place) for i in range(25)]] * 3
    drawn(fig)


def test_gated_and_global_models():
    table = pd.DataFrame(
        {"panel": ["mean"] * 2, "s": ["1", "0.5"], "seed": 0, "gated": [90, 80], "global_model": [85, 70]}
    )
    fig = figures.masks.gated_and_global(pd.concat([table, table.assign(panel="worst tenth", gated=60)]))
    assert [ax.get_title() for ax in fig.axes] == ["mean", "worst tenth"]
    shown = [{label[:6]: list(line.get_ydata()) for label, line in named(ax).items()} for ax in fig.axes]
    assert shown == [{"gated ": [90, 80], "global": [85, 70]}, {"gated ": [60, 60], "global": [85, 70]}]
    assert [text.get_text() for text in fig.axes[0].get_xticklabels()] == ["1", "0.5"]
    drawn(fig)


def test_swapped_gates_have_one_row_for_each_gate():
    rows = [(f"s = {s}", gate, k, 50.0 + k) for s in (1, 0.5) for gate in ("own", "mean gate") for k in range(3)]
    fig = figures.masks.gate_swaps(pd.DataFrame(rows, columns=["panel", "gate", "client", "accuracy"]), "caption")
    assert [text.get_text() for text in fig.axes[0].get_yticklabels()] == ["own", "mean gate"]
    assert fig.axes[1].get_title() == "s = 0.5"
    drawn(fig)

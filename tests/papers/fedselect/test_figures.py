"""FedSelect's figures: means over seeds, limits, rates, sizes, layers, and their colours."""

import math

import numpy as np
import pandas as pd
import pytest

from pfl_core.papers.fedselect import figures
from pfl_core.papers.fedselect.figures import shade
from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.study import plots
from tests.plots import data, drawn, named, texts

ALPHA = r"$\alpha$ = "


def test_limits_are_labelled_and_larger_ones_are_darker():
    rows = [("fedavg", math.nan), ("fedselect", 0.05), ("fedselect", 0.5), ("fedselect", 1.0)]
    table = figures.labelled(pd.DataFrame(rows, columns=["method", "alpha"]))
    assert table["label"].tolist() == ["FedAvg", *(f"FedSelect, α = {alpha}" for alpha in ("0.05", "0.5", "1"))]
    first, *own = table["color"]
    assert first == plots.COLORS["fedavg"]
    assert sorted(own, key=lambda color: -sum(color)) == own and len(set(own)) == 3


def test_runs_that_rank_tensor_by_tensor_have_separate_labels_and_colours():
    rows = [("fedselect", 0.3, "global"), ("fedselect", 0.3, "per_tensor"), ("local", math.nan, math.nan)]
    table = figures.labelled(pd.DataFrame(rows, columns=["method", "alpha", "selection_scope"]))
    assert table["label"].tolist() == ["FedSelect, α = 0.3", "FedSelect, α = 0.3, tensor by tensor", "Local"]
    assert table["color"].nunique() == 3
    rows = [("change", "grown", (), scope) for scope in ("global", "per_tensor")]
    table = figures.rules(pd.DataFrame(rows, columns=["ranking", "masks", "layers", "selection_scope"]))
    assert table["label"].tolist() == ["most change (FedSelect)", "most change (FedSelect), tensor by tensor"]
    assert table["color"].nunique() == 2


def test_rules_are_named_by_ranking_masks_and_layers():
    rows = [
        *(("change", "grown", ()), ("least_change", "grown", ()), ("random", "grown", ()), ("random", "random", ())),
        *(("random", "common_random", ()), ("change", "layers", ("fc1",)), ("gradient", "grown", ())),
    ]
    table = figures.rules(pd.DataFrame(rows, columns=["ranking", "masks", "layers"]))
    assert table["label"].tolist() == [
        *("most change (FedSelect)", "least change", "random, growing", "random, fixed"),
        *("one random mask for all", "only fc1", "largest gradients"),
    ]
    assert table["color"].iloc[0] == plots.COLORS["fedselect"] and table["color"].nunique() == 7


def test_accuracy_by_limit_and_by_final_share():
    ours = [(0.3, 0.2, 70.0), (0.3, 0.4, 80.0), (0.8, 0.5, 60.0), (0.8, 0.7, 66.0)]
    fig = drawn(
        figures.personalization_limit(
            pd.DataFrame(ours, columns=["alpha", "personal_share", "acc_mean"]).assign(seed=0),
            pd.DataFrame({"dataset": ["CIFAR-10"] * 2, "alpha": [0.3, 0.8], "value": [81.0, 82.0]}),
            pd.DataFrame({"method": ["local", "local"], "acc_mean": [50.0, 52.0]}),
        )
    )
    paper, by_limit, by_share = fig.axes
    assert [ax.get_title() for ax in fig.axes] == ["paper: Table 2 (ResNet18)", "reproduced", "reproduced, closer"]
    assert {name: data(line) for name, line in named(paper).items()} == {"paper: CIFAR-10": ([0.3, 0.8], [81, 82])}
    assert data(named(by_limit)["FedSelect"]) == ([0.3, 0.8], [75, 63])
    assert [list(line.get_ydata()) for line in by_limit.lines[:2]] == [[70, 80], [60, 66]], "a dot for each seed"
    shares, means = data(named(by_share)["FedSelect"])
    assert shares == pytest.approx([0.3, 0.6]) and means == [75, 63]
    for ax in (by_limit, by_share):
        assert list(named(ax)["Local"].get_ydata()) == [51, 51]
        assert {name: line.get_color() for name, line in named(ax).items()} == {
            "FedSelect": plots.COLORS["fedselect"], "Local": plots.COLORS["local"],
        }  # fmt: skip


def test_limits_far_below_the_others_are_not_in_the_closer_panel():
    """α = 0 and FedAvg at 30, the others from 70 to 75."""
    ours = [
        (alpha, alpha, value)
        for alpha, value in ((0, 30.0), (0.05, 71.0), (0.3, 70.0), (0.5, 72.0), (0.8, 74.0), (1, 73.0))
    ]
    rivals = pd.DataFrame({"method": ["fedavg", "local", "ditto"], "acc_mean": [30.0, 75.0, 73.0]})
    fig = figures.personalization_limit(
        pd.DataFrame(ours, columns=["alpha", "personal_share", "acc_mean"]).assign(seed=0),
        pd.DataFrame({"dataset": ["CIFAR-10"], "alpha": [0.3], "value": [81.0]}),
        rivals,
        "caption",
    )
    paper, by_limit, by_share = drawn(fig).axes
    assert paper.get_ylim() == by_limit.get_ylim() and by_limit.get_ylim()[0] < 30 < 65 < by_share.get_ylim()[0]
    assert set(named(by_limit)) - set(named(by_share)) == {"FedAvg"}
    assert "below the scale of the last panel: α = 0, FedAvg" in " ".join(fig.get_supxlabel().split())


def test_the_effect_of_the_rate_has_a_line_for_each_limit():
    rows = [(a, p, s, 50 + 100 * a + s, p / 2) for a in (0.05, 0.8) for p in (0.2, 0.05, 1.0) for s in (0, 2)]
    table = pd.DataFrame(rows, columns=["alpha", "p", "seed", "acc_mean", "personal_share"])
    left, right = drawn(figures.personalization_rate(table)).axes
    assert {name: data(line) for name, line in named(left).items()} == {
        ALPHA + "0.05": ([0.05, 0.2, 1], [56] * 3), ALPHA + "0.8": ([0.05, 0.2, 1], [131] * 3),
    }  # fmt: skip
    assert list(named(right)[ALPHA + "0.8"].get_ydata()) == [0.025, 0.1, 0.5]
    assert [line.get_color() for line in named(left).values()] == [shade(0.05), shade(0.8)]
    assert texts(left.get_xticklabels()) == texts(right.get_xticklabels()) == ["0.05", "0.2", "1"]


def test_mask_growth_shows_shares_of_all_and_of_movable_parameters():
    rows = [
        (a, seed, t, metric, a * t + 0.1 * seed + (metric == "movable_share"))
        for metric in ("personal_share", "movable_share")
        for a in (0.3, 0.5)
        for seed in (0, 1)
        for t in (1, 2)
    ]
    fig = drawn(figures.mask_growth(pd.DataFrame(rows, columns=["alpha", "seed", "round", "metric", "value"])))
    assert [ax.get_title() for ax in fig.axes] == [
        "of all parameters",
        "of the parameters that may become personal",
    ]
    for ax, more in zip(fig.axes, (0, 1), strict=True):
        lines = named(ax)
        assert list(lines) == [ALPHA + "0.3", ALPHA + "0.5"]
        assert list(lines[ALPHA + "0.5"].get_ydata()) == pytest.approx([0.55 + more, 1.05 + more])
        assert [line.get_color() for line in lines.values()] == [shade(0.3), shade(0.5)]


def test_training_sizes_have_a_line_for_each_method():
    rows = [
        (label, color, n, s, n / 10 + s) for label, color in (("A", "r"), ("B", "b")) for n in (100, 25) for s in (0, 2)
    ]
    table = pd.DataFrame(rows, columns=["label", "color", "images", "seed", "acc_mean"])
    fig = drawn(figures.training_sizes(table))
    for ax in fig.axes:
        assert {name: (line.get_color(), *data(line)) for name, line in named(ax).items()} == {
            "A": ("r", [25, 100], [3.5, 11]), "B": ("b", [25, 100], [3.5, 11]),
        }  # fmt: skip
        assert texts(ax.get_xticklabels()) == ["25", "100"] and ax.get_xscale() == "log"
    far = [(label, "r", 25, 0, value) for label, value in zip("ABCDEFG", (-900, 3, 4, 5, 6, 7, 8), strict=True)]
    far += [("FedSelect, α = 0.3", "k", 25, 0, 6.0)]
    whole, near = drawn(figures.training_sizes(pd.DataFrame(far, columns=table.columns))).axes
    assert set(named(whole)) - set(named(near)) == {"A"} and near.get_title() == "closer, without methods far below"
    assert list(named(near))[-1] == "FedSelect, α = 0.3", "drawn above the others"


def test_overlaps_have_a_line_for_each_normalisation():
    kinds = ("iou_raw", "iou_minmax", "iou_chance")
    rows = [
        {"alpha": a, "seed": s} | {f"{kind}_mean": a + i for i, kind in enumerate(kinds)}
        | {f"{kind}_contrast": s - i for i, kind in enumerate(kinds)}
        for a in (0.5, 0.3)
        for s in (0, 1)
    ]  # fmt: skip
    fig = drawn(figures.overlap_contrast(pd.DataFrame(rows)))
    left, right = fig.axes
    shown = [label for label, _ in figures.OVERLAPS.values()]
    assert list(figures.OVERLAPS) == list(kinds)
    assert [data(named(left)[label]) for label in shown] == [([0.3, 0.5], [0.3 + i, 0.5 + i]) for i in range(3)]
    assert [data(named(right)[label]) for label in shown] == [([0.3, 0.5], [0.5 - i] * 2) for i in range(3)]
    assert texts(fig.legends[0].get_texts()) == shown


def test_layers_keep_their_order():
    rows = [(a, s, tensor, a + s) for a in (0.3, 0.5) for s in (0, 1) for tensor in ("fc1.weight", "conv1.weight")]
    (ax,) = drawn(figures.layer_contrast(pd.DataFrame(rows, columns=["alpha", "seed", "tensor", "contrast"]))).axes
    assert texts(ax.get_xticklabels()) == ["fc1", "conv1"]
    assert {name: data(line) for name, line in named(ax).items()} == {
        ALPHA + "0.3": ([-0.25, 0.75], [0.8, 0.8]), ALPHA + "0.5": ([0.25, 1.25], [1, 1]),
    }  # fmt: skip
    assert [line.get_color() for line in named(ax).values()] == [shade(0.3), shade(0.5)]


def test_a_frame_marks_what_is_personal():
    values, personal = np.array([[1.0, -2.0], [0.0, 4.0]]), np.array([[True, False], [True, True]])
    fig = drawn(figures.partitions({"before": (values, ~personal), "after": (values, personal)}, ["a", "b"]))
    before, after, _ = fig.axes
    assert [ax.get_title() for ax in (before, after)] == ["before", "after"]
    assert [[(round(p.get_x()), round(p.get_y())) for p in ax.patches] for ax in (before, after)] == [
        [(1, 0)], [(0, 0), (0, 1), (1, 1)],
    ]  # fmt: skip
    assert texts(after.get_xticklabels()) == ["a", "b"]
    (image,) = after.images
    assert image.get_array().tolist() == values.tolist() and image.get_clim() == (-4, 4)


def test_the_papers_numbers_stand_beside_their_methods():
    """Table 1's for baselines, Table 2's for FedSelect at its limit; none for data or limits that are not printed."""
    labels = ["Local", "FedSelect, α = 0.3", "FedSelect, α = 0.1", "Local"]
    cells = pd.DataFrame({"dataset": ["cifar10", "cifar10_c", "cifar10", "digits"], "label": labels})
    values = figures.published_cells(cells, PAPER.table(1), PAPER.table(2))
    assert values.tolist()[:2] == [74.6, 70.6] and values[2:].isna().all()


def test_options_of_the_code_have_plain_words():
    assert figures.option_text("p=0.5; alpha=0.5; limit_comparison=inclusive") == (
        "p = 0.5; α = 0.5; grow at the limit, too"
    )

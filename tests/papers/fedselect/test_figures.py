"""FedSelect's figures: means over seeds, limits, rates, sizes, layers, and their colours."""

import math

import numpy as np
import pandas as pd
import pytest

from pfl_core.papers.fedselect.figures import comparison, limits, masks
from pfl_core.papers.fedselect.labels import shade
from pfl_core.study import plots
from tests.plots import data, drawn, named, texts

ALPHA = r"$\alpha$ = "


def test_accuracy_by_limit_and_by_final_share():
    ours = [(0.3, 0.2, 70.0), (0.3, 0.4, 80.0), (0.8, 0.5, 60.0), (0.8, 0.7, 66.0)]
    fig = drawn(
        limits.personalization_limit(
            pd.DataFrame(ours, columns=["alpha", "personal_share", "acc_mean"]).assign(seed=0),
            pd.DataFrame({"dataset": ["CIFAR-10"] * 2, "alpha": [0.3, 0.8], "value": [81.0, 82.0]}),
            pd.DataFrame({"method": ["local", "local"], "acc_mean": [50.0, 52.0]}),
        )
    )
    paper, by_limit, by_share = fig.axes
    assert [ax.get_title() for ax in fig.axes] == ["paper: Table 2 (ResNet18)", "here", "here, closer"]
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
    fig = limits.personalization_limit(
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
    left, right = drawn(limits.personalization_rate(table)).axes
    assert {name: data(line) for name, line in named(left).items()} == {
        ALPHA + "0.05": ([0.05, 0.2, 1], [56] * 3), ALPHA + "0.8": ([0.05, 0.2, 1], [131] * 3),
    }  # fmt: skip
    assert list(named(right)[ALPHA + "0.8"].get_ydata()) == [0.025, 0.1, 0.5]
    assert [line.get_color() for line in named(left).values()] == [shade(0.05), shade(0.8)]
    assert texts(left.get_xticklabels()) == texts(right.get_xticklabels()) == ["0.05", "0.2", "1"]


def growth(apart):
    """Personal shares of two limits and seeds; those of the movable parameters are larger by ``apart``."""
    rows = [
        (a, seed, t, metric, a * t + 0.1 * seed + apart * (metric == "movable_share"))
        for metric in ("personal_share", "movable_share")
        for a in (0.3, 0.5)
        for seed in (0, 1)
        for t in (1, 2)
    ]
    return pd.DataFrame(rows, columns=["alpha", "seed", "round", "metric", "value"])


def test_mask_growth_shows_shares_of_all_and_of_movable_parameters_if_they_differ():
    fig = drawn(limits.mask_growth(growth(1.0)))
    assert [ax.get_title() for ax in fig.axes] == ["of all parameters", "of the parameters that ever changed"]
    for ax, more in zip(fig.axes, (0, 1), strict=True):
        lines = named(ax)
        assert list(lines) == [ALPHA + "0.3", ALPHA + "0.5"]
        assert list(lines[ALPHA + "0.5"].get_ydata()) == pytest.approx([0.55 + more, 1.05 + more])
        assert [line.get_color() for line in lines.values()] == [shade(0.3), shade(0.5)]


def test_mask_growth_has_one_panel_if_the_shares_are_nearly_equal():
    fig = drawn(limits.mask_growth(growth(0.01), "caption"))
    (ax,) = fig.axes
    assert list(named(ax)[ALPHA + "0.5"].get_ydata()) == pytest.approx([0.55, 1.05])
    assert "differ by at most 0.01" in " ".join(fig.get_supxlabel().split())


METHODS = {"FedSelect, α = 0.3": "fedselect", "FedSelect, α = 0.5": "fedselect", "Local": "local", "FedAvg": "fedavg"}


def test_a_figure_of_many_methods_has_the_references_and_the_best_other_in_colour():
    rows = [(method, label, 50.0) for label, method in METHODS.items()]
    rows += [("ditto", "Ditto", 60.0), ("fedper", "FedPer", 55.0), ("fedper", "FedPer", 67.0)]
    table = pd.DataFrame(rows, columns=["method", "label", "acc_mean"])
    assert comparison.highlighted(table) == ["FedSelect, α = 0.3", "Local", "FedAvg", "FedPer"]
    assert comparison.highlighted(table[table["method"] == "local"]) == ["Local"]


def test_rounds_show_chosen_labels_with_bands_and_the_others_in_grey():
    values = {"A": 70.0, "B": 75.0, "C": 60.0, "D": 72.0, "E": 73.0, "far below": 10.0}
    shown = ["A", "B", "D", "E", "far below"]
    rows = [
        (panel, label, "r", seed, t, value + seed + t)
        for panel in ("one", "two")
        for label, value in values.items()
        for seed in (0, 2)
        for t in (1, 2, 3, 4)
    ]
    table = pd.DataFrame(rows, columns=["panel", "label", "color", "seed", "round", "value"])
    fig = drawn(comparison.rounds(table, shown, "caption"))
    assert [ax.get_title() for ax in fig.axes] == ["one", "two", "closer", "closer"]
    for ax in fig.axes:
        assert {name: data(line) for name, line in named(ax).items()} == {
            name: ([1, 2, 3, 4], [values[name] + 1 + t for t in (1, 2, 3, 4)]) for name in shown
        }
        assert len(ax.collections) == 5, "bands"
        assert [list(line.get_ydata()) for line in ax.lines if line.get_color() == "0.8"] == [[62, 63, 64, 65]]
    assert fig.axes[0].get_ylim()[0] < 12 and fig.axes[2].get_ylim()[0] > 60
    assert texts(fig.legends[0].get_texts()) == shown
    assert "grey, means: C" in fig.get_supxlabel() and "lowest to highest seed" in fig.get_supxlabel()


def test_training_sizes_have_a_line_for_each_method():
    rows = [
        (label, color, n, s, n / 10 + s)
        for label, color in (("A", "r"), ("B", "b"), ("C", "g"))
        for n in (100, 25)
        for s in (0, 2)
    ]
    table = pd.DataFrame(rows, columns=["label", "color", "images", "seed", "acc_mean"])
    fig = drawn(comparison.training_sizes(table, ["A", "B"], "caption"))
    for ax in fig.axes:
        assert {name: (line.get_color(), *data(line)) for name, line in named(ax).items()} == {
            "A": ("r", [25, 100], [3.5, 11]), "B": ("b", [25, 100], [3.5, 11]),
        }  # fmt: skip
        assert len(ax.collections) == 2, "bands"
        assert [data(line) for line in ax.lines if line.get_color() == "0.8"] == [([25, 100], [3.5, 11])]
        assert texts(ax.get_xticklabels()) == ["25", "100"] and ax.get_xscale() == "log"
    assert "grey, means: C" in fig.get_supxlabel()
    far = [(label, "r", 25, 0, value) for label, value in zip("ABCDEFG", (-900, 3, 4, 5, 6, 7, 8), strict=True)]
    far += [("FedSelect, α = 0.3", "k", 25, 0, 6.0)]
    shown = ["FedSelect, α = 0.3", *"ABCDEFG"]
    whole, near = drawn(comparison.training_sizes(pd.DataFrame(far, columns=table.columns), shown)).axes
    assert set(named(whole)) - set(named(near)) == {"A"} and near.get_title() == "closer, without methods far below"
    front, other = (named(near)[name] for name in ("FedSelect, α = 0.3", "B"))
    assert front.get_zorder() > other.get_zorder(), "drawn above the others"


def test_rules_have_one_x_axis_for_all_data_sets():
    rows = [("one", "A", 70.0), ("one", "B", 71.0), ("two", "A", 60.0), ("two", "B", 62.0)]
    cells = pd.DataFrame(rows, columns=["dataset", "label", "value"]).assign(std=1.0, panel="p", color="r")
    one, two = drawn(comparison.rules(cells)).axes
    assert one.get_xlim() == two.get_xlim() and one.get_xlim()[0] < 59 < 72 < one.get_xlim()[1]


def test_readings_without_a_score_come_last_among_fedselects_and_say_so():
    rows = [
        ("p=0.25", "r", 70.0),
        ("reading=authors_code", "r", math.nan),
        ("alpha=0.8", "r", 71.0),
        ("Local", "k", 60.0),
    ]
    first = pd.DataFrame(rows, columns=["label", "color", "value"]).assign(std=1.0, panel="one")
    fig = drawn(comparison.readings(pd.concat([first, first.fillna(75.0).assign(panel="two")])))
    one, two = fig.axes
    assert texts(one.get_yticklabels()) == ["p = 0.25", "α = 0.8", "the released code", "Local"]
    (note,) = [text for text in one.texts if text.get_text() == comparison.NO_SCORE]
    assert note.xy[1] == -2 and not two.texts


def test_overlaps_have_a_line_for_each_normalisation():
    kinds = ("iou_raw", "iou_minmax", "iou_chance")
    rows = [
        {"alpha": a, "seed": s} | {f"{kind}_mean": a + i for i, kind in enumerate(kinds)}
        | {f"{kind}_contrast": s - i for i, kind in enumerate(kinds)}
        for a in (0.5, 0.3)
        for s in (0, 1)
    ]  # fmt: skip
    fig = drawn(masks.overlap_contrast(pd.DataFrame(rows)))
    left, right = fig.axes
    shown = [label for label, _ in masks.OVERLAPS.values()]
    assert list(masks.OVERLAPS) == list(kinds)
    assert [data(named(left)[label]) for label in shown] == [([0.3, 0.5], [0.3 + i, 0.5 + i]) for i in range(3)]
    assert [data(named(right)[label]) for label in shown] == [([0.3, 0.5], [0.5 - i] * 2) for i in range(3)]
    assert texts(fig.legends[0].get_texts()) == shown


def test_layers_keep_their_order():
    rows = [(a, s, tensor, a + s) for a in (0.3, 0.5) for s in (0, 1) for tensor in ("fc1.weight", "conv1.weight")]
    (ax,) = drawn(masks.layer_contrast(pd.DataFrame(rows, columns=["alpha", "seed", "tensor", "contrast"]))).axes
    assert texts(ax.get_xticklabels()) == ["fc1", "conv1"]
    assert {name: data(line) for name, line in named(ax).items()} == {
        ALPHA + "0.3": ([-0.25, 0.75], [0.8, 0.8]), ALPHA + "0.5": ([0.25, 1.25], [1, 1]),
    }  # fmt: skip
    assert [line.get_color() for line in named(ax).values()] == [shade(0.3), shade(0.5)]


def test_a_frame_marks_what_is_personal():
    values, personal = np.array([[1.0, -2.0], [0.0, 4.0]]), np.array([[True, False], [True, True]])
    fig = drawn(masks.partitions({"before": (values, ~personal), "after": (values, personal)}, ["a", "b"]))
    before, after, _ = fig.axes
    assert [ax.get_title() for ax in (before, after)] == ["before", "after"]
    assert [[(round(p.get_x()), round(p.get_y())) for p in ax.patches] for ax in (before, after)] == [
        [(1, 0)], [(0, 0), (0, 1), (1, 1)],
    ]  # fmt: skip
    assert texts(after.get_xticklabels()) == ["a", "b"]
    (image,) = after.images
    assert image.get_array().tolist() == values.tolist() and image.get_clim() == (-4, 4)

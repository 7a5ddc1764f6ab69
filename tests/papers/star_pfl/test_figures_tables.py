"""Figures of Star-PFL's Figure 2 and Tables 2 and 3."""

import numpy as np
import pandas as pd
import pytest

from pfl_core.papers.star_pfl import figures
from pfl_core.study import plots
from tests.papers.star_pfl.invented_runs import record
from tests.plots import named


def costs():
    rows = []
    for method, comm in (("star_pfl", 2.2), ("local", 0.0), ("fedavg", 3.4)):
        for seed in (0, 1):
            rows.append({
                "label": plots.NAMES[method], "color": plots.COLORS[method], "seed": seed,
                "comm_mb_per_client_per_round": comm + 0.2 * seed, "flops_1e10_per_round": 3.0,
                "dense_1e10_per_round": 2.7, "rounds_to_convergence": 100 + seed, "rounds_to_plateau": np.nan,
                "upload_bytes": 1000 * comm, "mask_bytes": 500, "download_bytes": 2000,
            })  # fmt: skip
    return pd.DataFrame(rows)


def test_cost_bars():
    fig = figures.tables.cost_bars(costs(), "caption")
    paper, complete, operations, rounds = fig.axes
    assert [bar.get_width() for bar in paper.patches] == pytest.approx([2.3, 0.1, 3.5])
    ends = [bar.get_x() + bar.get_width() for bar in complete.patches[-3:]]
    assert ends == pytest.approx([2.2 + 2.5, 2.5, 3.4 + 2.5])  # kB: values, mask and download one after the other
    assert [bar.get_width() for bar in operations.patches] == [3.0] * 3
    assert list(operations.lines[0].get_xdata()) == [2.7] * 3
    assert list(rounds.lines[0].get_xdata()) == [100, 101]
    assert [text.get_text() for text in paper.get_yticklabels()] == ["Star-PFL", "Local", "FedAvg"]


def test_progress_marks_the_best_round_on_both_axes():
    frame = {"label": "FedAvg", "color": "b", "seed": 0, "round": [1, 2, 3], "value": [10.0, 30.0, 20.0]}
    curves = pd.DataFrame(frame).assign(megabytes=[0.5, 1.0, 1.5])
    fig = figures.tables.progress(curves, pd.DataFrame({"label": ["FedAvg"], "seed": [0], "round": [2]}))
    left, right = fig.axes
    assert (list(left.lines[-1].get_xdata()), list(left.lines[-1].get_ydata())) == ([2], [30.0])
    assert (list(right.lines[-1].get_xdata()), list(right.lines[-1].get_ydata())) == ([1.0], [30.0])


def test_accuracy_over_alpha_has_a_line_for_each_method():
    rows = [("axial", "FedAvg", "b", a, 70.0 + s, s) for a in (0.01, 0.1) for s in (0, 2)]
    table = pd.DataFrame(rows, columns=["task", "label", "color", "alpha", "value", "seed"])
    both = [table.assign(point="after aggregation"), table.assign(point="after local training", value=90.0)]
    ax, other = figures.tables.by_alpha(pd.concat(both)).axes
    mean, other_mean = (named(panel)["FedAvg"] for panel in (ax, other))
    assert list(other_mean.get_ydata()) == [90.0, 90.0] and "after local training" in other.get_title()
    assert list(mean.get_ydata()) == [71.0, 71.0] and ax.get_xscale() == "log"
    assert [text.get_text() for text in other.get_xticklabels()] == ["0.01", "0.1"]


def test_accuracy_over_rounds_has_one_scoring_point_a_panel():
    rows = [
        (task, alpha, label, "b", 0, t, 10.0 * place + t)
        for place, task in enumerate(("axial, after aggregation", "axial, after local training"))
        for alpha in (0.01, 0.1)
        for label in ("Star-PFL", "FedAvg")
        for t in (1, 2)
    ]
    table = pd.DataFrame(rows, columns=["task", "alpha", "label", "color", "seed", "round", "value"])
    panels = figures.tables.over_rounds(table).axes
    assert [[list(line.get_ydata()) for line in ax.lines] for ax in panels] == [[[1, 2]] * 2] * 2 + [[[11, 12]] * 2] * 2
    assert [ax.get_title() for ax in panels[:2]] == ["α = 0.01", "α = 0.1"]
    assert panels[2].get_ylabel() == "axial, after local\ntraining\naccuracy (%)"


def test_accuracy_over_rounds_hides_panels_without_a_run_and_sorts_alpha():
    """The second task has the middle α alone: its panel has the labels that the hidden ones would have."""
    rows = [
        (task, alpha, "FedAvg", "b", 0, t, 10.0 * t)
        for task, alphas in (("second", (0.1,)), ("first", (1.0, 0.1, 0.01)))
        for alpha in alphas
        for t in (1, 2)
    ]
    table = pd.DataFrame(rows, columns=["task", "alpha", "label", "color", "seed", "round", "value"])
    fig = figures.tables.over_rounds(table)
    shown = [ax for ax in fig.axes if ax.axison]
    assert [ax.get_title() for ax in shown] == ["α = 0.01", "α = 0.1", "α = 1", ""]
    assert [ax.get_xlabel() != "" for ax in shown] == [True, False, True, True]
    assert [ax.get_ylabel() for ax in shown] == ["first\naccuracy (%)", "", "", "second\naccuracy (%)"]


def test_the_score_map_separates_tensors_and_groups():
    scores = np.arange(12.0).reshape(4, 3) / 11
    fig = figures.similarity.score_map(scores, ["conv1.weight", "fc1.weight", "fc1.weight"], ["0", "0", "1", "1"])
    ax = fig.axes[0]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["conv1", "fc1"]
    assert [line.get_xdata()[0] for line in ax.lines[:1]] == [0.5]
    assert [line.get_ydata()[0] for line in ax.lines[1:]] == [1.5]
    np.testing.assert_array_equal(ax.images[0].get_array(), scores)


def test_layers_have_a_bar_for_each_kind_and_a_dot_for_each_seed():
    rows = [("conv1.weight", s, 0.4, 0.2, 0.1, 0.3, 0.2, 0.127) for s in (0, 1)]
    columns = ["tensor", "seed", "rank_contrast", "stable_contrast", "moving_contrast", "stable", "moving", "chance"]
    left, right = figures.similarity.likeness_by_layer(pd.DataFrame(rows, columns=columns)).axes
    assert [bar.get_height() for bar in left.patches] == pytest.approx([0.4, 0.2, 0.1])
    assert [bar.get_height() for bar in right.patches] == pytest.approx([0.3, 0.2])
    assert len(left.lines[0].get_xdata()) == 2
    assert list(right.lines[-1].get_ydata()) == [0.127, 0.127]


def test_curves_mark_significant_rounds():
    rows = [("groups", kind, 0, t, 0.3, p) for kind in ("rank", "stable") for t, p in ((1, 0.5), (2, 0.01))]
    curves = pd.DataFrame(rows, columns=["panel", "kind", "seed", "round", "value", "p"])
    (ax,) = figures.similarity.likeness_curves(curves).axes
    sure, unsure = ax.lines[1:3]
    assert (list(sure.get_xdata()), list(unsure.get_xdata())) == ([2], [1])
    assert unsure.get_markerfacecolor() == "w"


def test_table_2_has_a_mark_for_each_method_and_alpha():
    panels = {"the paper": (0,), "after aggregation": (0, 2)}  # seeds
    rows = [
        ("MNIST (for axial)", panel, "FedAvg", "b", alpha, 70.0 + seed)
        for panel, seeds in panels.items()
        for alpha in (0.01, 0.1)
        for seed in seeds
    ]
    table = pd.DataFrame(rows, columns=["task", "panel", "label", "color", "alpha", "value"])
    paper, reproduced = figures.tables.by_method(table).axes
    titles = [" ".join(ax.get_title().split()) for ax in (paper, reproduced)]
    assert titles == ["axial: the paper", "MNIST (for axial): after aggregation"]
    assert [line.get_xdata()[0] for line in (*paper.lines, *reproduced.lines)] == [70, 70, 71, 71]
    assert [line.get_markerfacecolor() for line in (*paper.lines, *reproduced.lines)] == ["w", "w", "b", "b"]
    assert [line.get_marker() for line in paper.lines] == ["o", "s"] and paper.get_xlim() == reproduced.get_xlim()


def test_leads_are_at_one_alpha_and_by_task_and_scoring_point():
    rows = [
        (task, point, label, 0, alpha, value + 10 * alpha * (label == "Star-PFL"))
        for point, value in (("after aggregation", 70.0), ("after local training", 80.0))
        for task in ("axial", "sagital")
        for alpha in (0.1, 1.0)
        for label in ("Star-PFL", "FedAvg")
    ]
    scored = pd.DataFrame(rows, columns=["task", "point", "label", "seed", "alpha", "value"])
    cells, alpha = figures.tables.leads(scored)
    assert alpha == 0.1
    panels = [f"{task}: after {point}" for task in ("axial", "sagital") for point in ("aggregation", "local training")]
    assert cells["dataset"].tolist() == panels
    assert set(cells["label"]) == {"FedAvg"} and cells["lead"].tolist() == pytest.approx([1.0] * 4)
    other, alpha = figures.tables.leads(scored[scored["alpha"] == 1.0])
    assert alpha == 1.0 and other["lead"].tolist() == pytest.approx([10.0] * 4)


def test_captions_and_colours():
    runs = [record("star_pfl"), record("fedavg")]
    assert list(figures.tables.captions(runs)) == ["axial"]
    assert "20 clients" in figures.tables.captions(runs)["axial"]
    table = figures.tables.colored(pd.DataFrame({"label": ["Star-PFL", "noise alone"]}))
    assert table["color"][0] == plots.COLORS["star_pfl"] and pd.isna(table["color"][1])

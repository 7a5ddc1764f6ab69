"""Figures of FedPeWS: the layout of the heat maps, labels, and that every figure draws what it is given."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from pfl_core.papers.fedpews import figures, results
from pfl_core.papers.fedpews.settings import SETTINGS
from pfl_core.study.names import plain

cells = results.cells.printed_cells


def runs(panel: str = "a", switch: int = 2) -> pd.DataFrame:
    methods = [("fedavg", None, math.nan, 0), ("fedpews", "fedavg", 0.0, switch), ("fedpews", "fedprox", 5.0, switch)]
    rows = [(*method, panel, seed, t, 10.0 * t + seed) for method in methods for seed in (0, 1) for t in (1, 2, 3)]
    frame = pd.DataFrame(rows, columns=["method", "base", "lam", "switch", "panel", "seed", "round", "value"])
    return frame.assign(time=frame["round"] * 0.5)


def test_the_grid_has_the_papers_layout():
    grid = figures.accuracy.sensitivity_grid(cells(7))
    assert list(grid.index) == ["0", "0.1", "0.3", "0.5", "1", "2", "5", "10", "100", "1000", "-"]
    assert list(grid.columns) == [0.0, 0.2, 0.4, 0.5, 0.6, 0.8]
    assert set(grid[0.0]) == {71.23} and grid.loc["2", 0.5] == 75.35 and grid.loc["-", 0.4] == 75.22
    assert grid.notna().to_numpy().all()


def test_cells_that_were_not_run_are_missing_in_the_grid():
    few = cells(7).query("method == 'fedpews' and lam in (0, 5) and not (lam == 5 and tau == 0.8)")
    grid = figures.accuracy.sensitivity_grid(few)
    assert list(grid.index) == ["0", "5"] and grid[0.0].isna().all() and math.isnan(grid.loc["5", 0.8])


def some(table, lams=(0.0, 5.0), taus=(0.2,)):
    """A few of the learned cells, and FedAvg."""
    learned = (table["method"] == "fedpews") & table["lam"].isin(lams) & table["tau"].isin(taus)
    return table[learned | (table["method"] == "fedavg")]


def drawn(theirs, ours):
    """The figure and the texts of its four maps: published and reproduced, accuracies and differences."""
    fig = figures.accuracy.sensitivity(theirs, ours, ("paper", "ours"), "caption")
    return fig, [{text.get_text(): text for text in ax.texts} for ax in fig.axes[:4]]


def bold(texts):
    return [text for text in texts if texts[text].get_weight() == "bold"]


def test_the_heat_maps_name_every_cell_and_frame_the_common_ones():
    fig, texts = drawn(cells(8), some(cells(8)))
    above_left, above_right, below_left, below_right = fig.axes[:4]
    assert [len(ax.texts) for ax in fig.axes[:4]] == [56, 3, 56, 3]
    assert [patch.get_xy() for patch in above_left.patches] == [(1, 0), (1, 6)], "τ = 0.2, of λ = 0 and 5"
    assert len(below_left.patches) == 2 and not above_right.patches and not below_right.patches
    assert texts[0]["52.25\n±0.57"].get_position() == (0.5, 5.5), "FedAvg's column is one cell"
    assert bold(texts[0]) == ["55.12\n±1.16"] and bold(texts[2]) == ["+2.87\n±1.29"]


def test_both_maps_have_the_same_rows_and_columns():
    fig, _ = drawn(cells(7), some(cells(7)))
    ticks = [
        [[label.get_text() for label in axis.get_ticklabels()] for axis in (ax.xaxis, ax.yaxis)] for ax in fig.axes
    ]
    assert ticks[0] == ticks[1] == ticks[2] == ticks[3]
    assert ticks[1][0] == ["0", "0.2", "0.4", "0.5", "0.6", "0.8"] and len(ticks[1][1]) == 11


def test_fedavg_can_be_the_best_cell():
    """In Table 7 λ = 0 is never above FedAvg, so a grid of that row has FedAvg as its best cell."""
    _, texts = drawn(cells(7), some(cells(7), (0.0, 0.1), (0.2, 0.8)))
    assert bold(texts[1]) == ["71.23\n±0.71"] and bold(texts[3]) == ["+0.00"]


def test_cells_that_show_the_best_number_are_all_bold():
    """99.998 and 99.999 both show 100.00."""
    table = cells(7)
    means = table["mean"].where(table["mean"] < 75.2, 99.998)
    means[means.idxmax()] = 99.999
    _, texts = drawn(cells(7), table.assign(mean=means))
    assert len(bold(texts[1])) > 1 and all(text.startswith("100.00") for text in bold(texts[1]))


def test_the_legend_explains_only_what_is_drawn():
    def labels(*tables):
        return [text.get_text() for text in drawn(*tables)[0].legends[0].get_texts()]

    always, framed = labels(cells(7), cells(7)), labels(cells(7), some(cells(7)))
    assert len(always) == 1 and "FedAvg included" in always[0]
    assert framed == [*always, "cell that was run here", "not run"]
    assert labels(cells(7), cells(7).iloc[:-1]) == [*always, "not run"], "of most cells no frames"


def test_a_row_of_maps_has_one_scale_and_differences_are_centred_at_0():
    theirs = cells(7)
    norms = [ax.collections[0].norm for ax in drawn(theirs, theirs.assign(mean=theirs["mean"] + 20))[0].axes[:4]]
    assert (norms[0].vmin, norms[0].vmax) == (norms[1].vmin, norms[1].vmax) == (65.4, 95.35)
    assert norms[2](0.0) == 0.5 and norms[2].vmax == pytest.approx(5.83) and norms[3].vmax == norms[2].vmax
    large = theirs.assign(difference=10 * theirs["difference"])
    norms = [ax.collections[0].norm for ax in drawn(theirs, large)[0].axes[2:4]]
    assert norms[0].vmax == norms[1].vmax == pytest.approx(3 * 5.83), "the paper's map keeps its contrast"
    small = theirs.assign(difference=theirs["difference"] / 10)
    assert drawn(theirs, small)[0].axes[2].collections[0].norm.vmax == pytest.approx(5.83)


def test_blanks_until_something_is_stored():
    nothing = cells(7).iloc[:0]
    fig, texts = drawn(cells(7), nothing)
    assert [len(each) > 0 for each in texts] == [True, False, True, False] and len(fig.axes[0].texts) == 56


def test_reproduced_cells_are_means_over_seeds_with_differences_paired_by_seed():
    """FedAvg 50 and 60; the cell 53 and 65: +3 and +5, deviation sqrt(2), though its accuracies vary by 12."""

    def run(method, seed, value, **fields):
        spec = SETTINGS.spec(method, preset="quick", dataset="cifar_mnist", seed=seed, **fields)
        return SimpleNamespace(spec=spec, curve=lambda: pd.DataFrame({"acc_pooled": [0.0, value]}))

    warm = {"lam": 2.0, "tau": 0.5}
    made = [run("fedavg", 0, 50.0), run("fedavg", 1, 60.0)]
    made += [run("fedpews", 0, 53.0, **warm), run("fedpews", 1, 65.0, **warm), run("fedpews_fixed", 0, 51.0, tau=0.2)]
    found = results.cells.grid_cells(made).set_index("method")
    cell = found.loc["fedpews"]
    assert cell[["lam", "tau", "mean", "seeds", "difference"]].tolist() == [2.0, 0.5, 59.0, 2, 4.0]
    assert cell["std"] == pytest.approx(12 / 2**0.5) and cell["difference_std"] == pytest.approx(2**0.5)
    assert math.isnan(found.loc["fedpews_fixed", "difference_std"]), "one seed has no deviation"
    assert found.loc["fedavg", "difference"] == 0 and math.isnan(found.loc["fedavg", "difference_std"])


def test_a_cell_that_misses_the_target_with_a_seed_is_blank_and_the_fewest_rounds_are_bold():
    def run(method, seed, first, **fields):
        spec = SETTINGS.spec(method, preset="real", dataset="sensitivity", seed=seed, **fields)
        return SimpleNamespace(spec=spec, first=first)

    made = [run("fedavg", 0, 9.0), run("fedavg", 1, 9.0)]
    made += [run("fedpews", 0, 5.0, lam=0.0, tau=0.2), run("fedpews", 1, 7.0, lam=0.0, tau=0.2)]
    made += [run("fedpews", 0, 4.0, lam=5.0, tau=0.2), run("fedpews", 1, math.nan, lam=5.0, tau=0.2)]
    found = results.cells.grid_cells(made, lambda run: run.first)
    assert found["mean"].tolist()[:2] == [9.0, 6.0] and math.isnan(found["mean"].iloc[2])
    assert found["difference"].iloc[1] == -3.0 and math.isnan(found["difference"].iloc[2])
    fig = figures.accuracy.rounds_maps(found, "first round")
    left = {text.get_text(): text.get_weight() for text in fig.axes[0].texts}
    assert left["6\n±1.41"] == "bold" and len(left) == 2, "FedAvg and one cell; the other one is blank"
    labels = [text.get_text() for text in fig.legends[0].get_texts()]
    assert labels == ["fewest rounds, FedAvg included", "target accuracy not reached"]


def test_rounds_to_target_of_the_grid():
    spec = SETTINGS.spec("fedavg", preset="real", dataset="sensitivity")
    assert results.metrics.target_of(spec) == 99.0


def test_the_papers_differences_have_the_deviation_of_independent_runs():
    best = cells(7).query("lam == 2 and tau == 0.5").iloc[0]
    assert best["difference"] == pytest.approx(4.12) and best["difference_std"] == pytest.approx(np.hypot(0.50, 0.71))


def test_titles_have_display_names_and_mark_stand_ins():
    def title(preset, setting):
        return results.cells.made_on(SETTINGS.spec("fedavg", preset=preset, dataset=setting))

    assert title("paper", "cifar_mnist") == "CIFAR-MNIST, 2 clients of one source each"
    assert title("quick", "cifar_mnist") == "Synthetic-3.2K, 2 clients (stand-in)"
    sources = "MNIST + Fashion-MNIST + CIFAR-10, 3 clients of one source each (stand-in)"
    assert title("real", "path_oct_tissue") == sources
    assert title("real", "sensitivity") == "Synthetic-32K, 2 clients"
    text = "preset quick: synthetic_3200 (our generator), cifar10 + cifar100 + fashion_mnist"
    assert plain(text) == "preset quick: Synthetic-3.2K (our generator), CIFAR-10 + CIFAR-100 + Fashion-MNIST"


def test_labels_contain_method_base_and_optionally_lambda():
    by_method, by_lam = figures.accuracy.warmup_labels(runs()), figures.accuracy.warmup_labels(runs(), by_lam=True)
    assert list(dict.fromkeys(by_method["label"])) == ["FedAvg", "FedAvg + PeWS", "FedProx + PeWS"]
    assert list(dict.fromkeys(by_lam["label"])) == ["FedAvg", "FedAvg + PeWS, λ = 0", "FedProx + PeWS, λ = 5"]
    assert by_lam["color"].nunique() == 3


def test_curves_have_a_panel_each_and_a_line_at_the_switch():
    both = figures.accuracy.warmup_labels(pd.concat([runs("a", 2), runs("b", 0)]))
    for fig in (
        figures.accuracy.warmup_curves(both, "accuracy"),
        figures.accuracy.accuracy_over_time(both),
    ):
        assert [ax.get_title() for ax in fig.axes] == ["a", "b"]
    first, second = figures.accuracy.warmup_curves(both).axes
    assert [len(ax.lines) for ax in (first, second)] == [4, 3] and list(first.lines[-1].get_xdata()) == [2, 2]


def test_accuracy_over_time_shows_the_mean_and_the_range_of_the_seeds():
    both = figures.accuracy.warmup_labels(runs("a", 2))
    several, one = (figures.accuracy.accuracy_over_time(part) for part in (both, both[both["seed"] == 0]))
    fedavg, warmed = several.axes[0].lines[0], several.axes[0].lines[2:4]
    assert list(fedavg.get_xdata()) == [0.5, 1.0, 1.5] and list(fedavg.get_ydata()) == [10.5, 20.5, 30.5]
    assert [list(line.get_ydata()) for line in warmed] == [[10.5, 20.5, 30.5], [20.5]], "a line and its mark"
    assert len(several.axes[0].collections) == 3 and not one.axes[0].collections
    (band,) = several.axes[0].collections[0].get_paths()
    assert {tuple(corner) for corner in band.vertices} >= {(0.5, 10.0), (0.5, 11.0), (1.5, 30.0), (1.5, 31.0)}


def test_every_diagnostic_has_a_panel():
    frame = figures.accuracy.warmup_labels(runs())
    fig = figures.accuracy.mask_diagnostics(
        pd.concat([frame.assign(metric=name) for name in ("selected", "diversity")])
    )
    assert [ax.get_title() for ax in fig.axes if ax.lines] == [
        "neurons a client selects",
        r"diversity ‖p − $p_{\mathrm{others}}$‖²",
    ]

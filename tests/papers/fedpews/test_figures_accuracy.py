"""Figures of FedPeWS: the layout of the heat maps, labels, and that every figure draws what it is given."""

import io
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pfl_core.papers.fedpews import figures
from pfl_core.papers.fedpews.paper import PAPER
from pfl_core.study import output
from pfl_core.study.published import parse_variant


def cells(number: int) -> pd.DataFrame:
    """A table of the paper, as the heat maps take it."""
    table = PAPER.table(number)
    fields = pd.DataFrame([parse_variant(variant) for variant in table["variant"]])
    frame = pd.DataFrame(
        {"method": table["key"], "lam": fields["lambda"], "tau": fields["tau"], "mean": table["value"]}
    )
    return frame.assign(std=table["std"], difference=frame["mean"] - frame["mean"].iloc[0])


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


def test_a_grid_shows_what_was_not_run_as_missing():
    some = cells(7).query("method == 'fedpews' and lam in (0, 5) and not (lam == 5 and tau == 0.8)")
    grid = figures.accuracy.sensitivity_grid(some)
    assert list(grid.index) == ["0", "5"] and grid[0.0].isna().all() and math.isnan(grid.loc["5", 0.8])


def test_the_heat_maps_name_every_cell_and_frame_the_common_ones():
    theirs = cells(8)
    ours = theirs[theirs["tau"].isin([0.0, 0.2]) & theirs["lam"].isin([0.0, 5.0]) | (theirs["tau"] == 0.0)]
    fig = figures.accuracy.sensitivity(theirs, ours, ("paper", "ours"), "caption")
    above_left, _, below_left, _ = fig.axes[:4]
    assert [sum(text.get_text() != "" for text in ax.texts) for ax in fig.axes[:4]] == [56, 3, 56, 3]
    assert [patch.get_xy() for patch in above_left.patches] == [(1, 0), (1, 6)], "τ = 0.2, of λ = 0 and 5"
    assert len(below_left.patches) == 2
    texts = {text.get_text(): text for text in above_left.texts}
    assert texts["52.25\n±0.57"].get_position() == (0.5, 5.5), "FedAvg's column is one cell"
    assert [text for text in texts if texts[text].get_weight() == "bold"] == ["55.12\n±1.16"]


def test_differences_are_coloured_around_zero():
    few = [table[table["tau"] <= 0.2] for table in (cells(7), cells(8))]
    norm = figures.accuracy.sensitivity(*few, ("a", "b")).axes[2].collections[0].norm
    assert norm(0.0) == 0.5 and -norm.vmin == norm.vmax


def test_labels_tell_methods_bases_and_where_asked_lambdas_apart():
    plain, by_lam = figures.accuracy.warmup_labels(runs()), figures.accuracy.warmup_labels(runs(), by_lam=True)
    assert list(dict.fromkeys(plain["label"])) == ["FedAvg", "FedAvg + PeWS", "FedProx + PeWS"]
    assert list(dict.fromkeys(by_lam["label"])) == ["FedAvg", "FedAvg + PeWS, λ = 0", "FedProx + PeWS, λ = 5"]
    assert by_lam["color"].nunique() == 3


def test_curves_have_a_panel_each_and_a_line_at_the_switch():
    both = figures.accuracy.warmup_labels(pd.concat([runs("a", 2), runs("b", 0)]))
    for fig in (
        figures.accuracy.warmup_curves(both, "accuracy"),
        figures.accuracy.accuracy_over_time(both[both["seed"] == 0]),
    ):
        assert [ax.get_title() for ax in fig.axes] == ["a", "b"]
    first, second = figures.accuracy.warmup_curves(both).axes
    assert [len(ax.lines) for ax in (first, second)] == [4, 3] and list(first.lines[-1].get_xdata()) == [2, 2]


def test_every_diagnostic_has_a_panel():
    frame = figures.accuracy.warmup_labels(runs())
    fig = figures.accuracy.mask_diagnostics(
        pd.concat([frame.assign(metric=name) for name in ("selected", "diversity")])
    )
    assert [ax.get_title() for ax in fig.axes if ax.lines] == ["selected", "diversity"]


def test_a_figure_that_is_drawn_once_has_the_bytes_of_savefig():
    """A layout engine, several panels, a colour bar and a caption: all that the first of two drawings could move."""

    def drawn() -> Figure:
        figure, axes = plt.subplots(1, 2, figsize=(5, 2), layout="constrained")
        figure.colorbar(axes[0].imshow(np.eye(3)), ax=axes[0], label="label")
        axes[1].plot([1, 2], label="line")
        figure.legend(loc="outside upper center")
        figure.supxlabel("caption", fontsize=7)
        return figure

    saved = io.BytesIO()
    drawn().savefig(saved, dpi=output.DPI, metadata={"Software": None})
    assert output._png(drawn()) == saved.getvalue()

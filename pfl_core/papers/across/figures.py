"""Figures of the comparison of all methods."""

from __future__ import annotations

from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from pfl_core.papers.across.results import COSTS, SCORE, SCORES, front
from pfl_core.study.plots import ONE_SEED, captioned, far_below, legend_above, mean_dots
from pfl_core.study.style import DOUBLE, Look, looks, styled

PLACE = (5, -3)  # of a name, relative to its mark; points. The line of the front leaves a mark to the right
TICKS = (1.0, 2.0, 5.0)  # on an axis with a logarithmic scale


def accuracies(runs: pd.DataFrame, caption: str = "") -> Figure:
    """Three accuracies of every method, most accurate first: means and deviations over seeds. Columns of ``table``."""
    return mean_dots(accuracy_cells(runs), caption, dashed="Local")


def accuracy_cells(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``mean_dots``: dataset, panel, label, color, value, std."""
    order = runs.groupby("label")[SCORE].mean()
    grouped = runs.groupby(["where", "label", "color"], sort=False)
    parts = [grouped[score].agg(value="mean", std="std").assign(panel=panel) for score, panel in SCORES.items()]
    cells = pd.concat(parts).reset_index().rename(columns={"where": "dataset"})
    return cells.sort_values("label", key=lambda label: -label.map(order), kind="stable")


@styled
def fronts(points: pd.DataFrame, seeds: int, caption: str = "") -> Figure:
    """Accuracy against bytes and against passes; a row of panels for each data set. The line is the Pareto front.

    Columns of ``means``. Methods on a front have their name beside their mark. Far outliers are left out and named in
    the caption. Passes are proportional to the FLOPs of the training, which the axis above shows.
    """
    sets = dict(list(points.groupby("where", sort=False)))
    size = (DOUBLE, 2.6 * len(sets) + 1.5)
    fig, axes = plt.subplots(len(sets), 2, figsize=size, layout="constrained", squeeze=False, sharey="row")
    look, outliers = looks(points.sort_values("label")), []
    for row, (name, part) in zip(axes, sets.items(), strict=True):
        near = part[part[SCORE] >= far_below(part[SCORE])]
        outliers += [
            f"{p.label} ({getattr(p, SCORE):.1f} %)" for p in part[~part["label"].isin(near["label"])].itertuples()
        ]
        for ax, (cost, xlabel) in zip(row, COSTS.items(), strict=True):
            front_panel(ax, near.sort_values("label"), cost, look, filled=seeds > 1)
            ax.set(xlabel=xlabel, title=name if len(sets) > 1 else "")
        row[0].set_ylabel("mean client accuracy (%)")
        row[1].set_xscale("log")
        per_pass = float((1000 * part["train_tflop"] / part["passes"]).median())
        scale = (partial(np.multiply, per_pass), partial(np.multiply, 1 / per_pass))  # passes to GFLOPs and back
        above = row[1].secondary_xaxis("top", functions=scale)
        above.set_xlabel("GFLOPs of the training, all clients")
        for axis in (row[1].xaxis, above.xaxis):
            axis.set_major_locator(LogLocator(subs=TICKS))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_locator(NullLocator())
    legend_above(fig, axes.flat)
    note = f"marks: mean over {seeds} seeds" if seeds > 1 else ONE_SEED
    return captioned(
        fig, caption, note + "; line: Pareto front" + f"; below the scale: {', '.join(outliers)}" * bool(outliers)
    )


def front_panel(ax: Axes, points: pd.DataFrame, cost: str, look: dict[str, Look], *, filled: bool) -> None:
    """The marks of one panel, the front as a line, and the names of its methods."""
    for point in points.to_dict("records"):
        of = look[point["label"]]
        ax.plot(
            point[cost], point[SCORE], marker=of.marker, color=of.color, linestyle="", label=point["label"],
            markerfacecolor=of.color if filled else "w",
        )  # fmt: skip
    best = points.set_index("label").loc[front(points, cost)]
    ax.plot(best[cost], best[SCORE], color="0.6", linewidth=0.8, zorder=0, drawstyle="steps-post")
    for label, x, y in best[[cost, SCORE]].itertuples():
        ax.annotate(label, (x, y), PLACE, textcoords="offset points", va="top", fontsize=7)


@styled
def ranks(ranked: pd.DataFrame, caption: str = "") -> Figure:
    """Ranks with 95 % intervals, a panel for each data set and one for all of them. Columns of ``results.ranks``."""
    panels = dict(list(ranked.groupby("where", sort=False)))
    labels, look = list(dict.fromkeys(ranked["label"])), looks(ranked)
    size = (DOUBLE, 0.15 * len(labels) + 0.9)
    fig, axes = plt.subplots(
        1, len(panels), figsize=size, layout="constrained", squeeze=False, sharey=True, sharex=True
    )
    for ax, (name, part) in zip(axes[0], panels.items(), strict=True):
        for row in part.to_dict("records"):
            of, y = look[row["label"]], -labels.index(row["label"])
            ax.plot([row["low"], row["high"]], [y, y], color=of.color, linewidth=1)
            ax.plot(
                row["rank"], y, marker=of.marker, color=of.color, markerfacecolor=of.color if row["runs"] > 1 else "w"
            )
        ax.set(xlabel="rank (1: most accurate)", title=name, xlim=(0, len(labels) + 1))
        ax.set_yticks([-place for place in range(len(labels))], labels)
        ax.set_ylim(-len(labels) + 0.4, 0.6)
        ax.grid(axis="y", color="0.93", linewidth=0.6)
        ax.set_axisbelow(True)
    hollow = [ONE_SEED] if (ranked["runs"] < 2).any() else []
    return captioned(fig, caption, "; ".join([*hollow, "bars: 95 % interval of the mean rank over seeds"]))

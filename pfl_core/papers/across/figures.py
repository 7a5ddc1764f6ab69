"""Figures of the comparison of all methods."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from pfl_core.papers.across.results import COSTS, SCORES, front
from pfl_core.papers.across.study import REFERENCE, SCORE
from pfl_core.study.frames import REFERENCES
from pfl_core.study.methods import NAMES
from pfl_core.study.plots import (
    FAR_FROM_BEST,
    ONE_SEED,
    captioned,
    far_below,
    lead_dots,
    legend_above,
    mean_dots,
    wrapped,
)
from pfl_core.study.style import DOUBLE, LOOKS, Look, looks, styled

OTHERS, OTHER = "other methods", Look("0.7", "o")  # in the figure of fronts
STUDIED = ("fedselect", "star_pfl", "fedpews", "pfedgate")  # the methods of the four papers
TICKS = (1.0, 1.5, 2.0, 3.0, 5.0)  # on an axis with a logarithmic scale


def accuracies(runs: pd.DataFrame, caption: str = "") -> Figure:
    """Three accuracies of every method, on each data set most accurate first: means and deviations over seeds.

    Columns of ``table``.
    """
    return mean_dots(accuracy_cells(runs), caption, dashed="Local", far=FAR_FROM_BEST)


def accuracy_cells(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``mean_dots``: dataset, panel, label, color, value, std."""
    order = runs.groupby(["where", "label"])[SCORE].mean()
    grouped = runs.groupby(["where", "label", "color"], sort=False)
    parts = [grouped[score].agg(value="mean", std="std").assign(panel=panel) for score, panel in SCORES.items()]
    cells = pd.concat(parts).reset_index()
    score = [order[place] for place in zip(cells["where"], cells["label"], strict=True)]
    best_first = cells.assign(score=score).sort_values("score", ascending=False, kind="stable")
    return best_first.drop(columns="score").rename(columns={"where": "dataset"})


@styled
def fronts(points: pd.DataFrame, caption: str = "") -> Figure:
    """Accuracy against bytes and against passes; a row of panels for each data set. The line is the Pareto front.

    Columns of ``means``. A panel's title names the methods on its front, and their marks have a black edge. Methods
    that are on no front are grey, except REFERENCES and STUDIED. Marks of one seed are hollow, without a black edge.
    Far outliers that are on no front are left out and named in the caption.
    """
    sets = dict(list(points.groupby("where", sort=False)))
    size = (DOUBLE, 2.7 * len(sets) + 1.2)
    fig, axes = plt.subplots(len(sets), 2, figsize=size, layout="constrained", squeeze=False, sharey="row")
    named, below = named_in_fronts(points), []
    look = {label: of for label, of in looks(points.sort_values("label")).items() if label in named}
    for row, (name, part) in zip(axes, sets.items(), strict=True):
        on_front = part["label"].isin({label for cost in COSTS for label in front(part, cost)})
        near = on_front | (part[SCORE] >= far_below(part[SCORE], FAR_FROM_BEST))
        scores = zip(part.loc[~near, "label"], part.loc[~near, SCORE], strict=True)
        if far := ", ".join(f"{label} ({score:.1f} %)" for label, score in scores):
            below.append(f"below the scale{f' on {name}' * (len(sets) > 1)}: {far}")
        for ax, (cost, xlabel) in zip(row, COSTS.items(), strict=True):
            drawn = part[near].assign(other=~part["label"].isin(named))  # these last in the legend
            best = front_panel(ax, drawn.sort_values(["other", "label"]), cost, look)
            title = f"front: {', '.join(best)}"
            ax.set(xlabel=xlabel, title=wrapped(f"{name}, {title}" if len(sets) > 1 else title, 2))
        row[0].set_ylabel("mean client accuracy (%)")
        gflop = float(f"{(1e5 * part['train_tflop'] / part['passes']).median():.2g}")  # of 100 passes, two digits
        row[1].set(
            xscale="log",
            xlabel=f"{COSTS['passes']}, log scale\n(100 passes of all clients: {gflop:g} GFLOP)",
        )
        row[1].xaxis.set_major_locator(LogLocator(subs=TICKS))
        row[1].xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        row[1].xaxis.set_minor_locator(NullLocator())
    legend_above(fig, axes.flat)
    single = (points["seeds"] < 2).any()
    notes = ["marks: mean over seeds; line and black edges" + " of filled marks" * bool(single) + ": Pareto front"]
    notes += [ONE_SEED] * bool(single)
    return captioned(fig, caption, "; ".join(notes + below))


def named_in_fronts(points: pd.DataFrame) -> set[str]:
    """The labels of the methods that are on one of the fronts, of REFERENCES and of STUDIED. Columns of ``means``."""
    best = {label for _, part in points.groupby("where") for cost in COSTS for label in front(part, cost)}
    return best | set(points.loc[points["method"].isin((*REFERENCES, *STUDIED)), "label"])


def front_panel(ax: Axes, points: pd.DataFrame, cost: str, look: dict[str, Look]) -> list[str]:
    """The marks of one panel and the front as a line. Returns the labels on the front, cheapest first.

    Labels without a look are OTHERS.
    """
    labels = front(points, cost)
    for point in points.to_dict("records"):
        label, of = point["label"], look.get(point["label"], OTHER)
        several = point["seeds"] > 1
        ax.plot(
            point[cost], point[SCORE], marker=of.marker, color=of.color, linestyle="",
            label=label if label in look else OTHERS,
            markerfacecolor=of.color if several else "w",
            markeredgecolor="k" if several and label in labels else of.color, markeredgewidth=0.7,
            zorder=3 if label in labels else 2 if label in look else 1.5,
        )  # fmt: skip
    best = points.set_index("label").loc[labels]
    ax.plot(best[cost], best[SCORE], color="0.6", linewidth=0.8, zorder=1, drawstyle="steps-post")
    return labels


def leads(judged: Mapping[str, pd.DataFrame], caption: str = "") -> Figure:
    """The lead of every method over Local with its 95 % interval. Data set -> rows of ``results.against_local``."""
    color = {NAMES[method]: look.color for method, look in LOOKS.items()}
    cells = pd.concat(rows.assign(dataset=where, color=rows["label"].map(color)) for where, rows in judged.items())
    return lead_dots(cells, NAMES[REFERENCE], caption, over=True)


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
    notes = [ONE_SEED] * bool((ranked["runs"] < 2).any())
    notes.append("bars: 95 % interval of the mean rank, cut at the edges; sorted by the mean over data sets and seeds")
    notes += ["without a bar: the same rank with every seed"] * bool((ranked["low"] == ranked["high"]).any())
    return captioned(fig, caption, "; ".join(notes))

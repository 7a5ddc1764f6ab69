"""Figures of Star-PFL's Tables 2 and 3."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from pfl_core.papers.star_pfl.experiments import PARTS
from pfl_core.papers.star_pfl.results import rounds
from pfl_core.runs import Record
from pfl_core.study import output
from pfl_core.study.methods import NAMES
from pfl_core.study.plots import (
    MANY,
    WIDE,
    band,
    captioned,
    curves_note,
    dots,
    dots_note,
    late_scale,
    legend_above,
    lines,
    mean_dots,
    wrapped,
)
from pfl_core.study.statistics import lead_cells
from pfl_core.study.style import BLACK, BLUE, COLORS, DOUBLE, GREEN, looks, styled

SHADES = {"upload_bytes": 1.0, "mask_bytes": 0.6, "download_bytes": 0.3}
OWN = NAMES["star_pfl"]  # often equal to FedAvg, so its line is wide and below the others
MIDDLE = 0.1  # the paper's middle α, that of Table 3
BY_ALPHA = "os^Dv"  # markers of the values of α


def captions(records: Sequence[Record]) -> dict[str, str]:
    """Task -> caption of its runs."""
    tasks = [rounds.task(record) for record in records]
    by_task = {name: [r for r, of in zip(records, tasks, strict=True) if of == name] for name in dict.fromkeys(tasks)}
    return {name: output.caption(part) for name, part in by_task.items()}


def colored(table: pd.DataFrame) -> pd.DataFrame:
    """``table`` with a column of the methods' colours. Column: label."""
    return table.assign(color=table["label"].map({NAMES[name]: color for name, color in COLORS.items()}))


def leads(scored: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Star-PFL's lead over each method for ``plots.lead_dots``, and its α: the nearest to MIDDLE that was run.

    ``scored``: ``rounds.by_point``.
    """
    alpha = min(scored["alpha"], key=lambda value: abs(value - MIDDLE))
    here = colored(scored[scored["alpha"] == alpha])
    by_task = pd.concat([runs for _, runs in here.groupby("task", sort=False)])
    cells = lead_cells(by_task.assign(dataset=by_task["task"] + ": " + by_task["point"]), OWN, "dataset", "value")
    return cells, alpha


@styled
def cost_bars(table: pd.DataFrame, caption: str = "") -> Figure:
    """Table 3, a bar for each method: traffic by the paper's count and in bytes, operations, rounds.

    Columns: label, color, seed and the metrics of ``results.rounds.costs``. Bars are means over seeds, dots are seeds.
    """
    labels = list(dict.fromkeys(table["label"]))
    fig, axes = plt.subplots(1, 4, figsize=(DOUBLE, 0.2 * len(labels) + 1.2), layout="constrained", sharey=True)
    means = table.groupby(["label", "color"], sort=False).mean(numeric_only=True).reset_index("color")
    places = -np.arange(len(labels))
    axes[0].barh(places, means["comm_mb_per_client_per_round"], color=means["color"])
    left = np.zeros(len(labels))  # end of the stacked bars so far
    for metric, alpha in SHADES.items():
        axes[1].barh(places, means[metric] / 1e3, left=left, color=means["color"], alpha=alpha)
        left = left + means[metric] / 1e3
    axes[2].barh(places, means["flops_1e10_per_round"], color=means["color"])
    for color, width in (("w", 3.0), ("k", 1.2)):  # a white edge, which black bars need
        axes[2].plot(means["dense_1e10_per_round"], places, "|", color=color, markersize=8, markeredgewidth=width)
    # rounds until the best (filled) and until the plateau (hollow), a dot for each seed
    for place, label in zip(places, labels, strict=True):
        here = table[table["label"] == label]
        _dots(axes[3], place + 0.15, here["rounds_to_convergence"], here["color"].iloc[0], True)
        _dots(axes[3], place - 0.15, here["rounds_to_plateau"], here["color"].iloc[0], False)
    axes[0].set(title="as the paper counts", xlabel="MiB a round:\nvalues up,\n20 clients together")
    axes[1].set(title="all bytes", xlabel="kB of a client in a round:\nup (values, mask),\ndown (pale)")
    axes[2].set(title="operations", xlabel="10¹⁰ of a client\nin a round")
    axes[3].set(title="rounds", xlabel="until the best (●),\nuntil the plateau (○)")
    axes[3].set_xlim(0, 1.1 * table[["rounds_to_convergence", "rounds_to_plateau"]].max(axis=None))
    axes[0].set_yticks(places, labels)
    for ax in axes:
        ax.xaxis.set_major_locator(MaxNLocator(4, integer=ax is axes[3]))
    seeds = table["seed"].nunique()
    bars = "bars: one seed" if seeds == 1 else f"bars: mean over {seeds} seeds; dots: seeds"
    return captioned(fig, caption, f"{bars}; |: operations of PyTorch, whatever the mask (no gradient of the images)")


def _dots(ax: Axes, place: float, values: pd.Series, color: str, full: bool) -> None:
    ax.plot(values, np.full(len(values), place), "o", color=color, markerfacecolor=color if full else "w", markersize=5)


@styled
def progress(curves: pd.DataFrame, marks: pd.DataFrame, caption: str = "") -> Figure:
    """Validation accuracy over rounds and over a client's traffic, with a dot at the best round.

    Columns of ``curves``: label, color, seed, round, value, megabytes (so far); of ``marks``: label, seed, round (the
    best one).
    """
    fig, (left, right) = plt.subplots(1, 2, figsize=(DOUBLE, 2.8), layout="constrained", sharey=True)
    best, look = curves.merge(marks, on=["label", "seed", "round"]), looks(curves)
    for label, group in curves.groupby("label", sort=False):
        color, marker, dash = look[str(label)]
        unmarked = look[str(label)]._replace(marker="")
        band(left, group, str(label), unmarked, banded=curves["label"].nunique() <= MANY, below=label == OWN)
        mean = group.groupby("round")[["megabytes", "value"]].mean()
        right.plot(mean["megabytes"], mean["value"], color=color, linestyle=dash, **(WIDE if label == OWN else {}))
        here = best[best["label"] == label]
        left.plot(here["round"], here["value"], marker, color=color, markersize=5)
        right.plot(here["megabytes"], here["value"], marker, color=color, markersize=5)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set(xlabel="communication round", ylabel="validation accuracy (%)")
    right.set(xlabel="traffic of a client so far, up and down (MB)")
    legend_above(fig, [left])
    return captioned(fig, caption, curves_note(curves, curves["label"].nunique() <= MANY) + "; marks: best round")


@styled
def by_method(table: pd.DataFrame, caption: str = "") -> Figure:
    """Table 2: a line for each method, a mark for each α; a row of panels for each task, with one scale.

    Columns: task, panel (first the paper, then scoring points), label, color, alpha, value (a row per printed number or
    seed).
    """
    tasks, panels, labels = (list(dict.fromkeys(table[name])) for name in ("task", "panel", "label"))
    size = (DOUBLE, (0.22 * len(labels) + 0.75) * len(tasks) + 0.6)
    fig, grid = plt.subplots(
        len(tasks), len(panels), figsize=size, layout="constrained", squeeze=False, sharey=True, sharex="row"
    )
    alphas = sorted(table["alpha"].unique())
    for (i, j), ax in np.ndenumerate(grid):
        here = table[(table["task"] == tasks[i]) & (table["panel"] == panels[j])]
        for place, (alpha, marker) in enumerate(zip(alphas, BY_ALPHA, strict=False)):
            shift = 0.24 * ((len(alphas) - 1) / 2 - place)
            for (label, color), cells in here[here["alpha"] == alpha].groupby(["label", "color"], sort=False):
                y, style = shift - labels.index(label), {"color": color, "markersize": 3.5}
                ax.plot(cells["value"].mean(), y, marker, markerfacecolor="w" if len(cells) == 1 else color, **style)
        ax.set_title(wrapped(f"{tasks[i] if j else rounds.of_task(tasks[i])}:\n{panels[j]}", 4))
        ax.grid(axis="y", color="0.93", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.set_yticks([-place for place in range(len(labels))], labels)
        ax.set_xlabel("mean client accuracy (%)")
    style = {"color": "k", "linestyle": "", "markerfacecolor": "w"}
    marks = [Line2D([], [], marker=m, label=f"α = {a:g}", **style) for a, m in zip(alphas, BY_ALPHA, strict=False)]
    legend_above(fig, handles=marks)
    several = table.groupby(["task", "panel", "label", "alpha"]).size().max() > 1
    return captioned(fig, caption, "hollow: one value" + "; filled: mean over seeds" * bool(several))


def ablations(cells: pd.DataFrame, caption: str = "") -> Figure:
    """Star-PFL without its parts, and in other readings. ``cells``: see ``results.ablations.cells``."""
    color = colored(cells)["color"].mask(cells["label"].isin(PARTS), BLUE)
    color = color.mask(cells["label"] == "noise alone", BLACK).fillna(GREEN)
    note = "blue: parts left out; green: other readings (A: see the method page); black: noise alone"
    return mean_dots(cells.assign(color=color), f"{caption}\n{note}", xlabel="")


@styled
def by_alpha(table: pd.DataFrame, caption: str = "") -> Figure:
    """Accuracy over α, a line for each method; a row of panels for each task, a column for each scoring point.

    Columns: task, point, label, color, alpha, seed, value (a row per seed).
    """
    fig, axes = _grid(table, "point")
    look, alphas = looks(table), sorted(table["alpha"].unique())
    for (task, point), ax in axes.items():
        here = table[(table["task"] == task) & (table["point"] == point)]
        for label, group in here.groupby("label", sort=False):
            x = np.array(sorted(group["alpha"].unique()))
            values = [group.loc[group["alpha"] == alpha, "value"].to_numpy() for alpha in x]
            dots(ax, x, values, look[str(label)], str(label), below=label == OWN)
        ax.set(xscale="log", title=wrapped(f"{task}: {point}", 2))
        ax.set_xticks(alphas, [f"{alpha:g}" for alpha in alphas])
        ax.minorticks_off()
    for ax in list(axes.values())[-table["point"].nunique() :]:
        ax.set_xlabel("α of the split (larger: more even)")
    legend_above(fig, axes.values())
    return captioned(fig, caption, dots_note(table))


@styled
def over_rounds(table: pd.DataFrame, caption: str = "") -> Figure:
    """Accuracy by round; a row of panels for each task and scoring point, a column for each α, one scale in a row.

    The scale is that of the second half of the rounds, without far outliers.
    Columns: task (with its scoring point), alpha, label, color, seed, round, value. Bands span the seeds, unless there
    are more than MANY lines.
    """
    fig, axes = _grid(table.sort_values("alpha", kind="stable"), "alpha")
    look, banded = looks(table), table["label"].nunique() <= MANY
    shown = dict(list(table.groupby(["task", "alpha"], sort=False)))
    first_of_row: dict[str, Axes] = {}
    last_of_column: dict[float, Axes] = {}
    for (task, alpha), ax in axes.items():
        ax.set_ylabel("")
        if (task, alpha) not in shown:  # no run with this α is stored
            ax.set_axis_off()
            continue
        lines(ax, shown[task, alpha], look, banded, wide=OWN)
        first_of_row.setdefault(task, ax)
        if alpha not in last_of_column:
            ax.set_title(f"α = {alpha:g}")
        last_of_column[alpha] = ax
    for task, ax in first_of_row.items():
        row = table[table["task"] == task]
        ax.set_ylabel(fill(str(task), 24) + "\naccuracy (%)")
        ax.set_ylim(late_scale(row.assign(panel=row["alpha"])))
        ax.tick_params(labelleft=True)
    for ax in last_of_column.values():
        ax.set_xlabel("communication round")
        ax.tick_params(labelbottom=True)
    legend_above(fig, axes.values())
    return captioned(fig, caption, curves_note(table, banded))


def _grid(table: pd.DataFrame, column: str) -> tuple[Figure, dict[tuple, Axes]]:
    """Panels by task (rows, with a common y axis) and by the values of ``column``."""
    rows, columns = list(dict.fromkeys(table["task"])), list(dict.fromkeys(table[column]))
    size = (DOUBLE, 1.75 * len(rows) + 0.7)
    fig, grid = plt.subplots(
        len(rows), len(columns), figsize=size, layout="constrained", squeeze=False, sharey="row", sharex=True
    )
    for ax in grid[:, 0]:
        ax.set_ylabel("client accuracy (%)")
    return fig, {(row, value): grid[i, j] for i, row in enumerate(rows) for j, value in enumerate(columns)}

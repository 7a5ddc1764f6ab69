"""Figures of Star-PFL's Tables 2 and 3."""

from __future__ import annotations

from collections.abc import Iterable

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pfl_core.study.plots import band, captioned, legend_of

SHADES = {"upload_bytes": 0.9, "mask_bytes": 0.6, "download_bytes": 0.3}


def cost_bars(table: pd.DataFrame, caption: str = "") -> Figure:
    """Table 3, a bar for each method: traffic by the paper's count and in bytes, operations, rounds.

    Columns: label, color, seed and the metrics of ``results.rounds.costs``. Bars are means over seeds, dots are seeds.
    """
    labels = list(dict.fromkeys(table["label"]))
    fig, axes = plt.subplots(1, 4, figsize=(12.5, 0.32 * len(labels) + 1.7), layout="constrained", sharey=True)
    means = table.groupby(["label", "color"], sort=False).mean(numeric_only=True).reset_index("color")
    places = -np.arange(len(labels))
    axes[0].barh(places, means["comm_mb_per_client_per_round"], color=means["color"])
    left = np.zeros(len(labels))  # end of the stacked bars so far
    for metric, alpha in SHADES.items():
        axes[1].barh(places, means[metric] / 1e3, left=left, color=means["color"], alpha=alpha)
        left = left + means[metric] / 1e3
    axes[2].barh(places, 10 * means["flops_1e10_per_round"], color=means["color"])
    axes[2].plot(10 * means["dense_1e10_per_round"], places, "k|", markersize=12)
    # rounds until the best (filled) and until the plateau (hollow), a dot for each seed
    for place, label in zip(places, labels, strict=True):
        here = table[table["label"] == label]
        _dots(axes[3], place + 0.15, here["rounds_to_convergence"], here["color"].iloc[0], True)
        _dots(axes[3], place - 0.15, here["rounds_to_plateau"], here["color"].iloc[0], False)
    axes[0].set(title="the paper's account", xlabel="MiB a round: values up, × 20 clients")
    axes[1].set(title="all bytes: values up, mask up, down", xlabel="kB of a client in a round")
    axes[2].set(title="operations (| really done)", xlabel="10⁹ of a client in a round")
    axes[3].set(title="rounds to best (●) and plateau (○)", xlabel="communication round")
    axes[3].set_xlim(left=0)
    axes[0].set_yticks(places, labels)
    for ax in axes:
        ax.title.set_fontsize(9)
        ax.xaxis.set_major_locator(MaxNLocator(4, integer=ax is axes[3]))
    return captioned(fig, caption)


def _dots(ax: Axes, place: float, values: pd.Series, color: str, full: bool) -> None:
    ax.plot(values, np.full(len(values), place), "o", color=color, markerfacecolor=color if full else "w", markersize=5)


def progress(curves: pd.DataFrame, marks: pd.DataFrame, caption: str = "") -> Figure:
    """Validation accuracy over rounds and over a client's traffic, with a dot at the best round.

    Columns of ``curves``: label, color, seed, round, value, megabytes (so far); of ``marks``: label, seed, round (the
    best one).
    """
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.5), layout="constrained", sharey=True)
    best = curves.merge(marks, on=["label", "seed", "round"])
    for (label, color), group in curves.groupby(["label", "color"], sort=False):
        band(left, group, label, color)
        mean = group.groupby("round")[["megabytes", "value"]].mean()
        right.plot(mean["megabytes"], mean["value"], color=color, label=label)
        here = best[best["label"] == label]
        left.plot(here["round"], here["value"], "o", color=color, markersize=5)
        right.plot(here["megabytes"], here["value"], "o", color=color, markersize=5)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set(xlabel="communication round", ylabel="validation accuracy (%)")
    right.set(xlabel="MB up and down, of a client, so far")
    right.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return captioned(fig, caption)


def by_alpha(table: pd.DataFrame, caption: str = "") -> Figure:
    """Accuracy over α, a line for each method; a row of panels for each task, a column for each scoring point.

    Columns: task, point, label, color, alpha, value (a row per seed).
    """
    fig, axes = _grid(table, "point")
    for (task, point), ax in axes.items():
        here = table[(table["task"] == task) & (table["point"] == point)]
        for (label, color), group in here.groupby(["label", "color"], sort=False):
            mean = group.groupby("alpha")["value"].mean()
            ax.plot(mean.index, mean, "-o", color=color, label=label, markersize=4)
            ax.plot(group["alpha"], group["value"], ".", color=color, alpha=0.4, markersize=4)
        alphas = sorted(table["alpha"].unique())
        ax.set(xscale="log", xlabel="alpha of the split (larger: more even)")
        ax.set_title(f"{task}: all {point}", fontsize=9)
        ax.set_xticks(alphas, [f"{alpha:g}" for alpha in alphas])
        ax.minorticks_off()
    _legend_right(fig, axes.values())
    return captioned(fig, caption)


def over_rounds(table: pd.DataFrame, caption: str = "") -> Figure:
    """Accuracy by round; a row of panels for each task and scoring point, a column for each α.

    Columns: task (with its scoring point), alpha, label, color, seed, round, value. Bands span the seeds.
    """
    fig, axes = _grid(table, "alpha")
    for (task, alpha), ax in axes.items():
        here = table[(table["task"] == task) & (table["alpha"] == alpha)]
        for (label, color), group in here.groupby(["label", "color"], sort=False):
            band(ax, group, label, color)
        ax.set(xlabel="communication round")
        ax.set_title(f"{task}, α = {alpha:g}", fontsize=9)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend_right(fig, axes.values())
    return captioned(fig, caption)


def _legend_right(fig: Figure, axes: Iterable[Axes]) -> None:
    # the type stubs of matplotlib lack this location
    fig.legend(*legend_of(axes), frameon=False, fontsize=8, loc="outside center right")  # type: ignore[call-overload]


def _grid(table: pd.DataFrame, column: str) -> tuple[Figure, dict[tuple, Axes]]:
    """Panels by task (rows, with a common y axis) and by the values of ``column``."""
    rows, columns = list(dict.fromkeys(table["task"])), list(dict.fromkeys(table[column]))
    size = (3.6 * len(columns) + 1.6, 2.9 * len(rows) + 0.3)
    fig, grid = plt.subplots(len(rows), len(columns), figsize=size, layout="constrained", squeeze=False, sharey="row")
    for ax in grid[:, 0]:
        ax.set_ylabel("mean client accuracy (%)")
    return fig, {(row, value): grid[i, j] for i, row in enumerate(rows) for j, value in enumerate(columns)}

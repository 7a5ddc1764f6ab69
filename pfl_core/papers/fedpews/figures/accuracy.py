"""Figures of FedPeWS's synthetic sets and of its sensitivity to λ and τ."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from pfl_core.study.plots import COLORS, NAMES, band, captioned

FIXED = "-"  # the row of FedPeWS-Fixed, as the paper prints it


def warmup_labels(runs: pd.DataFrame, by_lam: bool = False) -> pd.DataFrame:
    """``runs`` with a label and a colour for each method and base. Columns: method, base, lam.

    ``by_lam`` names λ in the label and gives each its own orange, light to dark.
    """
    lams = sorted(runs.loc[runs["method"] == "fedpews", "lam"].unique())
    shades = dict(zip(lams, plt.get_cmap("Oranges")(np.linspace(0.5, 0.9, len(lams))), strict=True))
    labels, colors = [], []
    for method, base, lam in zip(runs["method"], runs["base"], runs["lam"], strict=True):
        learned = method == "fedpews"
        name = f"{NAMES[base]} + PeWS" if learned else NAMES[method]
        labels.append(f"{name}, λ = {lam:g}" if learned and by_lam else name)
        colors.append(tuple(shades[lam]) if learned and by_lam else COLORS[method])
    return runs.assign(label=labels, color=colors)


def warmup_curves(runs: pd.DataFrame, ylabel: str = "", caption: str = "") -> Figure:
    """Figures 4, 5, 6 (left) and 9: a panel for each setting or metric; a dashed line at the switch.

    Means over the seeds; the band spans them. Columns: panel, label, color, seed, round, value, switch (W in rounds,
    0 without a warm-up). With ``ylabel`` all panels share one scale.
    """
    names = list(dict.fromkeys(runs["panel"]))
    fig, axes = _panels(len(names), shared=bool(ylabel))
    for ax, name in zip(axes, names, strict=True):
        here = runs[runs["panel"] == name]
        for (label, color), group in here.groupby(["label", "color"], sort=False):
            band(ax, group, label, color)
        for rounds in sorted(set(here["switch"]) - {0}):
            ax.axvline(rounds, color="0.45", linestyle="--", linewidth=1)
        ax.set_title(name, fontsize=9)
        ax.set_xlabel("communication round")
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes[0].set_ylabel(ylabel)
    return captioned(_with_legend(fig, axes), caption)


def accuracy_over_time(runs: pd.DataFrame, caption: str = "") -> Figure:
    """Figure 10: accuracy over the time spent, a panel for each setting; a dot where the warm-up ends.

    Columns: panel, label, color, round, time (since the run's start, in rounds without a warm-up), value, switch.
    """
    names = list(dict.fromkeys(runs["panel"]))
    fig, axes = _panels(len(names), shared=True)
    for ax, name in zip(axes, names, strict=True):
        for (label, color), line in runs[runs["panel"] == name].groupby(["label", "color"], sort=False):
            line = line.sort_values("round")
            ax.plot(line["time"], line["value"], color=color, label=label)
            switch = line[line["round"] == line["switch"]]
            ax.plot(switch["time"], switch["value"], "o", color=color, markersize=5)
        ax.set_title(name, fontsize=9)
        ax.set_xlabel("time (in rounds of FedAvg)")
    axes[0].set_ylabel("accuracy (%)")
    return captioned(_with_legend(fig, axes), caption)


def mask_diagnostics(runs: pd.DataFrame, caption: str = "") -> Figure:
    """What the learned masks are like after each warm-up round, a panel for each diagnostic.

    Columns: metric, label, seed, round, value. The band in the panel ``selected`` is the paper's range, 0.1 to 0.5.
    """
    metrics, labels = list(dict.fromkeys(runs["metric"])), list(dict.fromkeys(runs["label"]))
    rows = len(metrics) // 5 + 1  # one place is left for the legend
    size = (12, 2.2 * rows + 0.4)
    fig, axes = plt.subplots(rows, 5, figsize=size, sharex=True, layout="constrained", squeeze=False)
    for ax in axes.flat[len(metrics) :]:
        ax.set_axis_off()
    for ax, metric in zip(axes.flat, metrics, strict=False):
        for i, label in enumerate(labels):
            band(ax, runs[(runs["metric"] == metric) & (runs["label"] == label)], label, plt.get_cmap("Dark2")(i))
        for line in ax.lines:
            line.set(marker=".", markersize=4)
        if metric == "selected":
            ax.axhspan(0.1, 0.5, color="0.88", zorder=0)
        if metric != "diversity":
            ax.set(ylim=(-0.03, 1.03), yticks=(0, 0.5, 1))
        ax.set_title(metric, fontsize=9)
    axes[0][0].set_xlim(0.5, runs["round"].max() + 0.5)
    axes[0][0].xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes[-1][0].set_xlabel("warm-up round")
    lines, names = axes[0][0].get_legend_handles_labels()
    axes.flat[-1].legend(lines, names, loc="center", frameon=False, fontsize=8)
    return captioned(fig, caption)


def sensitivity_grid(cells: pd.DataFrame, column: str = "mean") -> pd.DataFrame:
    """The layout of Tables 7 and 8: rows λ ascending and fixed masks ("-") last, columns τ with FedAvg (τ = 0) first.

    cells: method (fedavg, fedpews, fedpews_fixed), lam, tau, and ``column``. FedAvg's value stands in every row; what
    was not run is NaN.
    """
    warm = cells[cells["method"] != "fedavg"]
    row = warm["lam"].map("{:g}".format).where(warm["method"] == "fedpews", FIXED)
    lams = [f"{lam:g}" for lam in sorted(warm.loc[warm["method"] == "fedpews", "lam"].unique())]
    fixed = [FIXED] if (row == FIXED).any() else []
    grid = warm.assign(row=row).pivot(index="row", columns="tau", values=column).reindex(lams + fixed)
    plain = cells.loc[cells["method"] == "fedavg", column]
    grid.insert(0, 0.0, plain.iloc[0] if len(plain) else np.nan)
    return grid.rename_axis(index="λ", columns="τ")


def sensitivity(paper: pd.DataFrame, ours: pd.DataFrame, titles: Sequence[str], caption: str = "") -> Figure:
    """Figure 6 (right): left the paper's cells, right ours; above the accuracy, below its difference to FedAvg.

    paper, ours: columns method, lam, tau, mean, std (of the seeds), difference (to FedAvg), all in percent. Cells of
    the paper that ours has too are framed; the best cell of each map is bold. Each map has its own scale.
    """
    grids = [[sensitivity_grid(cells, column) for cells in (paper, ours)] for column in ("mean", "difference")]
    spreads = [sensitivity_grid(cells, "std") for cells in (paper, ours)]
    heights = [len(grid) for grid in grids[0]]
    fig, axes = plt.subplots(
        2, 2, figsize=(11, 0.42 * 2 * max(heights) + 2.4), layout="constrained", width_ratios=(1.15, 1)
    )
    for column, title in enumerate(titles):
        accuracy, difference = grids[0][column], grids[1][column]
        _heat_map(axes[0][column], accuracy, spreads[column], "{:.2f}", "accuracy (%)")
        _heat_map(axes[1][column], difference, None, "{:+.2f}", "difference to FedAvg (points)")
        axes[0][column].set_title(title, fontsize=10)
    for ax, grid, other in zip(axes[:, 0], (grids[0][0], grids[1][0]), (grids[0][1], grids[1][1]), strict=True):
        _frame(ax, grid, other)
    return captioned(fig, caption)


def _panels(count: int, shared: bool) -> tuple[Figure, np.ndarray]:
    """One row of axes."""
    fig, axes = plt.subplots(
        1, count, figsize=(max(8.8, 2.8 * count), 3.3), sharey=shared, layout="constrained", squeeze=False
    )
    return fig, axes[0]


def _with_legend(fig: Figure, axes: Sequence[Axes]) -> Figure:
    """One legend above all panels."""
    lines = {label: line for ax in axes for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    places = {"loc": "outside upper center", "ncols": min(5, len(lines))}
    fig.legend(lines.values(), lines.keys(), frameon=False, fontsize=8, **places)
    return fig


def _heat_map(ax: Axes, grid: pd.DataFrame, spread: pd.DataFrame | None, form: str, label: str) -> None:
    """Cells with their numbers, below them the deviation; differences in colours that part at 0."""
    import seaborn as sns  # a second of import, for this figure alone

    signed = spread is None
    texts = grid.map(form.format)
    if not signed:
        texts += spread.map("\n±{:.2f}".format).where(spread.notna(), "")
    texts.iloc[[row for row in range(len(grid)) if row != len(grid) // 2], 0] = ""  # FedAvg's column is one cell
    reach = max(np.nanmax(np.abs(grid.to_numpy(float))), 1e-9)
    sns.heatmap(
        grid, ax=ax, annot=texts, fmt="", vmin=-reach if signed else None, vmax=reach if signed else None,
        cmap="RdBu" if signed else "viridis", cbar_kws={"label": label, "pad": 0.02},
        annot_kws={"fontsize": 7.5, "linespacing": 0.95, "in_layout": False}, rasterized=True,
        xticklabels=[f"{tau:g}" for tau in grid.columns],
    )  # fmt: skip
    best = grid.iloc[:, 1:].max(axis=None)
    for text in ax.texts:
        column, row = map(int, text.get_position())
        text.set_weight("bold" if column and grid.iat[row, column] == best else "normal")
    ax.set_facecolor("0.92")
    ax.tick_params(length=0, rotation=0)
    ax.set(xlabel="τ (0: FedAvg)", ylabel="λ (-: fixed masks)")


def _frame(ax: Axes, grid: pd.DataFrame, other: pd.DataFrame) -> None:
    """A frame around the cells of ``grid`` that ``other`` has too."""
    common = other.reindex(index=grid.index, columns=grid.columns).notna().to_numpy()
    for row, column in np.argwhere(common[:, 1:]):
        ax.add_patch(Rectangle((column + 1, row), 1, 1, fill=False, edgecolor="k", linewidth=1.3))

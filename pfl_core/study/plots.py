"""Figures shared by the papers' notebooks: class counts by client, accuracy curves, dot plots, overlap matrices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

CHARACTERS_PER_INCH = 18  # of a caption
FAR = 5.0  # far outliers lie this many times (maximum - first quartile) below the first quartile
NAMES = {
    "local": "Local",
    "fedavg": "FedAvg",
    "fedavg_ft": "FedAvg + FT",
    "fedselect": "FedSelect",
    "fedselect_gradltn": "FedSelect (GradLTN)",
    "ditto": "Ditto",
    "fedpac": "FedPAC",
    "fedrep": "FedRep",
    "fedper": "FedPer",
    "fedbabu": "FedBABU",
    "lg_fedavg": "LG-FedAvg",
    "lotteryfl": "LotteryFL",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "fednova": "FedNova",
    "moon": "MOON",
    "fedpews": "FedPeWS",
    "fedpews_fixed": "FedPeWS-Fixed",
    "star_pfl": "Star-PFL",
    "fedbn": "FedBN",
    "fedap": "FedAP",
    "pfedgate": "pFedGate",
    "pfedme": "pFedMe",
    "perfedavg": "Per-FedAvg",
    "fedem": "FedEM",
    "heterofl": "HeteroFL",
    "fedmask": "FedMask (our reading)",
    "fedmd": "FedMD",
}
COLORS = {
    "local": "#7f7f7f",
    "fedavg": "#4c72b0",
    "fedavg_ft": "#55a868",
    "fedselect": "#c44e52",
    "fedselect_gradltn": "#7b1e2b",
    "ditto": "#e0a458",
    "fedpac": "#00798c",
    "fedrep": "#8e6bbf",
    "fedper": "#3aa6a0",
    "fedbabu": "#a0522d",
    "lg_fedavg": "#2f4b7c",
    "lotteryfl": "#9aa84b",
    "fedprox": "#17a2b8",
    "scaffold": "#937860",
    "fednova": "#da8bc3",
    "moon": "#b8a01f",
    "fedpews": "#dd7a2a",
    "fedpews_fixed": "#8172b3",
    "star_pfl": "#c2185b",
    "fedbn": "#2a9d8f",
    "fedap": "#e76f51",
    "pfedgate": "#6a3d9a",
    "pfedme": "#b8a01f",
    "perfedavg": "#937860",
    "fedem": "#dd7a2a",
    "heterofl": "#17a2b8",
    "fedmask": "#da8bc3",
    "fedmd": "#5b8c5a",
}


def who_got_what(counts: np.ndarray, title: str = "") -> Figure:
    """Training samples of each client (x) and class (y), as the area of a dot. counts [N, C]."""
    counts = np.asarray(counts)
    clients, classes = np.nonzero(counts)
    amount = counts[clients, classes]
    fig, ax = plt.subplots(figsize=(max(4.0, 0.35 * len(counts)), 3.2), layout="constrained")
    ax.scatter(clients, classes, s=160 * amount / counts.max(), color="#4c72b0", alpha=0.8)
    ax.set(xlabel="client", ylabel="class", title=title, xticks=range(len(counts)), yticks=range(counts.shape[1]))
    ax.margins(0.08)
    fig.text(0.99, 0.01, f"largest dot: {counts.max()} samples", ha="right", fontsize=7, color="0.4")
    return fig


def curve_panels(
    runs: pd.DataFrame,
    caption: str = "",
    ylabel: str = "mean client accuracy (%)",
    *,
    front: str = "",
    closer: bool = False,
) -> Figure:
    """Accuracy by round, a panel for each experiment: mean over seeds, with a band from minimum to maximum.

    Columns: panel, label, color, seed, round, value. Labels that start with ``front`` are drawn thicker and on top.
    ``closer``: repeat each panel below, scaled to the second half of the rounds, without far outliers.
    """
    panels = list(dict.fromkeys(runs["panel"]))
    size = (4.0 * len(panels) + 1.9, 3.6 + 3.0 * closer)
    fig, axes = plt.subplots(1 + closer, len(panels), figsize=size, layout="constrained", squeeze=False)
    for column, panel in zip(axes.T, panels, strict=True):
        panel_runs = runs[runs["panel"] == panel]
        for ax in column:
            for (label, color), group in panel_runs.groupby(["label", "color"], sort=False):
                band(ax, group, label, color, above=bool(front) and label.startswith(front))
        column[0].set_title(panel if len(panels) > 1 else "")
        column[-1].set_xlabel("communication round")
        if closer:
            # y limits from the second half of the rounds, without labels that are far outliers
            late = panel_runs[panel_runs["round"] > panel_runs["round"].max() / 2]
            means = late.groupby(["label", "round"])["value"].mean()
            low = means[means >= far_below(means.groupby("label").mean())].min()
            margin = max(1.0, 0.05 * (means.max() - low))
            column[1].set_ylim(low - margin, means.max() + margin)
    for ax in axes[:, 0]:
        ax.set_ylabel(ylabel)
    handles, labels = legend_of(axes.flat)
    loc: Any = "outside center right"  # valid with a constrained layout, but missing in Matplotlib's types
    fig.legend(handles, labels, frameon=False, fontsize=8, loc=loc)
    return captioned(fig, caption)


def far_below(values: pd.Series) -> float:
    """The limit below which values are far outliers; they would compress the scale of the others."""
    first = values.quantile(0.25)
    return first - FAR * (values.max() - first)


def legend_of(axes: Iterable[Axes]) -> tuple[list, list]:
    """Handles and labels of several axes, each label once."""
    handle_of: dict[str, object] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handle_of.setdefault(label, handle)
    return list(handle_of.values()), list(handle_of)


def mean_dots(
    table: pd.DataFrame, caption: str = "", xlabel: str = "accuracy (%)", *, dashed: str | None = None
) -> Figure:
    """A table as a figure: a row of panels for each data set, a line for each label, means and deviations over seeds.

    Columns: dataset (row of panels), panel (title), label, color, value (mean), std (NaN for one seed). Each panel has
    its own scale. The dashed line is the mean of the label ``dashed``, default the first one. Far outliers are written
    as numbers at the edge.
    """
    sets, dashed = dict(list(table.groupby("dataset", sort=False))), dashed or table["label"].iloc[0]
    columns = table.groupby("dataset")["panel"].nunique().max()
    heights = [0.32 * part["label"].nunique() + 0.7 for part in sets.values()]
    size = (max(6.4, 4.6 * columns), sum(heights) + 0.9)
    fig, axes = plt.subplots(
        len(sets), columns, figsize=size, layout="constrained", squeeze=False, sharey="row", height_ratios=heights
    )
    # a row of panels for each data set; unused panels are hidden
    for row, (name, part) in zip(axes, sets.items(), strict=True):
        labels = list(dict.fromkeys(part["label"]))
        panels = list(part.groupby("panel", sort=False))
        for ax in row[len(panels) :]:
            ax.set_axis_off()
        for ax, (panel, cells) in zip(row, panels, strict=False):
            _dots_of(ax, cells, labels, dashed)
            ax.set_title(f"{name}: {panel}" if len(sets) > 1 else panel, fontsize=9)
            ax.set_yticks([-place for place in range(len(labels))], labels)
            ax.set_ylim(-len(labels) + 0.4, 0.6)
            ax.set_xlabel(xlabel)
    marks = f"bars: one deviation over seeds; dashed: {dashed}"
    return captioned(fig, f"{caption}\n{marks}" if caption else "")


def _dots_of(ax: Axes, table: pd.DataFrame, labels: list[str], dashed: str) -> None:
    """One panel of ``mean_dots``."""
    low = far_below(table["value"])
    for cell in table.itertuples():
        y = -labels.index(cell.label)
        if cell.value >= low:
            ax.errorbar(cell.value, y, xerr=np.nan_to_num(cell.std), fmt="o", color=cell.color, capsize=3)
        elif cell.value < low:  # False for NaN: a missing value leaves its line empty
            text, edge = f" ◂ {cell.value:.1f}", ax.get_yaxis_transform()
            ax.annotate(text, xy=(0, y), xycoords=edge, va="center", fontsize=9, color=cell.color)
    for value in table.loc[(table["label"] == dashed) & (table["value"] >= low), "value"]:
        ax.axvline(value, color="0.6", linewidth=0.8, linestyle="--")


def band(ax: Axes, group: pd.DataFrame, label: str, color: str | tuple, *, above: bool = False) -> None:
    """A line for the mean over seeds, and a band from minimum to maximum. ``above``: thicker, and on top of others.

    Columns: round, value.
    """
    by_round = group.groupby("round")["value"].agg(["mean", "min", "max"])
    style: dict[str, Any] = {"linewidth": 2.4, "zorder": 3} if above else {}
    ax.plot(by_round.index, by_round["mean"], label=label, color=color, **style)
    ax.fill_between(by_round.index, by_round["min"], by_round["max"], color=color, alpha=0.15, linewidth=0)


def dots(ax: Axes, x: np.ndarray, values: list[np.ndarray], color: str | tuple, label: str) -> None:
    """A small dot for every seed, and a line through the means."""
    for position, column in zip(x, values, strict=True):
        ax.plot(np.full(len(column), position), column, "o", color=color, markersize=3, alpha=0.5)
    ax.plot(x, [np.mean(column) for column in values], "-o", color=color, markersize=6, label=label)


def captioned(fig: Figure, caption: str) -> Figure:
    """Add a caption (preset, data, seeds) below the figure, as part of the image."""
    if caption:
        width = int(CHARACTERS_PER_INCH * fig.get_figwidth())
        fig.supxlabel("\n".join(fill(line, width) for line in caption.splitlines()), fontsize=7, color="0.35")
    return fig


def overlap_matrices(
    matrices: Mapping[str, np.ndarray], classes: Mapping[str, Sequence[str]], label: str, caption: str = ""
) -> Figure:
    """Heat maps [N, N] of the overlap of clients, one panel each, labelled with the clients' classes.

    FedSelect, Figure 4, and Figure 1 of its workshop version.
    """
    import seaborn as sns  # imported here because it takes a second

    fig, axes = plt.subplots(
        1, len(matrices), figsize=(3.0 * len(matrices) + 0.8, 3.4), layout="constrained", squeeze=False
    )
    low = min(0.0, *(float(np.nanmin(m)) for m in matrices.values() if not np.isnan(m).all()), 0.0)
    same = len({tuple(names) for names in classes.values()}) == 1
    for ax, (title, matrix) in zip(axes[0], matrices.items(), strict=True):
        names = classes[title]
        sides = {"xticklabels": names, "yticklabels": names if ax is axes[0][0] or not same else False}
        sns.heatmap(matrix, ax=ax, vmin=low, vmax=1, cmap="viridis", square=True, cbar=False, **sides)
        ax.tick_params(axis="x", length=0, labelsize=6, rotation=90)
        ax.tick_params(axis="y", length=0, labelsize=6, rotation=0)
        ax.set_title(title)
    fig.colorbar(axes[0][-1].collections[0], ax=axes[0], label=label)
    axes[0][0].set_ylabel("client (its classes)")
    return captioned(fig, caption)

"""What every paper's notebooks draw: who got what, and accuracy over rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

CHARACTERS_PER_INCH = 18  # of a caption
FAR = 5.0  # times the range of the upper three quarters below them: what lies lower would squeeze the others
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
    """Dots: clients along x, classes along y, area = training samples. counts [N, C]."""
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
    """Accuracy by round, a panel for each experiment; the band spans the seeds, the legend is beside the panels.

    Columns: panel, label, color, seed, round, value. Labels that begin with ``front`` are drawn thicker, above the
    others. ``closer``: below each panel once more, at the scale of the second half of the rounds without far outliers.
    """
    panels = list(dict.fromkeys(runs["panel"]))
    size = (4.0 * len(panels) + 1.9, 3.6 + 3.0 * closer)
    fig, axes = plt.subplots(1 + closer, len(panels), figsize=size, layout="constrained", squeeze=False)
    for column, panel in zip(axes.T, panels, strict=True):
        here = runs[runs["panel"] == panel]
        for ax in column:
            for (label, color), group in here.groupby(["label", "color"], sort=False):
                band(ax, group, label, color, above=bool(front) and label.startswith(front))
        column[0].set_title(panel if len(panels) > 1 else "")
        column[-1].set_xlabel("communication round")
        if closer:
            late = here[here["round"] > here["round"].max() / 2]
            means = late.groupby(["label", "round"])["value"].mean()
            low = means[means >= far_below(means.groupby("label").mean())].min()
            room = max(1.0, 0.05 * (means.max() - low))
            column[1].set_ylim(low - room, means.max() + room)
    for ax in axes[:, 0]:
        ax.set_ylabel(ylabel)
    fig.legend(*legend_of(axes.flat), frameon=False, fontsize=8, loc="outside center right")
    return captioned(fig, caption)


def far_below(values: pd.Series) -> float:
    """Where far outliers begin: what lies lower is drawn at the edge, or not at all, for the sake of the others."""
    first = values.quantile(0.25)
    return first - FAR * (values.max() - first)


def legend_of(axes: Iterable[Axes]) -> tuple[list, list]:
    """Handles and labels, every label once, wherever it is drawn."""
    found: dict[str, object] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)


def mean_dots(
    table: pd.DataFrame, caption: str = "", xlabel: str = "accuracy (%)", *, dashed: str | None = None
) -> Figure:
    """A table as a picture: a row of panels for each data set, means and deviations over seeds, labels downwards.

    Columns: dataset (its row), panel (title), label, color, value, std (missing for one seed); a row for each mean.
    Every panel has its own scale; the dashed line is the mean of the label ``dashed``, by default the first one. Far
    outliers are numbers at the edge.
    """
    sets, dashed = dict(list(table.groupby("dataset", sort=False))), dashed or table["label"].iloc[0]
    columns = table.groupby("dataset")["panel"].nunique().max()
    heights = [0.32 * part["label"].nunique() + 0.7 for part in sets.values()]
    size = (max(6.4, 4.6 * columns), sum(heights) + 0.9)
    fig, axes = plt.subplots(
        len(sets), columns, figsize=size, layout="constrained", squeeze=False, sharey="row", height_ratios=heights
    )
    for row, (name, part) in zip(axes, sets.items(), strict=True):
        labels = list(dict.fromkeys(part["label"]))
        panels = list(part.groupby("panel", sort=False))
        for ax in row[len(panels) :]:
            ax.set_axis_off()
        for ax, (panel, here) in zip(row, panels, strict=False):
            _dots_of(ax, here, labels, dashed)
            ax.set_title(f"{name}: {panel}" if len(sets) > 1 else panel, fontsize=9)
            ax.set_yticks([-place for place in range(len(labels))], labels)
            ax.set_ylim(-len(labels) + 0.4, 0.6)
            ax.set_xlabel(xlabel)
    marks = f"bars: one deviation over seeds; dashed: {dashed}"
    return captioned(fig, f"{caption}\n{marks}" if caption else "")


def _dots_of(ax: Axes, table: pd.DataFrame, labels: list[str], dashed: str) -> None:
    low = far_below(table["value"])
    for cell in table.itertuples():
        place = -labels.index(cell.label)
        if cell.value >= low:
            ax.errorbar(cell.value, place, xerr=np.nan_to_num(cell.std), fmt="o", color=cell.color, capsize=3)
        elif cell.value < low:  # a score that a run does not have is blank
            edge = {"xy": (0, place), "xycoords": ax.get_yaxis_transform(), "va": "center", "fontsize": 9}
            ax.annotate(f" ◂ {cell.value:.1f}", color=cell.color, **edge)
    for value in table.loc[(table["label"] == dashed) & (table["value"] >= low), "value"]:
        ax.axvline(value, color="0.6", linewidth=0.8, linestyle="--")


def band(ax: Axes, group: pd.DataFrame, label: str, color: str | tuple, *, above: bool = False) -> None:
    """Mean over seeds as a line (``above`` the others: on top, and thicker), their span as a band.

    Columns: round, value.
    """
    by_round = group.groupby("round")["value"].agg(["mean", "min", "max"])
    style = {"linewidth": 2.4, "zorder": 3} if above else {}
    ax.plot(by_round.index, by_round["mean"], label=label, color=color, **style)
    ax.fill_between(by_round.index, by_round["min"], by_round["max"], color=color, alpha=0.15, linewidth=0)


def dots(ax: Axes, x: np.ndarray, values: list[np.ndarray], color: str | tuple, label: str) -> None:
    """Every seed as a small dot, the means as a line."""
    for position, column in zip(x, values, strict=True):
        ax.plot(np.full(len(column), position), column, "o", color=color, markersize=3, alpha=0.5)
    ax.plot(x, [np.mean(column) for column in values], "-o", color=color, markersize=6, label=label)


def captioned(fig: Figure, caption: str) -> Figure:
    """Preset, data and seeds below the picture, so that it never travels without them."""
    if caption:
        wide = int(CHARACTERS_PER_INCH * fig.get_figwidth())
        fig.supxlabel("\n".join(fill(line, wide) for line in caption.splitlines()), fontsize=7, color="0.35")
    return fig


def overlap_matrices(
    matrices: Mapping[str, np.ndarray], classes: Mapping[str, Sequence[str]], label: str, caption: str = ""
) -> Figure:
    """Figure 4, and the workshop version's Figure 1: a heat map [N, N] a panel; rows and columns carry the classes."""
    import seaborn as sns  # a second of import, for this figure alone

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

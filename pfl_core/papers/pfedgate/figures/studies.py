"""Figures of pFedGate's notebooks on costs, the gate's parts, participation, and similarity of gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pfl_core.study.names import plain
from pfl_core.study.plots import captioned, legend_above, wrapped
from pfl_core.study.style import BLUE, BROWN, DOUBLE, GREEN, GREY, INDIGO, ORANGE, PINK, SINGLE, VERMILLION, styled

MARKERS = "osD^vP"  # by source: filled for this project, hollow for the paper
COLORS = (INDIGO, ORANGE, GREEN, PINK, BLUE, BROWN, GREY)  # settings of one method
REPRODUCED = VERMILLION
PAPER = "paper"  # prefix of the paper's sources


@styled
def beside_paper(table: pd.DataFrame, caption: str = "") -> Figure:
    """Values compared with the paper's: a panel for each quantity, a row for each label, a marker for each source.

    Markers are filled for this project and hollow for the paper. Columns: panel (title of the x axis), label, source,
    value; optional: std (error bars), reference (a dashed line).
    """
    panels, labels, sources = (list(dict.fromkeys(table[name])) for name in ("panel", "label", "source"))
    size = (DOUBLE, 0.24 * len(labels) + 1.3)
    fig, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False, sharey=True)
    for ax, panel in zip(axes[0], panels, strict=True):
        here = table[table["panel"] == panel]
        for source, group in here.groupby("source", sort=False):
            _marks(ax, group, labels, sources.index(source), len(sources))
        for line in here.get("reference", pd.Series(dtype=float)).dropna().unique():
            ax.axvline(line, color="0.6", linewidth=0.8, linestyle="--")
        ax.set_xlabel(fill(panel, 64 // len(panels)))
        ax.set_yticks([-i for i in range(len(labels))], labels)
        ax.set_ylim(-len(labels) + 0.4, 0.6)
        ax.grid(axis="y", color="0.93")
    legend_above(fig, axes[0])
    spread = "std" in table and table["std"].notna().any()
    return captioned(fig, caption, "bars: one standard deviation over seeds" * bool(spread))


def _marks(ax: Axes, group: pd.DataFrame, labels: Sequence[str], place: int, num: int) -> None:
    source = group["source"].iloc[0]
    is_paper = source.startswith(PAPER)
    # one y position for each label; the sources of a label are shifted against each other
    y = np.array([-labels.index(name) for name in group["label"]]) + min(0.16, 0.8 / num) * ((num - 1) / 2 - place)
    ink = "0.25" if is_paper else REPRODUCED
    face = "white" if is_paper else ink
    style: dict[str, Any] = {"mfc": face, "mec": ink, "ecolor": ink, "markersize": 4, "capsize": 2}
    spread = np.nan_to_num(group["std"].to_numpy(float)) if "std" in group else None
    bars = spread if spread is not None and spread.any() else None
    marker = MARKERS[place % len(MARKERS)]
    ax.errorbar(group["value"], y, xerr=bars, fmt=marker, label=source, linewidth=0, elinewidth=1, **style)


@styled
def where_the_cost_sits(layers: pd.DataFrame, caption: str = "") -> Figure:
    """Shares of parameters and MACs by layer, a panel for each network. Columns: network, layer, parameters, MACs."""
    networks = list(dict.fromkeys(layers["network"]))
    size = (DOUBLE, 2.2)
    fig, axes = plt.subplots(1, len(networks), figsize=size, layout="constrained", squeeze=False, sharey=True)
    for ax, network in zip(axes[0], networks, strict=True):
        here = layers[layers["network"] == network]
        x = np.arange(len(here))
        ax.bar(x - 0.2, here["parameters"], 0.4, color=BLUE, label="parameters")
        ax.bar(x + 0.2, here["MACs"], 0.4, color=ORANGE, hatch="////", edgecolor="w", label="multiply-adds")
        ax.set_xticks(x, here["layer"])
        ax.set_title(plain(network))
    axes[0][0].set_ylabel("share of the network")
    legend_above(fig, [axes[0][0]])
    return captioned(fig, caption)


@styled
def label_tree(
    tree: Mapping[str, list], held: np.ndarray, published: pd.DataFrame, title: str = "", caption: str = ""
) -> Figure:
    """Figure 4: dendrogram of the clients' gates with the labels of each client, and the labels at the paper's leaves.

    ``tree``: see ``similarity.ward``; ``held``: bool [N, C]; columns of ``published``: client, labels (a tuple), in the
    order of the leaves.
    """
    num = max(len(held), len(published))
    size = (DOUBLE, 0.21 * num + 1.2)
    fig, axes = plt.subplots(1, 3, figsize=size, layout="constrained", width_ratios=(1.2, 1, 1))
    # scipy's leaves are at 5, 15, 25, ...; rows are at 0, 1, 2, ...
    for across, up in zip(tree["icoord"], tree["dcoord"], strict=True):
        axes[0].plot(up, (np.array(across) - 5) / 10, color="0.3", linewidth=1)
    axes[0].set_ylim(len(held) - 0.5, -0.5)
    axes[0].set(xlabel="Ward distance of joining", yticks=[])
    axes[0].invert_xaxis()
    axes[0].spines[["top", "left", "right"]].set_visible(False)
    _label_grid(axes[1], held[tree["leaves"]], tree["leaves"], title)
    grid = np.zeros((len(published), held.shape[1]), dtype=bool)
    for row, labels in zip(grid, published["labels"], strict=True):
        row[list(labels)] = True
    _label_grid(axes[2], grid, published["client"].tolist(), "paper: leaves of Figure 4 (CIFAR-10)")
    return captioned(fig, caption)


def _label_grid(ax: Axes, held: np.ndarray, clients: Sequence[int], title: str) -> None:
    """Draws a row for each leaf and a square for each label of the client."""
    row, label = np.nonzero(held)
    ax.scatter(label, row, marker="s", s=26, color=BLUE)
    ax.set_xticks(range(held.shape[1]))
    ax.set_yticks(range(len(clients)), [f"client {k}" for k in clients])
    ax.set_xlim(-0.6, held.shape[1] - 0.4)
    ax.set_ylim(len(clients) - 0.5, -0.5)
    ax.set_xlabel("label")
    ax.set_title(wrapped(title, 3.5))
    ax.grid(color="0.92")
    ax.set_axisbelow(True)


@styled
def distance_by_overlap(pairs: pd.DataFrame, caption: str = "") -> Figure:
    """Gate distance over the share of common labels: a dot for each pair of clients, a bar for the mean.

    Columns: panel (a run), common, distance.
    """
    panels = list(dict.fromkeys(pairs["panel"]))
    size = (SINGLE if len(panels) == 1 else DOUBLE, 2.6)
    fig, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False, sharey=True)
    for ax, panel in zip(axes[0], panels, strict=True):
        here = pairs[pairs["panel"] == panel]
        ax.plot(here["common"], here["distance"], "o", color=BLUE, alpha=0.4, markersize=3)
        means = here.groupby("common")["distance"].mean()
        ax.plot(means.index, means, "_", color="k", markersize=12, markeredgewidth=1.5)
        ax.set(xlabel="share of common labels", xlim=(-0.05, 1.05))
        ax.set_title(panel)
    axes[0][0].set_ylabel("distance of the two gates")
    return captioned(fig, caption, "dots: pairs of clients; bars: their mean")

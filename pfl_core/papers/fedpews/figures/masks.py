"""Figures of FedPeWS's masks, Dirichlet splits and activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from pfl_core.layout import Layout
from pfl_core.papers.fedpews.figures.accuracy import warmup_labels
from pfl_core.study.plots import captioned, curves_note, dots, dots_note, legend_above, lines
from pfl_core.study.style import BLUE, DASHES, DOUBLE, GREEN, LOOKS, ORANGE, SINGLE, VERMILLION, looks, styled

OWNERS = (VERMILLION, BLUE, ORANGE, GREEN)  # colours of clients 0, 1, 2, 3
SHARED, NOBODY = "#222222", "#c8c8c8"
BIAS = -1  # source of an edge that represents a bias


def edges(layout: Layout, owners: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Every parameter of a dense chain as an edge, for each panel.

    ``owners``: panel -> the client that trains each of the d parameters ("" for none). Columns: panel, layer (0 for the
    weights of the inputs), source, target (neuron indices in their layers; a bias has the source -1), owner.
    """
    weight_layers = [field.layer for field in layout.params if field.name.endswith("weight")]
    rows = []
    for panel, of_entry in owners.items():
        for field in layout.params:
            layer = weight_layers.index(field.layer)
            indices = np.ndindex(*field.shape)  # (target, source) for a weight, (target,) for a bias
            for index, owner in zip(indices, of_entry[field.start : field.stop], strict=True):
                source = index[1] if len(index) > 1 else BIAS
                rows.append((panel, layer, source, index[0], owner))
    return pd.DataFrame(rows, columns=["panel", "layer", "source", "target", "owner"])


@styled
def networks(graph: pd.DataFrame, owners: Mapping[str, str], caption: str = "") -> Figure:
    """FedPeWS, Figures 1, 2 and 7: one dense network per panel, with edges in the colour of their client.

    graph: columns of ``edges``. Edges without an owner are grey; a neuron has the colour of its bias. ``owners``: owner
    -> colour.
    """
    panels = list(dict.fromkeys(graph["panel"]))
    size = (DOUBLE, DOUBLE / max(3, len(panels)) + 0.6)
    fig, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
    for ax, panel in zip(axes[0], panels, strict=True):
        _network(ax, graph[graph["panel"] == panel], owners)
        ax.set_title(panel)
    handles = [
        Line2D([], [], color=color, linestyle=dash, label=owner)
        for (owner, color), dash in zip(owners.items(), DASHES, strict=False)
    ]
    handles.append(Line2D([], [], color=NOBODY, linestyle=":", label="nobody"))
    legend_above(fig, handles=handles)
    return captioned(fig, caption)


def _network(ax: Axes, graph: pd.DataFrame, owners: Mapping[str, str]) -> None:
    """One panel of ``networks``: layers from left to right, the first neuron of a layer at the top."""
    weights, nodes = graph[graph["source"] != BIAS], graph[graph["source"] == BIAS]
    # Neurons per layer, from the largest indices; ``middle`` centres each layer vertically.
    widths = [weights.loc[weights["layer"] == 0, "source"].max() + 1, *weights.groupby("layer")["target"].max() + 1]
    middle = (np.array(widths) - 1) / 2
    for owner, part in weights.groupby("owner"):
        # One segment per weight, from its source neuron to its target neuron: [weights, 2 ends, (x, y)].
        left = np.stack([part["layer"], middle[part["layer"]] - part["source"]], axis=1)
        right = np.stack([part["layer"] + 1, middle[part["layer"] + 1] - part["target"]], axis=1)
        without_owner = {"colors": NOBODY, "linestyles": ":", "zorder": 0}
        dash = DASHES[list(owners).index(owner)] if owner else ":"
        style: dict[str, Any] = {"colors": owners[owner], "linestyles": [dash], "zorder": 1} if owner else without_owner
        ax.add_collection(LineCollection(list(np.stack([left, right], axis=1)), linewidths=1.2, **style))
    ax.scatter(np.zeros(widths[0]), middle[0] - np.arange(widths[0]), s=30, color="w", edgecolors="k", zorder=2)
    # A neuron is drawn at its bias, in the colour of the bias's owner.
    fill = [owners.get(owner, "w") for owner in nodes["owner"]]
    edge = ["k" if owner else NOBODY for owner in nodes["owner"]]
    height = middle[nodes["layer"] + 1] - nodes["target"]
    ax.scatter(nodes["layer"] + 1, height, s=60, c=fill, edgecolors=edge, zorder=2)
    ax.set_axis_off()
    ax.margins(0.12)


@styled
def plane(points: pd.DataFrame, caption: str = "") -> Figure:
    """FedPeWS, Figure 3: the points in the plane, coloured by class. Columns: x, y, class."""
    fig, ax = plt.subplots(figsize=(SINGLE, SINGLE + 0.3), layout="constrained")
    handles = []
    for (number, group), color, mark in zip(points.groupby("class"), OWNERS, "osD^", strict=False):
        ax.scatter(group["x"], group["y"], s=3, color=color, marker=mark, linewidth=0, rasterized=True)
        handles.append(Line2D([], [], color=color, marker=mark, linestyle="", label=f"class {number}"))
    ax.set(xlabel="x", ylabel="y", aspect="equal")
    legend_above(fig, handles=handles)
    return captioned(fig, caption)


@styled
def diversity_push(scores: pd.DataFrame, caption: str = "") -> Figure:
    """How the diversity reward alone changes a neuron's probability, by λ. Columns: lam, step, prob."""
    fig, ax = plt.subplots(figsize=(SINGLE, 2.4), layout="constrained")
    weights = sorted(scores["lam"].unique())
    for i, lam in enumerate(weights):
        group = scores[scores["lam"] == lam]
        color, dash = plt.get_cmap("viridis")(i / len(weights)), DASHES[i % len(DASHES)]
        ax.plot(group["step"], group["prob"], color=color, linestyle=dash, label=f"λ = {lam:g}")
    ax.axhline(0.5, color="0.6", linewidth=0.8, linestyle="--")
    ax.set(xlabel="step of Procedure I", ylabel="probability p of the neuron", ylim=(0.45, 1.02))
    ax.legend()
    return captioned(fig, caption)


def labels_by_base(runs: pd.DataFrame) -> pd.DataFrame:
    """``warmup_labels`` of runs without a column lam. Columns: method, base."""
    return warmup_labels(runs.assign(lam=np.nan)).drop(columns="lam")


@styled
def splits_and_curves(counts: pd.DataFrame, curves: pd.DataFrame, caption: str = "") -> Figure:
    """FedPeWS, Figure 8: a column for each α, with the clients' data (area = samples) above the accuracy over rounds.

    counts: alpha, client, class, samples (of one seed); curves: alpha, label, color, seed, round, value, switch.
    """
    alphas = sorted(counts["alpha"].unique())
    size, look = (DOUBLE, 4.2), looks(curves)
    fig, axes = plt.subplots(2, len(alphas), figsize=size, layout="constrained", squeeze=False, sharey="row")
    for (above, below), alpha in zip(axes.T, alphas, strict=True):
        held = counts[(counts["alpha"] == alpha) & (counts["samples"] > 0)]
        # The largest dot of all splits has an area of 50.
        area = 50 * held["samples"] / counts["samples"].max()
        above.scatter(held["client"], held["class"], s=area, color="0.35", alpha=0.8)
        above.set(title=f"α = {alpha:g}", xlabel="client", xticks=sorted(counts["client"].unique()))
        here = curves[curves["alpha"] == alpha]
        lines(below, here, look)
        for rounds in sorted(set(here["switch"]) - {0}):
            below.axvline(rounds, color="0.45", linestyle="--", linewidth=1)
        below.set_xlabel("communication round")
    axes[0][0].yaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0][0].set_ylabel("class")
    axes[1][0].set_ylabel("accuracy (%)")
    legend_above(fig, axes[1])
    return captioned(fig, caption, f"{curves_note(curves)}; dashed: end of the warm-up; dots: one seed, area = samples")


@styled
def gains(table: pd.DataFrame, xlabel: str, log: bool = False, caption: str = "") -> Figure:
    """The gain of the warm-up at each x: a dot for each seed, and their mean. Columns: x, seed, gain (points)."""
    fig, ax = plt.subplots(figsize=(SINGLE, 2.3), layout="constrained")
    x = np.array(sorted(table["x"].unique()))
    dots(ax, x, [table.loc[table["x"] == at, "gain"].to_numpy() for at in x], LOOKS["fedpews"], "")
    ax.axhline(0, color="0.6", linewidth=0.8)
    ax.set(xlabel=xlabel, ylabel="gain (points)", xscale="log" if log else "linear")
    ax.set_xticks(x, [f"{at:g}" for at in x])
    ax.minorticks_off()
    return captioned(fig, caption, dots_note(table))


@styled
def activation_maps(table: pd.DataFrame, switch: int = 0, caption: str = "") -> Figure:
    """FedPeWS, Figures 14 and 15: neuron by round, rows = clients, columns = layers, a dashed line at the switch.

    Columns: client, layer, neuron (index in its layer), group (the client of the neuron; dotted lines separate groups),
    round, value. Each layer has one colour scale for all clients, given in its title.
    """
    clients, layers = sorted(table["client"].unique()), list(dict.fromkeys(table["layer"]))
    size = (DOUBLE, 1.5 * len(clients) + 0.6)
    fig, axes = plt.subplots(len(clients), len(layers), figsize=size, layout="constrained", squeeze=False, sharex=True)
    for column, layer in enumerate(layers):
        here = table[table["layer"] == layer]
        top = here["value"].max() or 1.0
        for ax, client in zip(axes[:, column], clients, strict=True):
            of_client = here[here["client"] == client]
            grid = of_client.pivot(index="neuron", columns="round", values="value")
            # A column is as wide as the rounds from one recorded round to the next.
            every = grid.columns[1] - grid.columns[0] if grid.shape[1] > 1 else 1
            last = grid.columns[-1] + every - 1
            extent = (grid.columns[0] - 0.5, last + 0.5, len(grid) - 0.5, -0.5)
            scale = {"cmap": "magma", "vmin": 0, "vmax": top}
            ax.imshow(grid, aspect="auto", extent=extent, interpolation="none", **scale)
            # Dotted lines between the groups of neurons.
            for start in of_client.groupby("group")["neuron"].min().iloc[1:]:
                ax.axhline(start - 0.5, color="w", linewidth=0.8, linestyle=":")
            ax.set(yticks=[], xticks=sorted({1, switch or 1, last}))
            _switch_line(ax, switch, "w")
        axes[0][column].set_title(f"{layer}\n(black 0, white {top:,.0f})")
        axes[-1][column].set_xlabel("communication round")
    for ax, client in zip(axes[:, 0], clients, strict=True):
        ax.set_ylabel(f"data of client {client}\nneurons")
    return captioned(fig, caption)


@styled
def group_activations(table: pd.DataFrame, switch: int = 0, caption: str = "") -> Figure:
    """The lines of FedPeWS, Figures 14 and 15: a group's summed activations over the rounds, by client and layer.

    Columns: client, layer, group (index of its client), round, value.
    """
    clients, layers = sorted(table["client"].unique()), list(dict.fromkeys(table["layer"]))
    size = (DOUBLE, 1.4 * len(clients) + 0.8)
    fig, axes = plt.subplots(
        len(clients), len(layers), figsize=size, layout="constrained", squeeze=False, sharex=True, sharey="col"
    )
    for row, client in zip(axes, clients, strict=True):
        for ax, layer in zip(row, layers, strict=True):
            here = table[(table["client"] == client) & (table["layer"] == layer)]
            for group, line in here.groupby("group"):
                label = f"neurons of client {group}"
                ax.plot(line["round"], line["value"], color=OWNERS[group], ls=DASHES[group], label=label)
            ax.set_xticks(sorted({1, switch or 1, table["round"].max()}))
            _switch_line(ax, switch, "0.45")
    for ax, layer in zip(axes[0], layers, strict=True):
        ax.set_title(layer)
        ax.set_ylim(bottom=0)
    for ax in axes[-1]:
        ax.set_xlabel("communication round")
    for ax, client in zip(axes[:, 0], clients, strict=True):
        ax.set_ylabel(f"data of client {client}\nsum of activations")
    legend_above(fig, [axes[0][0]])
    return captioned(fig, caption)


def _switch_line(ax: Axes, switch: int, color: str) -> None:
    """A dashed line after the last round of the warm-up, if there is one."""
    if switch:
        ax.axvline(switch + 0.5, color=color, linestyle="--", linewidth=1)

"""Which client trains which parameter of a dense network, drawn as a graph (Figures 1, 2 and 7)."""

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

from pfl_core.layout import Layout
from pfl_core.study.plots import legend_above
from pfl_core.study.style import DASHES, DOUBLE, styled

NOBODY = "#c8c8c8"  # colour of parameters without an owner
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
def networks(graph: pd.DataFrame, owners: Mapping[str, str]) -> Figure:
    """A dense network for each panel, with edges in the colour of their client.

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
    legend_above(fig, handles=[*handles, Line2D([], [], color=NOBODY, linestyle=":", label="nobody")])
    return fig


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
        color, dash = (owners[owner], DASHES[list(owners).index(owner)]) if owner else (NOBODY, ":")
        look: dict[str, Any] = {"colors": color, "linestyles": [dash], "linewidths": 1.2, "zorder": int(bool(owner))}
        ax.add_collection(LineCollection(list(np.stack([left, right], axis=1)), **look))
    ax.scatter(np.zeros(widths[0]), middle[0] - np.arange(widths[0]), s=30, color="w", edgecolors="k", zorder=2)
    # A neuron is drawn at its bias, in the colour of the bias's owner.
    fill = [owners.get(owner, "w") for owner in nodes["owner"]]
    edge = ["k" if owner else NOBODY for owner in nodes["owner"]]
    height = middle[nodes["layer"] + 1] - nodes["target"]
    ax.scatter(nodes["layer"] + 1, height, s=60, c=fill, edgecolors=edge, zorder=2)
    ax.set_axis_off()
    ax.margins(0.12)

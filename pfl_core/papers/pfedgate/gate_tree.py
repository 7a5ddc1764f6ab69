"""Figure 4 of the paper: do clients with common labels have similar gates? Labels, distances and the tree of gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pfl_core.runs import Record
from pfl_core.study import similarity as overlap
from pfl_core.study.plots import wrapped
from pfl_core.study.published import FOLDER
from pfl_core.study.style import BLUE, DOUBLE, styled


def labels_held(record: Record) -> np.ndarray:
    """[N, C] bool: which labels a client trains on."""
    return np.array(record.clients["train"]) > 0


def gate_rank(record: Record) -> dict[str, float]:
    """``gate_rank``: rank correlation of gate distance and common labels over pairs of clients (Figure 4)."""
    if record.spec.partition["name"] != "pathological" or "gate_distances" not in record.arrays:
        return {}
    common = overlap.common_share(labels_held(record))
    return {"gate_rank": overlap.mantel(common, np.array(record.arrays["gate_distances"]), draws=0, ranks=True)[0]}


def paper_leaves() -> tuple[list[int], np.ndarray]:
    """The clients at the leaves of the paper's Figure 4 in their order, and their labels [N, 10] bool."""
    leaves = pd.read_csv(FOLDER / "pfedgate_figure4.csv", dtype={"labels": str})
    held = np.zeros((len(leaves), 10), dtype=bool)
    for row, labels in zip(held, leaves["labels"], strict=True):
        row[[int(label) for label in labels.split()]] = True
    return leaves["client"].tolist(), held


@styled
def label_tree(tree: Mapping[str, list], held: np.ndarray, title: str) -> Figure:
    """Dendrogram of the clients' gates, the labels at its leaves, and those at the leaves of the paper's Figure 4.

    ``tree``: see ``similarity.ward``; ``held``: bool [N, C], by client.
    """
    clients, printed = paper_leaves()
    size = (DOUBLE, 0.21 * max(len(held), len(printed)) + 1.2)
    fig, axes = plt.subplots(1, 3, figsize=size, layout="constrained", width_ratios=(1.2, 1, 1))
    # scipy's leaves are at 5, 15, 25, ...; rows are at 0, 1, 2, ...
    for across, up in zip(tree["icoord"], tree["dcoord"], strict=True):
        axes[0].plot(up, (np.array(across) - 5) / 10, color="0.3", linewidth=1)
    axes[0].set_ylim(len(held) - 0.5, -0.5)
    axes[0].set(xlabel="Ward distance of joining", yticks=[])
    axes[0].invert_xaxis()
    axes[0].spines[["top", "left", "right"]].set_visible(False)
    _label_grid(axes[1], held[tree["leaves"]], tree["leaves"], title)
    _label_grid(axes[2], printed, clients, "paper: leaves of Figure 4 (CIFAR-10)")
    return fig


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

"""Figures of pFedGate's masks and gates: kept blocks, gate values by round, swapped gates, the global model."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pfl_core.study.plots import captioned, dots

BINS = np.linspace(0, 1, 26)


def mask_use(masks: Mapping[str, np.ndarray], sizes: np.ndarray, caption: str = "") -> Figure:
    """How often each client keeps each block; rows are clients, columns blocks.

    ``masks``: title -> [N, L] shares of the test samples, a panel each. ``sizes`` [L]: the bars above show the blocks'
    shares of the parameters.
    """
    fig, axes = plt.subplots(
        2,
        len(masks),
        figsize=(4.4 * len(masks) + 0.6, 3.6),
        layout="constrained",
        squeeze=False,
        sharex="col",
        height_ratios=[1, 3],
    )
    for (top, ax), (title, use) in zip(axes.T, masks.items(), strict=True):
        top.bar(range(len(sizes)), 100 * sizes / sizes.sum(), color="#4c72b0", width=1.0)
        top.set_title(title, fontsize=10)
        shown = ax.imshow(use, vmin=0, vmax=1, cmap="Purples", aspect="auto", interpolation="nearest")
        ax.set_xlabel("block")
    axes[0][0].set_ylabel("% of all\nparameters", fontsize=8)
    axes[1][0].set_ylabel("client")
    fig.colorbar(shown, ax=axes[1], label="share of test samples\nfor which it is kept")
    return captioned(fig, caption)


def gate_histograms(values: Mapping[str, np.ndarray], caption: str = "") -> Figure:
    """Figure 7: histogram of the gate values M' by round. ``values``: title -> [T, L], a panel each."""
    fig, axes = plt.subplots(
        1, len(values), figsize=(4.2 * len(values) + 0.6, 3.4), layout="constrained", squeeze=False, sharey=True
    )
    for ax, (title, each) in zip(axes[0], values.items(), strict=True):
        counts = np.stack([np.histogram(row.clip(BINS[0], BINS[-1]), BINS)[0] for row in each])  # [T, bins]
        shown = ax.imshow(
            counts, extent=(BINS[0], BINS[-1], len(each) + 0.5, 0.5), aspect="auto", cmap="magma_r", vmin=0
        )
        ax.set(title=title, xlabel="gate value M', mean over clients")
    axes[0][0].set_ylabel("communication round")
    fig.colorbar(shown, ax=axes[0], label="blocks")
    return captioned(fig, caption)


def gate_swaps(table: pd.DataFrame, caption: str = "") -> Figure:
    """Accuracy with a client's own gate and with others: a dot for each client and run, a line for the mean.

    Columns: panel, gate, client, accuracy.
    """
    panels, gates = (list(dict.fromkeys(table[name])) for name in ("panel", "gate"))
    size = (3.4 * len(panels) + 2.0, 0.36 * len(gates) + 1.4)
    fig, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False, sharey=True)
    for ax, panel in zip(axes[0], panels, strict=True):
        for i, gate in enumerate(gates):  # one row for each gate
            values = table.loc[(table["panel"] == panel) & (table["gate"] == gate), "accuracy"].to_numpy()
            ax.plot(values, np.full(len(values), -i), "o", color="#b39bc8", alpha=0.6, markersize=4)
            ax.plot(np.full(2, values.mean()), (-i - 0.35, -i + 0.35), color="#6a3d9a", linewidth=2)
        ax.set(title=panel, xlabel="accuracy of a client (%)")
        ax.set_yticks([-i for i in range(len(gates))], gates)
    axes[0][0].set_ylabel("gate in use")
    return captioned(fig, caption)


def gated_and_global(table: pd.DataFrame, caption: str = "") -> Figure:
    """Table 10: accuracy of the gated and of the global model over s.

    Columns: panel, s, gated, global_model (a row per run).
    """
    panels = list(dict.fromkeys(table["panel"]))
    fig, axes = plt.subplots(1, len(panels), figsize=(4.0 * len(panels), 3.3), layout="constrained", squeeze=False)
    for ax, panel in zip(axes[0], panels, strict=True):
        here = table[table["panel"] == panel]
        texts = list(dict.fromkeys(here["s"]))
        for column, color, label in (
            ("gated", "#6a3d9a", "gated (each client's own)"),
            ("global_model", "0.5", "global, one more epoch without gates"),
        ):
            values = [here.loc[here["s"] == s, column].to_numpy() for s in texts]
            dots(ax, np.arange(len(texts)), values, color, label)
        ax.set(title=panel, xlabel="budget s (small dots: seeds)")
        ax.set_xticks(range(len(texts)), texts)
    axes[0][0].set_ylabel("accuracy (%)")
    fig.legend(*axes[0][0].get_legend_handles_labels(), frameon=False, fontsize=8, ncols=2, loc="outside upper center")
    return captioned(fig, caption)

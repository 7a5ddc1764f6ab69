"""Figures of pFedGate's masks and gates: kept blocks, gate values by round, swapped gates, the global model."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pfl_core.study.names import plain
from pfl_core.study.plots import captioned, dots, dots_note, legend_above
from pfl_core.study.style import COLORS, DASHES, DOUBLE, GREY, LOOKS, Look, styled

BINS = np.linspace(0, 1, 26)


@styled
def mask_use(masks: Mapping[str, np.ndarray], sizes: np.ndarray, caption: str = "") -> Figure:
    """How often each client keeps each block; rows are clients, columns blocks.

    ``masks``: title -> [N, L] shares of the test samples, a panel each. ``sizes`` [L]: the bars above show the blocks'
    shares of the parameters.
    """
    fig, axes = plt.subplots(
        2,
        len(masks),
        figsize=(DOUBLE, 2.9),
        sharey="row",
        layout="constrained",
        squeeze=False,
        sharex="col",
        height_ratios=[1, 3],
    )
    for (top, ax), (title, use) in zip(axes.T, masks.items(), strict=True):
        top.bar(range(len(sizes)), 100 * sizes / sizes.sum(), color=COLORS["lg_fedavg"], width=1.0)
        top.set_title(title)
        shown = ax.imshow(use, vmin=0, vmax=1, cmap="Purples", aspect="auto", interpolation="nearest")
        ax.set_xlabel("block")
    axes[0][0].set_ylabel("% of all\nparameters")
    axes[1][0].set_ylabel("client")
    fig.colorbar(shown, ax=axes[1], label="share of test samples\nfor which it is kept")
    return captioned(fig, caption)


@styled
def gate_histograms(values: Mapping[str, np.ndarray], caption: str = "") -> Figure:
    """Figure 7: histogram of the gate values M' by round. ``values``: title -> [T, L], a panel each."""
    fig, axes = plt.subplots(1, len(values), figsize=(DOUBLE, 2.5), layout="constrained", squeeze=False, sharey=True)
    for ax, (title, each) in zip(axes[0], values.items(), strict=True):
        counts = np.stack([np.histogram(row.clip(BINS[0], BINS[-1]), BINS)[0] for row in each])  # [T, bins]
        shown = ax.imshow(
            counts,
            extent=(BINS[0], BINS[-1], len(each) + 0.5, 0.5),
            aspect="auto",
            cmap="magma_r",
            vmin=0,
            vmax=len(each[0]),
        )
        ax.set(title=title, xlabel="gate value M'")
    axes[0][0].set_ylabel("communication round")
    fig.colorbar(shown, ax=axes[0], label="blocks")
    return captioned(fig, caption, "gate values: mean over the clients")


@styled
def gate_swaps(table: pd.DataFrame, caption: str = "") -> Figure:
    """Accuracy with a client's own gate and with others: a dot for each client and run, a line for the mean.

    Columns: panel, gate, client, accuracy.
    """
    panels, gates = (list(dict.fromkeys(table[name])) for name in ("panel", "gate"))
    size = (DOUBLE, 0.26 * len(gates) + 1.2)
    fig, axes = plt.subplots(
        1, len(panels), figsize=size, layout="constrained", squeeze=False, sharey=True, sharex=True
    )
    for ax, panel in zip(axes[0], panels, strict=True):
        for i, gate in enumerate(gates):  # one row for each gate
            values = table.loc[(table["panel"] == panel) & (table["gate"] == gate), "accuracy"].to_numpy()
            ax.plot(values, np.full(len(values), -i), "o", color=LOOKS["pfedgate"].color, alpha=0.35, markersize=3)
            ax.plot(np.full(2, values.mean()), (-i - 0.35, -i + 0.35), color="k", linewidth=1.6)
        ax.set(title=panel, xlabel="accuracy of a client (%)")
        ax.set_yticks([-i for i in range(len(gates))], gates)
    axes[0][0].set_ylabel("gate in use")
    return captioned(fig, caption, "dots: a client in a run; lines: their mean")


@styled
def gated_and_global(table: pd.DataFrame, caption: str = "") -> Figure:
    """Table 10: accuracy of the gated and of the global model over s.

    Columns: panel, s, seed, gated, global_model (a row per run).
    """
    panels = list(dict.fromkeys(table["panel"]))
    fig, axes = plt.subplots(1, len(panels), figsize=(DOUBLE, 2.6), layout="constrained", squeeze=False, sharey=True)
    for ax, panel in zip(axes[0], panels, strict=True):
        here = table[table["panel"] == panel]
        texts = list(dict.fromkeys(here["s"]))
        for column, look, label in (
            ("gated", LOOKS["pfedgate"], "gated (each client's own)"),
            ("global_model", Look(GREY, "s", DASHES[1]), "global, one more epoch without gates"),
        ):
            values = [here.loc[here["s"] == s, column].to_numpy() for s in texts]
            dots(ax, np.arange(len(texts)), values, look, label)
        ax.set(title=plain(panel), xlabel="budget s")
        ax.set_xticks(range(len(texts)), texts)
    axes[0][0].set_ylabel("accuracy (%)")
    legend_above(fig, [axes[0][0]])
    return captioned(fig, caption, dots_note(table))

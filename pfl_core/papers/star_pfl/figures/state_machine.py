"""Figures of Star-PFL's state machine."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pfl_core.papers.star_pfl.figures.traces import STATE_COLORS, shade, state_patches
from pfl_core.study.plots import captioned, legend_above
from pfl_core.study.style import BLUE, DOUBLE, styled


@styled
def machine_steps(table: pd.DataFrame, caption: str = "") -> Figure:
    """A cell for each entry and round: the state as colour, the update and the score after it as text.

    Columns: round, entry, state, dW, score', F.
    """
    entries, rounds = list(dict.fromkeys(table["entry"])), int(table["round"].max())
    fig, ax = plt.subplots(figsize=(DOUBLE, 0.62 * len(entries) + 0.9), layout="constrained")
    for row in table.itertuples(index=False):  # one cell for each entry and round
        cell = dict(zip(table.columns, row, strict=True))
        x, y = cell["round"], -entries.index(cell["entry"])
        box = plt.Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=STATE_COLORS[cell["state"]], edgecolor="0.7")
        ax.add_patch(box)
        score = cell["score'"]
        text = "waits" if pd.isna(score) else f"{cell['dW']:+g}\nscore {score:.2g}"
        ax.text(x, y + 0.08, text, ha="center", va="center", fontsize=7)
        ax.text(x + 0.44, y - 0.4, f"F = {cell['F']}", ha="right", va="bottom", fontsize=5.5, color="0.3")
    ax.set(xlim=(0.45, rounds + 0.55), ylim=(-len(entries) + 0.45, 0.55), xlabel="round")
    ax.set_yticks([-k for k in range(len(entries))], entries)
    ax.set_xticks(range(1, rounds + 1))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    legend_above(fig, handles=state_patches())
    return captioned(fig, caption)


@styled
def pattern_panels(table: pd.DataFrame, threshold: float, caption: str = "") -> Figure:
    """Scores by round over a background of states; rows are patterns, columns settings.

    Columns: setting, and those of ``state_machine.trajectories``.
    """
    patterns, settings = (list(dict.fromkeys(table[name])) for name in ("pattern", "setting"))
    size = (DOUBLE, 1.0 * len(patterns) + 0.9)
    fig, axes = plt.subplots(
        len(patterns), len(settings), figsize=size, layout="constrained", sharex=True, sharey=True, squeeze=False
    )
    for row, pattern in zip(axes, patterns, strict=True):
        for ax, setting in zip(row, settings, strict=True):
            mine = table[(table["pattern"] == pattern) & (table["setting"] == setting)]
            shade(ax, mine["round"].to_numpy(), mine["state"].to_numpy())
            ax.plot(mine["round"], mine["score"], ".-", color=BLUE, markersize=2.5, linewidth=0.8)
            ax.axhline(threshold, color="k", linewidth=0.8, linestyle="--")
            ax.set_ylim(-0.04, 1.04)
        row[0].set_ylabel(f"{pattern}\nscore")
    for ax, setting in zip(axes[0], settings, strict=True):
        ax.set_title(setting)
    for ax in axes[-1]:
        ax.set_xlabel("round")
    legend_above(fig, handles=state_patches())
    return captioned(fig, caption, "dashed: the threshold T")


@styled
def triangular_rounds(table: pd.DataFrame, caption: str = "") -> Figure:
    """States of an entry that is stable at every probe, and the number of rounds in which it was trained.

    Columns: round, state, trained (rounds so far), formula.
    """
    fig, ax = plt.subplots(figsize=(DOUBLE, 2.4), layout="constrained")
    edges = np.append(table["round"] - 0.5, table["round"].iloc[-1] + 0.5)
    # background: the state of each round
    for state, (name, color) in enumerate(STATE_COLORS.items()):
        here = table.loc[table["state"] == state, "round"]
        ax.bar(here, table["trained"].max() + 1, width=1.0, color=color, alpha=0.6, linewidth=0, label=name, zorder=0)
    ax.plot(table["round"], table["formula"], color="k", linewidth=1, label="⌊(√(8t + 1) − 1) / 2⌋")
    ax.plot(table["round"], table["trained"], "o", color=BLUE, markersize=3, label="trained so far")
    ax.set(xlabel="round t", ylabel="rounds trained", xlim=(edges[0], edges[-1]), ylim=(0, table["trained"].max() + 1))
    legend_above(fig, [ax])
    return captioned(fig, caption)

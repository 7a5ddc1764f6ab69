"""Figures of Star-PFL's mask similarity (Figure 2): scores by client, similarity by layer and by round."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pfl_core.papers.star_pfl.figures.traces import NOISE
from pfl_core.study.plots import band, captioned

KINDS = {  # compared quantity -> label, colour
    "rank": ("scores (Spearman)", "#4c72b0"),
    "stable": ("stable sets (overlap above chance)", "#c44e52"),
    "moving": ("of them those that moved", "#e0a458"),
}


def score_map(scores: np.ndarray, tensors: Sequence[str], labels: Sequence[str], caption: str = "") -> Figure:
    """Figure 2: rows are clients, columns sampled entries in the order of the tensors, the colour is the score.

    ``scores`` [N, n]; ``tensors``: n names; ``labels`` of the N clients, with a line between different labels.
    """
    fig, ax = plt.subplots(figsize=(10, 0.2 * len(scores) + 1.7), layout="constrained")
    shown = ax.imshow(scores, aspect="auto", vmin=0, vmax=1, cmap="viridis", interpolation="none")
    starts = _starts(tensors)
    for place, name in starts:
        ax.axvline(place - 0.5, color="w", linewidth=1.2)
        ax.text(place, -0.75, name.removesuffix(".weight"), fontsize=8, va="bottom")
    for place, _ in _starts(labels)[1:]:  # between groups of clients
        ax.axhline(place - 0.5, color="w", linewidth=1.2)
    ax.set_yticks(range(len(labels)), labels, fontsize=7 if len(labels) > 12 else 9)
    ax.set(xlabel="sampled entries", ylabel="client (its classes)", xticks=[])
    ax.tick_params(length=0)
    fig.colorbar(shown, ax=ax, label="stability score\n(0: updates cancel)", pad=0.01)
    return captioned(fig, caption)


def _starts(names: Sequence[str]) -> list[tuple[int, str]]:
    """Position and name of the first element of each run of equal names."""
    starts, position = [], 0
    for name, run in groupby(names):
        starts.append((position, name))
        position += len(list(run))
    return starts


def likeness_by_layer(layers: pd.DataFrame, caption: str = "") -> Figure:
    """Similarity by layer: pairs with a common class minus pairs without (left), shares of stable entries (right).

    Columns: seed, tensor, rank_contrast, stable_contrast, moving_contrast; the shares stable and moving, and chance,
    the stable share on noise. Bars are means over seeds, dots are seeds.
    """
    names = list(dict.fromkeys(layers["tensor"]))
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.2), layout="constrained")
    # left: the three contrasts side by side
    for shift, (kind, (label, color)) in zip((-0.2, 0.0, 0.2), KINDS.items(), strict=True):
        _by_layer(left, layers, names, f"{kind}_contrast", shift, color, label)
    # right: the shares of the two kinds of sets
    for shift, kind in ((-0.1, "stable"), (0.1, "moving")):
        _by_layer(right, layers, names, kind, shift, KINDS[kind][1], "")
    left.axhline(0, color="0.6", linewidth=0.8)
    right.axhline(layers["chance"].iloc[0], color=NOISE, linestyle="--", label="noise would be stable (right)")
    left.set_ylabel("common class minus none")
    right.set_ylabel("share of the layer's entries")
    right.set_ylim(bottom=0)
    for ax in (left, right):
        ax.set_xticks(range(len(names)), [name.removesuffix(".weight") for name in names])
    fig.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return captioned(fig, caption)


def _by_layer(
    ax: plt.Axes, layers: pd.DataFrame, names: list[str], column: str, shift: float, color: str, label: str
) -> None:
    """Draws a bar for the mean over seeds and a dot for each seed."""
    values = [layers.loc[layers["tensor"] == name, column].to_numpy() for name in names]
    places = np.arange(len(names)) + shift
    ax.bar(places, [np.mean(seeds) for seeds in values], width=0.18, color=color, alpha=0.6, label=label)
    for place, seeds in zip(places, values, strict=True):
        ax.plot(np.full(len(seeds), place), seeds, ".", color=color, markersize=5)


def likeness_curves(curves: pd.DataFrame, caption: str = "") -> Figure:
    """How well labels explain the similarity, by round; a panel for each split and statistic.

    Columns: panel, kind ("rank" or "stable"), seed, round, value, p (one-sided). The dot of a round is hollow if some
    seed has p > 0.05.
    """
    panels = list(dict.fromkeys(curves["panel"]))
    size = (4.2 * len(panels), 3.5)
    fig, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
    for ax, panel in zip(axes[0], panels, strict=True):
        for kind, group in curves[curves["panel"] == panel].groupby("kind", sort=False):
            label, color = KINDS[kind]
            band(ax, group, label, color)
            rounds = group.groupby("round").agg(value=("value", "mean"), p=("p", "max"))
            for significant, face in ((True, color), (False, "w")):
                dots = rounds.loc[(rounds["p"] <= 0.05) == significant, "value"]
                ax.plot(dots.index, dots, "o", color=color, markerfacecolor=face, markersize=4)
        ax.axhline(0, color="0.6", linewidth=0.8)
        ax.set_title(panel, fontsize=9)
        ax.set_xlabel("communication round")
    lines, labels = axes[0][0].get_legend_handles_labels()
    fig.legend(lines, labels, loc="outside upper center", ncols=2, frameon=False, fontsize=8)
    return captioned(fig, caption)

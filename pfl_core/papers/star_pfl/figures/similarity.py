"""Figures of Star-PFL's mask similarity (Figure 2): scores by client, similarity by layer and by round."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from textwrap import fill
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pfl_core.papers.star_pfl.figures.traces import NOISE
from pfl_core.study.plots import band, captioned, curves_note, legend_above
from pfl_core.study.style import BLUE, DOUBLE, ORANGE, VERMILLION, Look, styled

KINDS = {  # compared quantity -> label, look
    "rank": ("scores (Spearman)", Look(BLUE, "o")),
    "stable": ("stable sets (overlap above chance)", Look(VERMILLION, "s", (0, (4, 1.5)))),
    "moving": ("those of the stable sets that moved", Look(ORANGE, "D", ":")),
}


@styled
def score_map(scores: np.ndarray, tensors: Sequence[str], labels: Sequence[str], caption: str = "") -> Figure:
    """Figure 2: rows are clients, columns sampled entries in the order of the tensors, the colour is the score.

    ``scores`` [N, n]; ``tensors``: n names; ``labels`` of the N clients, with a line between different labels.
    """
    fig, ax = plt.subplots(figsize=(DOUBLE, 0.13 * len(scores) + 1.2), layout="constrained")
    shown = ax.imshow(scores, aspect="auto", vmin=0, vmax=1, cmap="viridis", interpolation="none")
    starts = _starts(tensors)
    for place, _ in starts[1:]:
        ax.axvline(place - 0.5, color="w", linewidth=1.2)
    for place, _ in _starts(labels)[1:]:  # between groups of clients
        ax.axhline(place - 0.5, color="w", linewidth=1.2)
    ends = [place for place, _ in starts[1:]] + [len(tensors)]
    middles = [(start + end - 1) / 2 for (start, _), end in zip(starts, ends, strict=True)]
    ax.set_xticks(middles, [name.removesuffix(".weight") for _, name in starts])
    ax.set_yticks(range(len(labels)), labels, fontsize=6)
    ax.set(xlabel="sampled entries, by layer", ylabel="client (its classes)")
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


@styled
def likeness_by_layer(layers: pd.DataFrame, caption: str = "") -> Figure:
    """Similarity by layer: pairs with a common class minus pairs without (left), shares of stable entries (right).

    Columns: seed, tensor, rank_contrast, stable_contrast, moving_contrast; the shares stable and moving, and chance,
    the stable share on noise. Bars are means over seeds, dots are seeds.
    """
    names = list(dict.fromkeys(layers["tensor"]))
    fig, (left, right) = plt.subplots(1, 2, figsize=(DOUBLE, 2.6), layout="constrained")
    # left: the three contrasts side by side
    for shift, (kind, (label, look)) in zip((-0.22, 0.0, 0.22), KINDS.items(), strict=True):
        _by_layer(left, layers, names, f"{kind}_contrast", shift, look, label)
    # right: the shares of the two kinds of sets
    for shift, kind in ((-0.1, "stable"), (0.1, "moving")):
        _by_layer(right, layers, names, kind, shift, KINDS[kind][1], "")
    left.axhline(0, color="0.6", linewidth=0.8)
    right.axhline(layers["chance"].iloc[0], color=NOISE, linestyle="--", label="share on noise alone")
    left.set_ylabel("contrast:\ncommon class minus none")
    right.set_ylabel("share of the layer's entries")
    right.set_ylim(bottom=0)
    for ax in (left, right):
        ax.set_xticks(range(len(names)), [name.removesuffix(".weight") for name in names])
    legend_above(fig, (left, right))
    several = layers["seed"].nunique() > 1
    return captioned(fig, caption, "bars: mean over seeds; dots: seeds" if several else "bars: one seed")


def _by_layer(
    ax: plt.Axes, layers: pd.DataFrame, names: list[str], column: str, shift: float, look: Look, label: str
) -> None:
    """Draws a bar for the mean over seeds and, of several seeds, a dot for each."""
    values = [layers.loc[layers["tensor"] == name, column].to_numpy() for name in names]
    places = np.arange(len(names)) + shift
    hatch = {"o": "", "s": "////", "D": "...."}[look.marker]
    style: dict[str, Any] = {"width": 0.2, "color": look.color, "edgecolor": "w", "hatch": hatch, "linewidth": 0}
    ax.bar(places, [np.mean(seeds) for seeds in values], label=label, **style)
    for place, seeds in zip(places, values, strict=True):
        if len(seeds) > 1:
            ax.plot(np.full(len(seeds), place), seeds, ".", color="k", markersize=3)


@styled
def likeness_curves(curves: pd.DataFrame, caption: str = "") -> Figure:
    """How well labels explain the similarity, by round; a panel for each split and statistic.

    Columns: panel ("split: statistic"), kind ("rank" or "stable"), seed, round, value, p (one-sided). The dot of a
    round is hollow if some seed has p > 0.05.
    """
    panels = list(dict.fromkeys(curves["panel"]))
    size = (DOUBLE, 2.6)
    fig, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
    for ax, panel in zip(axes[0], panels, strict=True):
        for kind, group in curves[curves["panel"] == panel].groupby("kind", sort=False):
            label, look = KINDS[kind]
            band(ax, group, label, look._replace(marker=""))
            rounds = group.groupby("round").agg(value=("value", "mean"), p=("p", "max"))
            for significant, face in ((True, look.color), (False, "w")):
                dots = rounds.loc[(rounds["p"] <= 0.05) == significant, "value"]
                ax.plot(dots.index, dots, look.marker, color=look.color, markerfacecolor=face)
        ax.axhline(0, color="0.6", linewidth=0.8)
        split, _, statistic = panel.partition(": ")
        ax.set(title=split, xlabel="communication round", ylabel=fill(statistic, 24))
    legend_above(fig, [axes[0][0]])
    some = " in some seed" if curves["seed"].nunique() > 1 else ""
    return captioned(fig, caption, f"{curves_note(curves)}; hollow: not significant (p > 0.05){some}")

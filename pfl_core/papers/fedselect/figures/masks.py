"""Figures of FedSelect's masks: their overlap by limit and by layer, and the steps of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pfl_core.papers.fedselect.labels import limit_look
from pfl_core.study.plots import captioned, dots, dots_note, legend_above
from pfl_core.study.style import COLORS, DASHES, DOUBLE, MARKERS, Look, styled

OVERLAPS = {  # normalisation -> display name, colour
    "iou_raw": ("plain overlap", COLORS["lg_fedavg"]),
    "iou_minmax": ("overlap scaled to [0, 1]", COLORS["ditto"]),
    "iou_chance": ("overlap corrected for chance", COLORS["fedpac"]),
}


@styled
def overlap_contrast(runs: pd.DataFrame, caption: str = "") -> Figure:
    """Mean overlap of client pairs, and its contrast, by limit, for each normalisation.

    The contrast is the mean over pairs with a common class minus the mean over pairs without.
    Columns: alpha, seed, and ``iou_*_mean``, ``iou_*_contrast`` for raw, minmax, chance.
    """
    fig, axes = plt.subplots(1, 2, figsize=(DOUBLE, 2.5), layout="constrained")
    alphas = np.array(sorted(runs["alpha"].unique()))
    for ax, kind in zip(axes, ("mean", "contrast"), strict=True):
        for place, (name, (label, color)) in enumerate(OVERLAPS.items()):
            # One array per limit, with a value per seed.
            values = [runs.loc[runs["alpha"] == a, f"{name}_{kind}"].to_numpy() for a in alphas]
            dots(ax, alphas, values, Look(color, MARKERS[place], DASHES[place]), label)
        ax.set(xlabel=r"personalization limit $\alpha$")
        ax.axhline(0, color="0.6", linewidth=0.8)
    axes[0].set_ylabel("mean overlap of client pairs")
    axes[1].set_ylabel("contrast of the overlap")
    legend_above(fig, axes)
    return captioned(fig, caption, f"contrast: pairs with a common class minus pairs without; {dots_note(runs)}")


@styled
def layer_contrast(layers: pd.DataFrame, caption: str = "") -> Figure:
    """Contrast of the chance-corrected overlap, layer by layer. Columns: alpha, seed, tensor, contrast."""
    tensors, alphas = list(dict.fromkeys(layers["tensor"])), sorted(layers["alpha"].unique())
    fig, ax = plt.subplots(figsize=(DOUBLE, 2.5 + 0.5 * (len(tensors) > 8)), layout="constrained")
    for shift, alpha in zip(np.linspace(-0.25, 0.25, len(alphas)), alphas, strict=True):
        group = layers[layers["alpha"] == alpha]
        values = [group.loc[group["tensor"] == tensor, "contrast"].to_numpy() for tensor in tensors]
        dots(ax, np.arange(len(tensors)) + shift, values, limit_look(alpha), rf"$\alpha$ = {alpha:g}", joined=False)
    ax.axhline(0, color="0.6", linewidth=0.8)
    ax.set_xticks(
        range(len(tensors)), [t.removesuffix(".weight") for t in tensors], rotation=60 if len(tensors) > 8 else 0
    )
    ax.set(ylabel="contrast of the overlap,\ncorrected for chance", xlabel="weight tensor")
    legend_above(fig, [ax])
    return captioned(fig, caption, dots_note(layers))


@styled
def partitions(panels: Mapping[str, tuple[np.ndarray, np.ndarray]], names: Sequence[str]) -> Figure:
    """Figure 1 of FedSelect: one row per client, one column per parameter, a panel for each step of a round.

    panels: title -> (values [N, d], personal [N, d] bool); a frame marks a personal entry.
    """
    num, d = next(iter(panels.values()))[0].shape
    size = (min(DOUBLE, 0.45 * d + 1.2), len(panels) * (0.2 * num + 0.35) + 0.4)
    fig, axes = plt.subplots(len(panels), 1, figsize=size, layout="constrained", squeeze=False, sharex=True)
    largest = max(np.abs(values).max() for values, _ in panels.values())
    for ax, (title, (values, personal)) in zip(axes[:, 0], panels.items(), strict=True):
        image = ax.imshow(values, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto")
        # Frames around the personal entries.
        for k, j in zip(*np.nonzero(personal), strict=True):
            ax.add_patch(Rectangle((j - 0.44, k - 0.42), 0.88, 0.84, fill=False, linewidth=1.5))
        ax.set_title(title)
        ax.set_ylabel("client")
        ax.set_yticks(range(num))
    axes[-1, 0].set_xticks(range(d), names)
    fig.colorbar(image, ax=axes[:, 0], label="value (framed: personal)")
    return captioned(fig, "")

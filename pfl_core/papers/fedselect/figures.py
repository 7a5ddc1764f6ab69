"""Figures of the FedSelect notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pfl_core.study.plots import COLORS, NAMES, band, captioned, dots, far_below

SHADES = {0.0: 0.15, 0.05: 0.3, 0.30: 0.45, 0.50: 0.6, 0.80: 0.75, 1.0: 0.9}  # limit -> position in a colour map
BY_TENSOR = "tensor by tensor"  # label of runs that rank each tensor by itself


@cache  # get_cmap copies the colour map in each call
def shade(alpha: float, by_tensor: bool = False) -> tuple:
    """The colour of a personalization limit: red for one ranking, purple for a ranking of each tensor by itself."""
    return plt.get_cmap("Purples" if by_tensor else "Reds")(SHADES.get(round(alpha, 2), 0.5))


def by_tensor(runs: pd.DataFrame) -> pd.Series:
    """Which of ``runs`` rank tensor by tensor. The column selection_scope may be missing if no run is FedSelect's."""
    return runs.get("selection_scope", pd.Series("", runs.index)) == "per_tensor"


def labelled(runs: pd.DataFrame) -> pd.DataFrame:
    """``runs`` with a label and a colour for each method, and for each limit and scope of FedSelect.

    Columns: method, alpha, and by_tensor's.
    """
    is_fedselect, per_tensor = runs["method"] == "fedselect", by_tensor(runs)
    # Label: the method's display name; for FedSelect also the limit and the scope of the ranking.
    limit = "FedSelect, α = " + runs["alpha"].map("{:g}".format).astype(str)
    label = runs["method"].map(NAMES).where(~is_fedselect, limit + per_tensor.map({True: f", {BY_TENSOR}", False: ""}))
    fields = zip(runs["method"], runs["alpha"], is_fedselect, per_tensor, strict=True)
    color = [shade(alpha, apart) if selected else COLORS[name] for name, alpha, selected, apart in fields]
    return runs.assign(label=label, color=color)


def rules(runs: pd.DataFrame) -> pd.DataFrame:
    """``runs`` of FedSelect with a label and a colour for each rule of Table 3, and each scope.

    Columns: ranking, masks, layers, and by_tensor's.
    """
    fixed = {"random": "random, fixed", "common_random": "one random mask for all"}
    named = {
        "change": "most change (FedSelect)",
        "least_change": "least change",
        "random": "random, growing",
        "magnitude": "largest weights",
        "gradient": "largest gradients",
    }
    layered = runs["masks"] == "layers"
    # Growing masks are labelled by their ranking, fixed ones by their kind or their layers.
    label = runs["ranking"].map(named).mask(runs["masks"] != "grown", runs["masks"].map(fixed))
    label = label.mask(layered, "only " + runs["layers"].map(lambda names: ", ".join(names)))
    label += by_tensor(runs).map({True: f", {BY_TENSOR}", False: ""})
    colors = plt.get_cmap("tab20")
    fixed_colors = {named["change"]: "#c44e52", f"{named['change']}, {BY_TENSOR}": "#8172b3"}
    color = {text: fixed_colors.get(text, colors(i % 20)) for i, text in enumerate(dict.fromkeys(label))}
    return runs.assign(label=label, color=label.map(color))


def personalization_limit(
    ours: pd.DataFrame, paper: pd.DataFrame, baselines: pd.DataFrame, caption: str = ""
) -> Figure:
    """Table 2 as a figure: the paper's numbers, and the reproduced ones by limit and by the final personal share.

    ours: alpha, personal_share, acc_mean (a row per seed); paper: dataset, alpha, value; baselines: method, acc_mean.
    Values far below the others (α = 0, FedAvg) are labelled and left out of the scale of the last two panels.
    """
    fig, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    # Panel 1: the paper's table.
    for name, group in paper.groupby("dataset", sort=False):
        axes[0].plot(group["alpha"], group["value"], "-s", markersize=4, label=name)
    axes[0].set(title="paper: Table 2", xlabel=r"personalization limit $\alpha$", ylabel="mean client accuracy (%)")
    axes[0].legend(frameon=False, fontsize=7)
    # Panels 2 and 3: every seed of FedSelect, by limit and by mean final share; baselines as horizontal lines.
    alphas = np.array(sorted(ours["alpha"].unique()))
    by_limit = [ours.loc[ours["alpha"] == alpha] for alpha in alphas]
    accuracy = [runs["acc_mean"].to_numpy() for runs in by_limit]
    dots(axes[1], alphas, accuracy, COLORS["fedselect"], "FedSelect")
    shares = np.array([runs["personal_share"].mean() for runs in by_limit])
    dots(axes[2], shares, accuracy, COLORS["fedselect"], "FedSelect")
    rivals = baselines.groupby("method", sort=False)["acc_mean"].mean()
    means = pd.Series([values.mean() for values in accuracy], index=alphas)
    scores = pd.concat([means, rivals])
    low = far_below(scores)
    for ax in axes[1:]:
        for method, value in rivals.items():
            label = NAMES[method] + (f", {value:.1f}" if value < low else "")
            ax.axhline(value, color=COLORS[method], linestyle="--", linewidth=1, label=label)
    if (scores < low).any():  # limit the axis to the other values, and mark the low ones at its lower edge
        shown = np.concatenate([values[values >= low] for values in (*accuracy, baselines["acc_mean"].to_numpy())])
        margin = max(1.0, 0.1 * np.ptp(shown))
        axes[1].set_ylim(shown.min() - margin, shown.max() + margin)
        for alpha in alphas[means < low]:
            edge = {"xycoords": axes[1].get_xaxis_transform(), "fontsize": 8, "color": COLORS["fedselect"]}
            axes[1].annotate(f"▾ {means[alpha]:.1f}", (alpha, 0.02), **edge)
    axes[1].set(title="reproduced", xlabel=r"personalization limit $\alpha$")
    axes[2].set(title="reproduced, by the share reached", xlabel="personal share of the parameters at the end")
    axes[2].legend(frameon=False, fontsize=7)
    axes[2].sharey(axes[1])
    return captioned(fig, caption)


def personalization_rate(ours: pd.DataFrame, caption: str = "") -> Figure:
    """The effect of p at each limit: accuracy and final share. Columns: alpha, p, acc_mean, personal_share."""
    fig, axes = plt.subplots(1, 2, figsize=(7.4, 3.2), layout="constrained")
    for alpha, group in ours.groupby("alpha"):
        rates = np.array(sorted(group["p"].unique()))
        for ax, metric in zip(axes, ("acc_mean", "personal_share"), strict=True):
            values = [group.loc[group["p"] == p, metric].to_numpy() for p in rates]
            dots(ax, rates, values, shade(alpha), rf"$\alpha$ = {alpha:g}")
    for ax, label in zip(axes, ("mean client accuracy (%)", "personal share at the end"), strict=True):
        ax.set(xscale="log", xlabel="personalization rate p", ylabel=label)
        ax.set_xticks(sorted(ours["p"].unique()), [f"{p:g}" for p in sorted(ours["p"].unique())])
        ax.minorticks_off()
    axes[1].legend(frameon=False, fontsize=8)
    return captioned(fig, caption)


def mask_growth(runs: pd.DataFrame, caption: str = "") -> Figure:
    """Personal share of all parameters, and of the movable ones. Columns: alpha, seed, round, metric, value."""
    fig, axes = plt.subplots(1, 2, figsize=(7.4, 3.2), layout="constrained", sharey=True)
    for ax, metric in zip(axes, ("personal_share", "movable_share"), strict=True):
        for alpha, group in runs[runs["metric"] == metric].groupby("alpha"):
            band(ax, group, rf"$\alpha$ = {alpha:g}", shade(alpha))
        ax.set(xlabel="communication round", title=metric.replace("_", " "))
    axes[0].set_ylabel("share")
    axes[1].legend(frameon=False, fontsize=8)
    return captioned(fig, caption)


def training_sizes(ours: pd.DataFrame, caption: str = "") -> Figure:
    """Figure 3: accuracy by training images of a client. Columns: label, color, images, acc_mean (a row per seed).

    The right panel leaves out methods far below the others. FedSelect is drawn on top.
    """
    fig, axes = plt.subplots(1, 2, figsize=(10.4, 3.8), layout="constrained")
    ticks = sorted(ours["images"].unique())
    # FedSelect comes last, so that it is drawn on top.
    ours = ours.sort_values("label", key=lambda label: label.str.startswith(NAMES["fedselect"]), kind="stable")
    means = ours.groupby("label")["acc_mean"].mean()
    near = ours["label"].map(means) >= far_below(means)
    for ax, shown in zip(axes, (ours, ours[near]), strict=True):
        for (label, color), group in shown.groupby(["label", "color"], sort=False):
            sizes = np.array(sorted(group["images"].unique()))
            dots(ax, sizes, [group.loc[group["images"] == n, "acc_mean"].to_numpy() for n in sizes], color, label)
        ax.set(xscale="log", xlabel="training images of a client")
        ax.set_xticks(ticks, [str(n) for n in ticks])
        ax.minorticks_off()
    axes[0].set_ylabel("mean client accuracy (%)")
    axes[1].set_title("without methods far below" if not near.all() else "", fontsize=9)
    handles, labels = axes[0].get_legend_handles_labels()
    place = "outside center right"
    fig.legend(handles, labels, frameon=False, fontsize=8, loc=place)  # type: ignore[call-overload]  # not in the stubs
    return captioned(fig, caption)


def overlap_contrast(runs: pd.DataFrame, caption: str = "") -> Figure:
    """Mean overlap of client pairs, and its contrast, by limit, for each normalisation.

    The contrast is the mean over pairs with a common class minus the mean over pairs without.
    Columns: alpha, seed, and ``iou_*_mean``, ``iou_*_contrast`` for raw, minmax, chance.
    """
    fig, axes = plt.subplots(1, 2, figsize=(7.4, 3.2), layout="constrained")
    colors = {"iou_raw": "#4c72b0", "iou_minmax": "#dd8452", "iou_chance": "#55a868"}
    alphas = np.array(sorted(runs["alpha"].unique()))
    for ax, kind in zip(axes, ("mean", "contrast"), strict=True):
        for name, color in colors.items():
            # One array per limit, with a value per seed.
            values = [runs.loc[runs["alpha"] == a, f"{name}_{kind}"].to_numpy() for a in alphas]
            dots(ax, alphas, values, color, name)
        ax.set(xlabel=r"personalization limit $\alpha$")
    axes[0].set_ylabel("mean overlap of client pairs")
    axes[1].set_ylabel("common class minus none")
    axes[1].axhline(0, color="0.6", linewidth=0.8)
    axes[1].legend(frameon=False, fontsize=8)
    return captioned(fig, caption)


def layer_contrast(layers: pd.DataFrame, caption: str = "") -> Figure:
    """Contrast of the chance-corrected overlap, layer by layer. Columns: alpha, seed, tensor, contrast."""
    fig, ax = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    tensors = list(dict.fromkeys(layers["tensor"]))
    for alpha, group in layers.groupby("alpha"):
        values = [group.loc[group["tensor"] == tensor, "contrast"].to_numpy() for tensor in tensors]
        dots(ax, np.arange(len(tensors)), values, shade(alpha), rf"$\alpha$ = {alpha:g}")
    ax.axhline(0, color="0.6", linewidth=0.8)
    ax.set_xticks(
        range(len(tensors)), [t.removesuffix(".weight") for t in tensors], rotation=60 if len(tensors) > 8 else 0
    )
    ax.set(ylabel="contrast of iou_chance", xlabel="weight tensor")
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return captioned(fig, caption)


def partitions(panels: Mapping[str, tuple[np.ndarray, np.ndarray]], names: Sequence[str]) -> Figure:
    """Figure 1 of FedSelect: one row per client, one column per parameter, a panel for each step of a round.

    panels: title -> (values [N, d], personal [N, d] bool); a frame marks a personal entry.
    """
    num, d = next(iter(panels.values()))[0].shape
    size = (0.62 * d + 1.6, len(panels) * (0.34 * num + 0.62) + 0.4)
    fig, axes = plt.subplots(len(panels), 1, figsize=size, layout="constrained", squeeze=False, sharex=True)
    largest = max(np.abs(values).max() for values, _ in panels.values())
    for ax, (title, (values, personal)) in zip(axes[:, 0], panels.items(), strict=True):
        image = ax.imshow(values, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto")
        # Frames around the personal entries.
        for k, j in zip(*np.nonzero(personal), strict=True):
            ax.add_patch(Rectangle((j - 0.44, k - 0.42), 0.88, 0.84, fill=False, linewidth=2))
        ax.set_title(title, fontsize=9, loc="left")
        ax.set_ylabel("client", fontsize=8)
        ax.set_yticks(range(num))
    axes[-1, 0].set_xticks(range(d), names, fontsize=8)
    fig.colorbar(image, ax=axes[:, 0], label="value (framed: personal)")
    return fig

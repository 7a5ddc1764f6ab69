"""Figures of the FedSelect notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pfl_core.study.names import NAMES, plain
from pfl_core.study.plots import band, captioned, curves_note, dots, dots_note, far_below, legend_above, share_y
from pfl_core.study.style import COLORS, DASHES, DOUBLE, MARKERS, METHODS, Look, looks, styled

SHADES = {0.0: 0.3, 0.05: 0.42, 0.30: 0.55, 0.50: 0.7, 0.80: 0.85, 1.0: 1.0}  # limit -> position in a colour map
OVERLAPS = {  # normalisation -> display name, colour
    "iou_raw": ("plain overlap", COLORS["lg_fedavg"]),
    "iou_minmax": ("overlap scaled to [0, 1] (the code)", COLORS["ditto"]),
    "iou_chance": ("overlap corrected for chance", COLORS["fedpac"]),
}
OPTIONS = {  # of the released code -> plain words
    "selection_scope=per_tensor": "rank tensor by tensor",
    "eligible_params=weights_only": "select weights only",
    "limit_comparison=inclusive": "grow at the limit, too",
    "tie_rule=threshold": "select all ties",
    "tie_rule=index": "select ties by index",
    "mask_update_every=3": "grow every third round",
    "mask_update_start=3": "from round 4 on",
    "change_reference=last_mask_update": "change since the last growth",
    "batch_order=reshuffle_each_pass": "new batches for each pass",
    "skip_empty_pass=False": "run empty passes",
    "bn_mode=eval_after_round_0": "batch norm frozen after round 1",
    "aggregate_last_round=False": "last round not averaged",
    "reading=authors_code": "the released code",
    "count_rounding=floor": "count rounded down",
    "share_precision=single": "share in single precision",
    "epochs=15": "15 local epochs",
    "augment=crop_flip": "random crops and flips",
    "allow_duplicate_classes=True": "classes dealt from one deck",
    "code with clip_norm=3.5": "the released code; gradients clipped",
}
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
    fixed_colors = {named["change"]: COLORS["fedselect"], f"{named['change']}, {BY_TENSOR}": COLORS["pfedgate"]}
    others = [color for color in dict.fromkeys(COLORS.values()) if color not in fixed_colors.values()]
    color = {text: fixed_colors.get(text, others[i % len(others)]) for i, text in enumerate(dict.fromkeys(label))}
    return runs.assign(label=label, color=label.map(color))


def published_cells(cells: pd.DataFrame, table1: pd.DataFrame, table2: pd.DataFrame) -> pd.Series:
    """The paper's accuracy for each row: Table 1, and for FedSelect Table 2's at its limit. NaN where none is printed.

    Columns: dataset (its name here), label (see ``labelled``).
    """
    limit = table2["variant"].str.removeprefix("alpha=").astype(float)
    rows = [
        table1[table1["key"] != "fedselect"].assign(label=table1["key"].map(NAMES)),
        table2.assign(label="FedSelect, α = " + limit.map("{:g}".format)),
    ]
    printed = pd.concat(rows)
    values = dict(zip(zip(printed["dataset"], printed["label"], strict=True), printed["value"], strict=True))
    sets = cells["dataset"].map({"cifar10": "CIFAR-10", "cifar10_c": "CIFAR10-C"})
    return pd.Series([values.get(key, np.nan) for key in zip(sets, cells["label"], strict=True)], cells.index, float)


def option_text(label: str) -> str:
    """Plain words for the released code's options in a label such as "p=0.5; alpha=0.5"."""
    return "; ".join(
        OPTIONS.get(part, part.replace("alpha=", "α = ").replace("p=", "p = ")) for part in label.split("; ")
    )


@cache
def limit_look(alpha: float) -> Look:
    """The look of a personalization limit in figures of limits only."""
    place = sorted(SHADES).index(alpha) if alpha in SHADES else 0
    return Look(shade(alpha), MARKERS[place], DASHES[place])


@styled
def personalization_limit(
    reproduced: pd.DataFrame, paper: pd.DataFrame, baselines: pd.DataFrame, caption: str = ""
) -> Figure:
    """Table 2 as a figure: the paper's numbers, and the reproduced ones by limit and by the final personal share.

    reproduced: alpha, personal_share, seed, acc_mean (a row per seed); paper: dataset, alpha, value; baselines: method,
    acc_mean. The first two panels have one scale; the last one is closer, without values far below the others (α = 0,
    FedAvg).
    """
    fig, axes = plt.subplots(1, 3, figsize=(DOUBLE, 2.9), layout="constrained")
    # Panel 1: the paper's table.
    for place, (name, group) in enumerate(paper.groupby("dataset", sort=False)):
        dash, marker = DASHES[place], MARKERS[place]
        axes[0].plot(
            group["alpha"], group["value"], color="k", ls=dash, marker=marker, mfc="w", label=f"paper: {plain(name)}"
        )
    axes[0].set(title="paper: Table 2 (ResNet18)", ylabel="mean client accuracy (%)")
    # Panels 2 and 3: every seed of FedSelect, by limit and by mean final share; baselines as horizontal lines.
    alphas = np.array(sorted(reproduced["alpha"].unique()))
    by_limit = [reproduced.loc[reproduced["alpha"] == alpha] for alpha in alphas]
    accuracy = [runs["acc_mean"].to_numpy() for runs in by_limit]
    shares = np.array([runs["personal_share"].mean() for runs in by_limit])
    means = pd.Series([values.mean() for values in accuracy], index=alphas)
    rivals = baselines.groupby("method", sort=False)["acc_mean"].mean()
    low = far_below(pd.concat([means, rivals]))
    near = [i for i, mean in enumerate(means) if mean >= low]
    dots(axes[1], alphas, accuracy, METHODS["fedselect"], "FedSelect")
    dots(axes[2], shares[near], [accuracy[i] for i in near], METHODS["fedselect"], "FedSelect")
    for method, value in rivals.items():
        for ax in axes[1:] if value >= low else axes[1:2]:
            ax.axhline(value, color=COLORS[method], linestyle=METHODS[method].dash, label=NAMES[method])
    axes[1].set(title="reproduced")
    axes[2].set(title="reproduced, closer", xlabel="personal share at the end", ylabel="mean client accuracy (%)")
    for ax in axes[:2]:
        ax.set_xlabel(r"personalization limit $\alpha$")
        ax.set_xlim(-0.05, 1.05)
    share_y(axes[0], axes[1])
    legend_above(fig, axes)
    gone = ", ".join([*(f"α = {alphas[i]:g}" for i in range(len(alphas)) if i not in near),
                          *(NAMES[method] for method, value in rivals.items() if value < low)])  # fmt: skip
    return captioned(fig, caption, dots_note(reproduced) + f"; below the scale of the last panel: {gone}" * bool(gone))


@styled
def personalization_rate(reproduced: pd.DataFrame, caption: str = "") -> Figure:
    """The effect of p at each limit: accuracy and final share. Columns: alpha, p, seed, acc_mean, personal_share."""
    fig, axes = plt.subplots(1, 2, figsize=(DOUBLE, 2.4), layout="constrained")
    for alpha, group in reproduced.groupby("alpha"):
        rates = np.array(sorted(group["p"].unique()))
        for ax, metric in zip(axes, ("acc_mean", "personal_share"), strict=True):
            values = [group.loc[group["p"] == p, metric].to_numpy() for p in rates]
            dots(ax, rates, values, limit_look(alpha), rf"$\alpha$ = {alpha:g}")
    for ax, label in zip(axes, ("mean client accuracy (%)", "personal share at the end"), strict=True):
        ax.set(xscale="log", xlabel="personalization rate p", ylabel=label)
        ax.set_xticks(sorted(reproduced["p"].unique()), [f"{p:g}" for p in sorted(reproduced["p"].unique())])
        ax.minorticks_off()
    axes[1].legend()
    return captioned(fig, caption, dots_note(reproduced))


@styled
def mask_growth(runs: pd.DataFrame, caption: str = "") -> Figure:
    """Personal share of all parameters, and of the movable ones. Columns: alpha, seed, round, metric, value."""
    fig, axes = plt.subplots(1, 2, figsize=(DOUBLE, 2.5), layout="constrained", sharey=True)
    titles = {"personal_share": "of all parameters", "movable_share": "of the parameters that may become personal"}
    for ax, (metric, title) in zip(axes, titles.items(), strict=True):
        for alpha, group in runs[runs["metric"] == metric].groupby("alpha"):
            band(ax, group, rf"$\alpha$ = {alpha:g}", limit_look(alpha))
        ax.set(xlabel="communication round", title=title)
    axes[0].set_ylabel("personal share")
    legend_above(fig, axes)
    return captioned(fig, caption, curves_note(runs))


@styled
def training_sizes(reproduced: pd.DataFrame, caption: str = "") -> Figure:
    """Figure 3: accuracy by training images of a client. Columns: label, color, images, seed, acc_mean.

    The right panel leaves out methods far below the others. FedSelect is drawn on top.
    """
    fig, axes = plt.subplots(1, 2, figsize=(DOUBLE, 3.1), layout="constrained")
    ticks = sorted(reproduced["images"].unique())
    # FedSelect comes last, so that it is drawn on top.
    reproduced = reproduced.sort_values(
        "label", key=lambda label: label.str.startswith(NAMES["fedselect"]), kind="stable"
    )
    means, look = reproduced.groupby("label")["acc_mean"].mean(), looks(reproduced)
    near = reproduced["label"].map(means) >= far_below(means)
    for ax, shown in zip(axes, (reproduced, reproduced[near]), strict=True):
        for label, group in shown.groupby("label", sort=False):
            by_size = group.groupby("images")["acc_mean"].mean()
            ax.plot(by_size.index, by_size, color=look[label].color, marker=look[label].marker, ls=look[label].dash,
                    label=label, markerfacecolor="w" if reproduced["seed"].nunique() == 1 else None)  # fmt: skip
        ax.set(xscale="log", xlabel="training images of a client")
        ax.set_xticks(ticks, [str(n) for n in ticks])
        ax.minorticks_off()
    axes[0].set_ylabel("mean client accuracy (%)")
    axes[1].set_title("closer, without methods far below" if not near.all() else "closer")
    legend_above(fig, axes)
    return captioned(fig, caption, curves_note(reproduced, banded=False))


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

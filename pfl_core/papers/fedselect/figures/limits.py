"""Figures of FedSelect's personalization limit: accuracy by limit and by rate, growth of the masks."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pfl_core.papers.fedselect.labels import limit_look
from pfl_core.study.methods import NAMES
from pfl_core.study.names import plain
from pfl_core.study.plots import band, captioned, curves_note, dots, dots_note, far_below, legend_above, share_y
from pfl_core.study.style import COLORS, DASHES, DOUBLE, LOOKS, MARKERS, styled

MASK_SHARES = {  # metric -> title
    "personal_share": "of all parameters",
    "movable_share": "of the parameters that ever changed",
}
SAME_SHARE = 0.02  # shares of all and of the movable parameters that differ by less have one panel


@styled
def personalization_limit(
    reproduced: pd.DataFrame, paper: pd.DataFrame, baselines: pd.DataFrame, caption: str = ""
) -> Figure:
    """Table 2 as a figure: the paper's numbers, and those here by limit and by the final personal share.

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
    dots(axes[1], alphas, accuracy, LOOKS["fedselect"], "FedSelect")
    dots(axes[2], shares[near], [accuracy[i] for i in near], LOOKS["fedselect"], "FedSelect")
    for method, value in rivals.items():
        for ax in axes[1:] if value >= low else axes[1:2]:
            ax.axhline(value, color=COLORS[method], linestyle=LOOKS[method].dash, label=NAMES[method])
    axes[1].set(title="here")
    axes[2].set(title="here, closer", xlabel="personal share at the end", ylabel="mean client accuracy (%)")
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
    """Personal share of all parameters by round. Columns: alpha, seed, round, metric, value.

    A second panel has the share of the parameters that ever changed, if the two differ by more than SAME_SHARE.
    Otherwise the caption says how much they differ.
    """
    keys = ["alpha", "seed", "round"]
    shares = runs.pivot_table(index=keys, columns="metric", values="value")
    apart = (shares["movable_share"] - shares["personal_share"]).abs().max()
    panels = dict(list(MASK_SHARES.items())[: 1 + bool(apart > SAME_SHARE)])
    size = (DOUBLE if len(panels) > 1 else 4.6, 2.5)
    fig, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", sharey=True, squeeze=False)
    for ax, (metric, title) in zip(axes[0], panels.items(), strict=True):
        for alpha, group in runs[runs["metric"] == metric].groupby("alpha"):
            band(ax, group, rf"$\alpha$ = {alpha:g}", limit_look(alpha))
        ax.set(xlabel="communication round", title=title if len(panels) > 1 else "")
    axes[0, 0].set_ylabel("personal share")
    legend_above(fig, axes.flat)
    note = f"of the parameters that ever changed: shares that differ by at most {apart:.2g}"
    return captioned(fig, caption, curves_note(runs) + f"; {note}" * (len(panels) == 1))

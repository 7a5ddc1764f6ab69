"""Figures of the pFedGate notebooks: accuracy over budgets and options, beside the paper's."""

from __future__ import annotations

from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pfl_core.study.plots import COLORS, NAMES, captioned, dots
from pfl_core.study.published import parse_variant

SHADES = {1.0: 0.95, 0.9: 0.9, 0.7: 0.8, 0.5: 0.7, 0.3: 0.55, 0.2: 0.45, 0.1: 0.35}  # darker: more is kept
MIXED = "mixed"
CONTROL_COLORS = {  # of each mask: with learned scales, with scales of 1
    "learned": ("#6a3d9a", "#b39bc8"),
    "small_blocks": ("#e08214", "#f0c48c"),
    "random": ("#1b7837", "#8fc29b"),
}


@cache
def budget_color(s: float) -> tuple:
    """The colour of a budget."""
    return plt.get_cmap("Purples")(SHADES.get(round(s, 2), 0.6))


def budget(s: float | tuple[float, ...]) -> str:
    """0.5 -> '0.5'; several: 'mixed'."""
    return MIXED if isinstance(s, tuple | list) else f"{s:g}"


def gates(runs: pd.DataFrame) -> pd.DataFrame:
    """``runs`` with ``s`` (text), a label and a colour for each method, and for each budget of pFedGate.

    Columns: method, keep_ratio.
    """
    own = runs["method"] == "pfedgate"
    s = runs["keep_ratio"].map(budget).where(own, "")
    label = runs["method"].map(NAMES).where(~own, "pFedGate, s = " + s)
    color = [
        (budget_color(k) if not isinstance(k, tuple | list) else "#c44e52") if mine else COLORS[m]
        for m, k, mine in zip(runs["method"], runs["keep_ratio"], own, strict=True)
    ]
    return runs.assign(s=s, label=label, color=color)


def controls(runs: pd.DataFrame) -> pd.DataFrame:
    """The paper's gate, and the controls by what is learned of mask and scales; other runs are left out.

    Columns: mask, gate_override, block_layout. Scales of 1 are lighter.
    """
    masks = {"learned": "learned mask", "small_blocks": "fixed mask", "random": "random masks"}
    learned, equal = runs["gate_override"].isna(), runs["block_layout"] == "balanced"
    plain = (runs["block_layout"] == "first_min_ratio") & (runs["mask"] == "learned") & learned
    scales = runs["gate_override"].map(lambda value: "learned scales" if pd.isna(value) else f"scales of {value:g}")
    label = (runs["mask"].map(masks) + ", " + scales).mask(plain, "the paper's gate")
    color = [CONTROL_COLORS[mask][0 if own else 1] for mask, own in zip(runs["mask"], learned, strict=True)]
    return runs.assign(label=label, color=color)[plain | equal]


def published(cells: pd.DataFrame, x: str) -> pd.DataFrame:
    """A table of the paper for ``over_options``: pFedGate's mean accuracies, a label for each data set and budget."""
    fields = pd.DataFrame([parse_variant(text) for text in cells["variant"]], index=cells.index)
    cells = cells.assign(s=fields["s"], x=fields[x])
    cells = cells[(cells["method"] == "pFedGate") & (cells["metric"] == "acc_mean") & cells["x"].notna()]
    sets = list(dict.fromkeys(cells["dataset"]))
    color = [
        plt.get_cmap(("Purples", "Oranges")[sets.index(name) % 2])(SHADES[s])
        for name, s in zip(cells["dataset"], cells["s"], strict=True)
    ]
    return cells.assign(
        panel="paper: " + cells["table"].str.replace("table", "Table "),
        label=cells["dataset"] + ", s = " + cells["s"].map(budget),
        color=color,
        x=cells["x"].map("{:g}".format),
    )[["panel", "label", "color", "x", "value"]]


def published_budgets(cells: pd.DataFrame) -> pd.DataFrame:
    """The paper's mean accuracies over s, of Table 1 and, for s = 0.1, of Tables 10 and 12: label, s, value."""
    fields = pd.DataFrame([parse_variant(text) for text in cells["variant"]], index=cells.index)
    main = (cells["table"] == "table1") | (fields["model"] == "local") | (fields["alpha"] == 0.4)
    main &= (cells["method"] == "pFedGate") & (cells["metric"] == "acc_mean") & (cells["dataset"] != "Average")
    found = cells.assign(label=cells["dataset"], s=fields["s"])[
        main & cells["table"].isin(["table1", "table10", "table12"])
    ]
    return found.drop_duplicates(["label", "s"]).assign(s=lambda f: f["s"].map(budget))[["label", "s", "value"]]


def options(ours: pd.DataFrame, x: str, panel: str = "ours", value: str = "acc_pooled") -> pd.DataFrame:
    """Our runs for ``over_options``. Columns: label, color, ``x``, ``value`` (a row per run)."""
    return ours.assign(panel=panel, x=ours[x].map("{:g}".format), value=ours[value])[
        ["panel", "label", "color", "x", "value"]
    ]


def over_budgets(ours: pd.DataFrame, published: pd.DataFrame, rivals: pd.DataFrame, caption: str = "") -> Figure:
    """Figure 5: accuracy over s, and what is really kept and sent.

    ours: s, keep_ratio, acc_pooled, acc_bottom_decile, achieved_keep_ratio, upload_ratio (a row per run); published:
    label, s, value; rivals: label, color, acc_pooled.
    """
    fig, axes = plt.subplots(1, 3, figsize=(12.5, 3.7), layout="constrained")
    texts = [s for s in dict.fromkeys(ours["s"]) if s != MIXED] + [MIXED] * (MIXED in set(ours["s"]))
    place = {s: i for i, s in enumerate(texts)}
    for label, group in published.groupby("label", sort=False):
        at = [(place[s], v) for s, v in zip(group["s"], group["value"], strict=True) if s in place]
        axes[0].plot(*zip(*sorted(at), strict=True), "--s", markersize=4, linewidth=1, label=label)
    axes[0].set(title="paper: Tables 1, 10, 12", ylabel="accuracy (%)")
    for metric, color, label in (
        ("acc_pooled", COLORS["pfedgate"], "pFedGate, mean"),
        ("acc_bottom_decile", "#b39bc8", "pFedGate, worst tenth"),
    ):
        _dots(axes[1], ours, place, metric, color, label)
    for (label, color), group in rivals.groupby(["label", "color"], sort=False):
        axes[1].axhline(group["acc_pooled"].mean(), color=color, linestyle="--", linewidth=1, label=f"{label}, mean")
    axes[1].set(title="ours")
    _dots(axes[2], ours, place, "achieved_keep_ratio", COLORS["pfedgate"], "kept on test data, s'")
    _dots(axes[2], ours, place, "upload_ratio", "#dd7a2a", "sent, q")
    number = [(place[s], float(s)) for s in texts if s != MIXED]
    axes[2].plot(*zip(*number, strict=True), color="0.6", linewidth=0.8, linestyle=":", label="the budget s")
    axes[2].set(title="ours: share of the parameters")
    for ax in axes:
        ax.set_xlabel("budget s (the share that may be kept)")
        ax.set_xticks(list(place.values()), list(place))
        ax.legend(frameon=False, fontsize=7)
    return captioned(fig, caption)


def _dots(ax: plt.Axes, table: pd.DataFrame, place: dict, metric: str, color: str | tuple, label: str) -> None:
    found = [(x, table.loc[table["s"] == s, metric].to_numpy()) for s, x in place.items() if (table["s"] == s).any()]
    x, values = zip(*found, strict=True)
    line = [i for i, v in enumerate(x) if list(place)[v] != MIXED]
    dots(ax, np.array([x[i] for i in line]), [values[i] for i in line], color, label)
    for i in set(range(len(x))) - set(line):  # mixed budgets lie on no line
        ax.plot(np.full(len(values[i]), x[i]), values[i], "D", color=color, markersize=5)


def over_options(table: pd.DataFrame, xlabel: str, caption: str = "", *, falling: bool = False) -> Figure:
    """Accuracy over one option, the paper's on the left, ours on the right; ``falling``: its large values first.

    Columns: panel, label, color, x (a number as text), value; a row for each number of the paper and each run of ours.
    """
    panels = list(dict.fromkeys(table["panel"]))
    fig, axes = plt.subplots(1, len(panels), figsize=(4.3 * len(panels), 3.5), layout="constrained", squeeze=False)
    texts = sorted(set(table["x"]), key=float, reverse=falling)
    for ax, panel in zip(axes[0], panels, strict=True):
        for (label, color), group in table[table["panel"] == panel].groupby(["label", "color"], sort=False):
            here = [i for i, text in enumerate(texts) if (group["x"] == text).any()]
            values = [group.loc[group["x"] == texts[i], "value"].to_numpy() for i in here]
            dots(ax, np.array(here), values, color, label)
        ax.set(title=panel, xlabel=xlabel)
        ax.set_xticks(range(len(texts)), texts)
        ax.set_xlim(-0.4, len(texts) - 0.6)
        ax.legend(frameon=False, fontsize=7)
    axes[0][0].set_ylabel("accuracy (%)")
    return captioned(fig, caption)


def client_differences(difference: pd.Series, title: str, caption: str = "") -> Figure:
    """Figure 3: one method's accuracy minus another's, client by client, sorted. difference [N], points."""
    values = np.sort(difference.to_numpy())[::-1]
    fig, ax = plt.subplots(figsize=(5.6, 3.2), layout="constrained")
    colors = np.where(values >= 0, COLORS["pfedgate"], "#b0b0b0")
    ax.bar(range(len(values)), values, color=colors, width=0.9)
    ax.axhline(0, color="0.3", linewidth=0.8)
    better, worse = int((values > 0).sum()), int((values < 0).sum())
    ax.set(xlabel="client (sorted)", ylabel="points", title=f"{title}: better for {better}, worse for {worse}")
    return captioned(fig, caption)

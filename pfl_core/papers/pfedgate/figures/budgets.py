"""Figures of the pFedGate notebooks: accuracy over budgets and options, compared with the paper."""

from __future__ import annotations

from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pfl_core.study.methods import NAMES
from pfl_core.study.plots import captioned, dots, dots_note, legend_above, share_y, wrapped
from pfl_core.study.published import parse_variant
from pfl_core.study.statistics import interval
from pfl_core.study.style import (
    COLORS,
    DASHES,
    DOUBLE,
    GREEN,
    INDIGO,
    LOOKS,
    MARKERS,
    ORANGE,
    SINGLE,
    Look,
    looks,
    styled,
)

SHADES = {1.0: 1.0, 0.9: 0.95, 0.7: 0.88, 0.5: 0.78, 0.3: 0.65, 0.2: 0.55, 0.1: 0.48}  # darker: more is kept
MIXED = "mixed"
CONTROL_COLORS = {  # mask -> colour with learned scales, colour with scales of 1
    "learned": (INDIGO, "#9a90c8"),
    "small_blocks": (ORANGE, "#f4cf80"),
    "random": (GREEN, "#80ceb9"),
}


@cache
def budget_color(s: float) -> tuple:
    """The colour of a budget."""
    return plt.get_cmap("Purples")(SHADES.get(round(s, 2), 0.6))


def budget(s: float | tuple[float, ...]) -> str:
    """Text of a budget: '0.5', or 'mixed' for several budgets."""
    return MIXED if isinstance(s, tuple | list) else f"{s:g}"


def gates(runs: pd.DataFrame) -> pd.DataFrame:
    """Adds ``s`` (text), ``label`` and ``color`` for each method, and for each budget of pFedGate.

    Columns: method, keep_ratio.
    """
    gated = runs["method"] == "pfedgate"
    s = runs["keep_ratio"].map(budget).where(gated, "")
    label = runs["method"].map(NAMES).where(~gated, "pFedGate, s = " + s)
    color = [
        (budget_color(k) if not isinstance(k, tuple | list) else COLORS["perfedavg"]) if is_gated else COLORS[m]
        for m, k, is_gated in zip(runs["method"], runs["keep_ratio"], gated, strict=True)
    ]
    return runs.assign(s=s, label=label, color=color)


def controls(runs: pd.DataFrame) -> pd.DataFrame:
    """Selects the paper's gate and the controls, with a label and a colour for each (lighter for scales of 1).

    Columns: mask, gate_override, block_layout.
    """
    masks = {"learned": "learned mask", "small_blocks": "fixed mask", "random": "random masks"}
    learned, balanced = runs["gate_override"].isna(), runs["block_layout"] == "balanced"
    paper = (runs["block_layout"] == "first_min_ratio") & (runs["mask"] == "learned") & learned
    scales = runs["gate_override"].map(lambda value: "learned scales" if pd.isna(value) else f"scales of {value:g}")
    label = (runs["mask"].map(masks) + ", " + scales).mask(paper, "the paper's gate")
    color = [
        CONTROL_COLORS[mask][0 if has_scales else 1] for mask, has_scales in zip(runs["mask"], learned, strict=True)
    ]
    return runs.assign(label=label, color=color)[paper | balanced]


def published(cells: pd.DataFrame, x: str) -> pd.DataFrame:
    """pFedGate's mean accuracies in a table of the paper, for ``over_options``; a label for each data set and budget.

    ``x``: the field of the table's variants on the x axis.
    """
    fields = pd.DataFrame([parse_variant(text) for text in cells["variant"]], index=cells.index)
    cells = cells.assign(s=fields["s"], x=fields[x])
    cells = cells[(cells["method"] == "pFedGate") & (cells["metric"] == "acc_mean") & cells["x"].notna()]
    # a colour for each budget; the data sets differ in marker and dash pattern
    color = [budget_color(s) for s in cells["s"]]
    return cells.assign(
        panel="paper: " + cells["table"].str.replace("table", "Table "),
        label=cells["dataset"] + ", s = " + cells["s"].map(budget),
        color=color,
        x=cells["x"].map("{:g}".format),
    )[["panel", "label", "color", "x", "value"]]


def published_budgets(cells: pd.DataFrame) -> pd.DataFrame:
    """The paper's mean accuracies over s: Table 1, and for s = 0.1 Tables 10 and 12. Columns: label, s, value."""
    fields = pd.DataFrame([parse_variant(text) for text in cells["variant"]], index=cells.index)
    # rows at α = 0.4; of Table 10 only the gated ("local") model
    main = (cells["table"] == "table1") | (fields["model"] == "local") | (fields["alpha"] == 0.4)
    main &= (cells["method"] == "pFedGate") & (cells["metric"] == "acc_mean") & (cells["dataset"] != "Average")
    frame = cells.assign(label=cells["dataset"], s=fields["s"])[
        main & cells["table"].isin(["table1", "table10", "table12"])
    ]
    return frame.drop_duplicates(["label", "s"]).assign(s=lambda f: f["s"].map(budget))[["label", "s", "value"]]


def options(runs: pd.DataFrame, x: str, panel: str = "here", value: str = "acc_pooled") -> pd.DataFrame:
    """Runs for ``over_options``. Columns: label, color, ``x``, ``value`` (a row per run)."""
    return runs.assign(panel=panel, x=runs[x].map("{:g}".format), value=runs[value])[
        ["panel", "label", "color", "x", "value"]
    ]


@styled
def over_budgets(reproduced: pd.DataFrame, published: pd.DataFrame, rivals: pd.DataFrame, caption: str = "") -> Figure:
    """Figure 5: accuracy over s, and the shares of the parameters that are kept and sent.

    Columns of ``reproduced``: s, keep_ratio, seed, acc_pooled, acc_bottom_decile, achieved_keep_ratio, upload_ratio (a
    row per run); of ``published``: label, s, value; of ``rivals``: label, color, acc_pooled. The first two panels have
    one scale.
    """
    fig, axes = plt.subplots(1, 3, figsize=(DOUBLE, 3.2), layout="constrained")
    texts = [s for s in dict.fromkeys(reproduced["s"]) if s != MIXED] + [MIXED] * (MIXED in set(reproduced["s"]))
    place = {s: i for i, s in enumerate(texts)}  # position on the x axis
    for number, (label, group) in enumerate(published.groupby("label", sort=False)):
        points = [(place[s], v) for s, v in zip(group["s"], group["value"], strict=True) if s in place]
        style = {"color": "k", "linestyle": DASHES[number], "marker": MARKERS[number], "markerfacecolor": "w"}
        axes[0].plot(*zip(*sorted(points), strict=True), linewidth=0.8, label=f"paper: {label}", **style)
    axes[0].set(title="paper: Tables 1, 10, 12", ylabel="accuracy (%)")
    gate = LOOKS["pfedgate"]
    light = Look(budget_color(0.2), "v", DASHES[1])
    _dots(axes[1], reproduced, place, "acc_pooled", gate, "pFedGate, mean")
    _dots(axes[1], reproduced, place, "acc_bottom_decile", light, "pFedGate, worst tenth")
    look = looks(rivals)
    for label, group in rivals.groupby("label", sort=False):
        color, _, dash = look[label]
        axes[1].axhline(group["acc_pooled"].mean(), color=color, linestyle=dash, linewidth=1, label=f"{label}, mean")
    axes[1].set(title="here")
    share_y(axes[0], axes[1])
    _dots(axes[2], reproduced, place, "achieved_keep_ratio", Look("0.4", "o", "-"), "kept on test data, s'")
    _dots(axes[2], reproduced, place, "upload_ratio", Look(ORANGE, "s", DASHES[1]), "sent, q")
    budgets = [(place[s], float(s)) for s in texts if s != MIXED]
    axes[2].plot(*zip(*budgets, strict=True), color="0.5", linewidth=0.8, linestyle=":", label="the budget s")
    axes[2].set(title="here", ylabel="share of the parameters")
    for ax in axes:
        ax.set_xlabel("budget s")
        ax.set_xticks(list(place.values()), list(place), rotation=90 if len(place) > 6 else 0)
    legend_above(fig, axes)
    return captioned(fig, caption, dots_note(reproduced))


def _dots(ax: plt.Axes, table: pd.DataFrame, place: dict[str, int], metric: str, look: Look, label: str) -> None:
    """Draws a metric over the budgets, mixed budgets outside the line."""
    columns = [(x, table.loc[table["s"] == s, metric].to_numpy()) for s, x in place.items() if (table["s"] == s).any()]
    x, values = zip(*columns, strict=True)
    line = [i for i, v in enumerate(x) if list(place)[v] != MIXED]
    dots(ax, np.array([x[i] for i in line]), [values[i] for i in line], look, label)
    for i in set(range(len(x))) - set(line):  # mixed budgets
        dots(ax, np.array([x[i]]), [values[i]], look, "")


@styled
def over_options(table: pd.DataFrame, xlabel: str, caption: str = "", *, falling: bool = False) -> Figure:
    """Accuracy over one option, a panel for the paper and for each data set, with one scale.

    ``falling``: large values first. Columns: panel, label, color, x (a number as text), value; a row for each printed
    number and each run. Marks are hollow where there is one value.
    """
    panels, look = list(dict.fromkeys(table["panel"])), looks(table)
    size = (DOUBLE, 3.0)
    fig, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False, sharey=True)
    texts = sorted(set(table["x"]), key=float, reverse=falling)
    for ax, panel in zip(axes[0], panels, strict=True):
        for label, group in table[table["panel"] == panel].groupby("label", sort=False):
            here = [i for i, text in enumerate(texts) if (group["x"] == text).any()]
            values = [group.loc[group["x"] == texts[i], "value"].to_numpy() for i in here]
            dots(ax, np.array(here), values, look[label], str(label))
        ax.set(title=wrapped(panel, len(panels)), xlabel=xlabel)
        ax.set_xticks(range(len(texts)), texts)
        ax.set_xlim(-0.4, len(texts) - 0.6)
    axes[0][0].set_ylabel("accuracy (%)")
    legend_above(fig, axes[0])
    several = table.groupby(["panel", "label", "x"]).size().max() > 1
    return captioned(fig, caption, "hollow: one value; small dots: seeds; filled: their mean" * bool(several))


@styled
def client_differences(differences: pd.DataFrame, caption: str = "") -> Figure:
    """Figure 3: pFedGate at s = 0.5 minus another method for each client, sorted; a panel for each other method.

    Columns: label (the other method), seed, client, points. Titles have the mean over clients, with its interval.
    """
    labels = list(dict.fromkeys(differences["label"]))
    size = (SINGLE if len(labels) == 1 else DOUBLE, 2.5)
    fig, axes = plt.subplots(1, len(labels), figsize=size, layout="constrained", squeeze=False, sharey=True)
    for ax, label in zip(axes[0], labels, strict=True):
        here = differences[differences["label"] == label]
        values = here.groupby("client")["points"].mean().sort_values(ascending=False).to_numpy()
        ax.bar(range(len(values)), values, color=np.where(values >= 0, COLORS["pfedgate"], "#b0b0b0"), width=0.9)
        ax.axhline(0, color="0.3", linewidth=0.8)
        better, worse = int((values > 0).sum()), int((values < 0).sum())
        mean = interval(here.groupby("seed")["points"].mean())
        ax.set(xlabel="client (sorted)", xticks=[])
        ax.set_title(f"minus {label}: {mean}\nbetter for {better}, worse for {worse}")
    axes[0][0].set_ylabel("difference (points)")
    return captioned(
        fig,
        caption,
        "pFedGate at s = 0.5 minus another method; bars: mean over the seeds; titles: mean and its 95 % interval",
    )

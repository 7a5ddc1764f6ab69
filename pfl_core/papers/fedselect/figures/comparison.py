"""Figures of many methods or rules: a few of them in colour, and the readings of the released code."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pfl_core.papers.fedselect.labels import option_text
from pfl_core.study.frames import REFERENCES
from pfl_core.study.methods import NAMES
from pfl_core.study.plots import (
    band,
    captioned,
    curves_note,
    far_below,
    late_scale,
    legend_above,
    lines,
    mean_dots,
    wrapped,
)
from pfl_core.study.style import DOUBLE, looks, styled

NO_SCORE = "no score: not averaged"


def highlighted(runs: pd.DataFrame, score: str = "acc_mean") -> list[str]:
    """The methods that a figure shows in colour: FedSelect's first label, those in REFERENCES, and the best other one.

    Columns: method, label and ``score``.
    """
    first = runs.loc[runs["method"] == "fedselect", "label"].iloc[:1]
    others = [NAMES[method] for method in REFERENCES if (runs["method"] == method).any()]
    rest = runs[~runs["method"].isin(["fedselect", *REFERENCES])]
    return [*first, *others, *best(rest, score)]


def best(runs: pd.DataFrame, score: str = "acc_mean") -> list[str]:
    """The label with the highest mean ``score``; empty if there are no runs."""
    means = runs.groupby("label", sort=False)[score].mean()
    return [str(means.idxmax())] if len(means) else []


def with_grey(caption: str, runs: pd.DataFrame, shown: Sequence[str]) -> str:
    """The caption with a line about the labels that are not ``shown`` in colour, if there are any."""
    rest = [label for label in dict.fromkeys(runs["label"]) if label not in shown]
    return "\n".join(line for line in (caption, f"grey, means: {', '.join(rest)}" * bool(rest)) if line)


@styled
def rounds(runs: pd.DataFrame, shown: Sequence[str], caption: str = "") -> Figure:
    """Accuracy by round, a column of panels for each experiment. The labels ``shown`` have colours and bands.

    The first of them is in front; the other labels are grey. The lower panels have the scale of the second half of the
    rounds, without the labels far below the others of their panel. Columns: panel, label, color, seed, round, value.
    """
    panels, look, chosen = list(dict.fromkeys(runs["panel"])), looks(runs), runs["label"].isin(shown)
    fig, axes = plt.subplots(
        2, len(panels), figsize=(DOUBLE, 4.5), layout="constrained", squeeze=False, sharey="row", sharex="col"
    )
    for column, panel in zip(axes.T, panels, strict=True):
        here = runs["panel"] == panel
        for ax in column:
            lines(ax, runs[here & chosen], look, front=shown[0])
            for _, group in runs[here & ~chosen].groupby("label", sort=False):
                grey_line(ax, group.groupby("round")["value"].mean())
        column[0].set_title(wrapped(panel, len(panels)) if len(panels) > 1 else "")
        column[1].set(title="closer", xlabel="communication round")
    axes[1, 0].set_ylim(late_scale(runs[chosen]))
    for ax in axes[:, 0]:
        ax.set_ylabel("mean client accuracy (%)")
    legend_above(fig, axes.flat)
    return captioned(fig, with_grey(caption, runs, shown), curves_note(runs))


def grey_line(ax: Axes, means: pd.Series) -> None:
    """A thin grey line under all others, without an entry in the legend."""
    ax.plot(means.index, means, color="0.8", linewidth=0.8, zorder=1, label="_grey")


@styled
def training_sizes(reproduced: pd.DataFrame, shown: Sequence[str], caption: str = "") -> Figure:
    """Figure 3: accuracy by training images of a client. Columns: label, color, images, seed, acc_mean.

    The labels ``shown`` have colours and bands over the seeds, the first one in front; the others are grey. The right
    panel leaves out methods far below the others.
    """
    fig, axes = plt.subplots(1, 2, figsize=(DOUBLE, 3.1), layout="constrained")
    ticks = sorted(reproduced["images"].unique())
    means, look = reproduced.groupby("label")["acc_mean"].mean(), looks(reproduced)
    near = reproduced["label"].map(means) >= far_below(means)
    for ax, part in zip(axes, (reproduced, reproduced[near]), strict=True):
        for label, group in part.groupby("label", sort=False):
            by_size = group.rename(columns={"images": "round", "acc_mean": "value"})
            if label in shown:
                band(ax, by_size, label, look[label], above=label == shown[0])
            else:
                grey_line(ax, by_size.groupby("round")["value"].mean())
        ax.set(xscale="log", xlabel="training images of a client")
        ax.set_xticks(ticks, [str(n) for n in ticks])
        ax.minorticks_off()
    axes[0].set_ylabel("mean client accuracy (%)")
    axes[1].set_title("closer, without methods far below" if not near.all() else "closer")
    legend_above(fig, axes)
    return captioned(fig, with_grey(caption, reproduced, shown), curves_note(reproduced))


def rules(cells: pd.DataFrame, caption: str = "") -> Figure:
    """``mean_dots`` of the rules of Table 3, with one x axis for all panels."""
    fig = mean_dots(cells, caption)
    axes = [ax for ax in fig.axes if ax.axison]
    low, high = zip(*(ax.get_xlim() for ax in axes), strict=True)
    for ax in axes:
        ax.set_xlim(min(low), max(high))
    return fig


@styled
def readings(cells: pd.DataFrame, caption: str = "") -> Figure:
    """``mean_dots`` of FedSelect's readings and of other methods, which have another colour, as have other clients.

    Within a colour, labels without a score in a panel come last, and their line in that panel says so.
    Columns: panel, label, color, value, std.
    """
    missing = cells.groupby("label")["value"].apply(lambda values: values.isna().any())
    ordered = cells.assign(
        dataset="",
        group=cells["color"].map(list(dict.fromkeys(cells["color"])).index),
        missing=cells["label"].map(missing),
        label=cells["label"].map(option_text),
    ).sort_values(["group", "missing"], kind="stable")
    note = "orange: FedSelect; grey: other methods; dark red: both on other clients, as the code deals the classes"
    fig = mean_dots(ordered, f"{caption}\n{note}" if caption else note)
    labels = list(dict.fromkeys(ordered["label"]))
    for ax, (_, part) in zip(fig.axes, ordered.groupby("panel", sort=False), strict=True):
        for label in part.loc[part["value"].isna(), "label"]:
            place = (0.02, -labels.index(label))
            ax.annotate(NO_SCORE, place, xycoords=ax.get_yaxis_transform(), va="center", fontsize=6, color="0.4")
    return fig

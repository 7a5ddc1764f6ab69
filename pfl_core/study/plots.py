"""Figures shared by the papers' notebooks: class counts by client, accuracy curves, dot plots, overlap matrices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_lowercase
from textwrap import fill
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from pfl_core.study.methods import NAMES
from pfl_core.study.names import in_figure, plain
from pfl_core.study.style import COLORS, DOUBLE, SINGLE, Look, looks, styled

__all__ = ["COLORS", "NAMES"]

CHARACTERS_PER_INCH = 18  # of a legend
CAPTION_PER_INCH = 20  # characters
TITLES_PER_FIGURE = 100  # characters of the titles of a row of panels, in a double-column figure
FAR = 4.0  # far outliers lie this many times (maximum - first quartile) below the first quartile
FAR_FROM_BEST = 1.0  # the same in figures where the best methods count
FAR_AHEAD = 2.0  # the same for leads: this many times (third quartile - minimum) above the third quartile
MANY = 5  # a panel with more lines than this has no bands: they would cover each other
MARKS = 7  # markers on a curve
WIDE: Any = {"linewidth": 3.5, "zorder": 1.8}  # of a line under others
ONE_SEED = "hollow: one seed"
PAPER = Look("k", "D")  # the paper's values, hollow


@styled
def who_got_what(counts: np.ndarray, title: str = "") -> Figure:
    """Training samples of each client (x) and class (y), as the area of a dot. counts [N, C]."""
    counts = np.asarray(counts)
    clients, classes = np.nonzero(counts)
    amount = counts[clients, classes]
    width = SINGLE if len(counts) <= 12 else DOUBLE
    fig, ax = plt.subplots(figsize=(width, 2.4), layout="constrained")
    ax.scatter(clients, classes, s=80 * amount / counts.max(), color=COLORS["lg_fedavg"], linewidth=0)
    ax.set(xlabel="client", ylabel="class", title=fill(plain(title), 16 * int(width)))
    ax.set(xticks=range(len(counts)), yticks=range(counts.shape[1]))
    ax.margins(0.08)
    return captioned(fig, f"area: number of samples; largest dot: {counts.max()}")


@styled
def curve_panels(
    runs: pd.DataFrame,
    caption: str = "",
    ylabel: str = "mean client accuracy (%)",
    *,
    front: str = "",
    closer: bool = False,
) -> Figure:
    """Accuracy by round, a panel for each experiment, with one scale: lines are means over seeds.

    Bands span the seeds, unless there is one seed or a panel has more than MANY lines.

    Columns: panel, label, color, seed, round, value. Labels that start with ``front`` are drawn thicker and on top.
    ``closer``: repeat each panel below, scaled to the second half of the rounds, without far outliers.
    """
    panels = list(dict.fromkeys(runs["panel"]))
    width = DOUBLE if len(panels) > 1 or runs["label"].nunique() > 4 else SINGLE
    size = (width, 2.3 + 1.8 * closer + 0.12 * runs["label"].nunique() / 3)
    fig, axes = plt.subplots(
        1 + closer, len(panels), figsize=size, layout="constrained", squeeze=False, sharey="row", sharex="col"
    )
    look, banded = looks(runs), runs["label"].nunique() <= MANY
    for column, panel in zip(axes.T, panels, strict=True):
        panel_runs = runs[runs["panel"] == panel]
        for ax in column:
            lines(ax, panel_runs, look, banded, front)
        column[0].set_title(wrapped(panel, len(panels)) if len(panels) > 1 else "")
        column[-1].set_xlabel("communication round")
    if closer:
        for ax in axes[1]:
            ax.set_title("closer")
        axes[1][0].set_ylim(late_scale(runs))
    for ax in axes[:, 0]:
        ax.set_ylabel(ylabel)
    legend_above(fig, axes.flat)
    return captioned(fig, caption, curves_note(runs, banded))


def lines(
    ax: Axes, runs: pd.DataFrame, look: Mapping[str, Look], banded: bool = True, front: str = "", wide: str = ""
) -> None:
    """A curve for each label, see ``band``. Columns: label, seed, round, value.

    Labels that start with ``front`` are drawn above the others, those that start with ``wide`` wide and below them.
    """
    for place, (label, group) in enumerate(runs.groupby("label", sort=False)):
        above = bool(front) and str(label).startswith(front)
        below = bool(wide) and str(label).startswith(wide)
        band(ax, group, str(label), look[str(label)], banded=banded, above=above, below=below, shift=place)
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def curves_note(runs: pd.DataFrame, banded: bool = True) -> str:
    """What the lines and bands of a figure are. Column: seed."""
    seeds = runs["seed"].nunique()
    if seeds == 1:
        return "lines: one seed"
    return f"lines: mean over {seeds} seeds; " + ("bands: lowest to highest seed" if banded else "no bands: many lines")


def dots_note(table: pd.DataFrame) -> str:
    """What the dots of ``dots`` are. Column: seed."""
    seeds = table["seed"].nunique()
    return ONE_SEED if seeds == 1 else f"small dots: seeds; large marks: mean over {seeds} seeds"


def wrapped(title: str, columns: float) -> str:
    """A panel's title with display names, in lines that fit one of ``columns`` panels of a double-column figure.

    Lines do not end within a name, an equation, or "(for axial)".
    """
    width = int(TITLES_PER_FIGURE / columns)
    lines = in_figure(title).replace(" = ", "\u00a0=\u00a0").replace("(for ", "(for\u00a0").splitlines()
    return "\n".join(fill(line, width, break_on_hyphens=False, break_long_words=False) for line in lines)


def share_y(first: Axes, *others: Axes) -> None:
    """One vertical scale for panels that are drawn already."""
    for ax in others:
        ax.sharey(first)
    first.autoscale_view(scalex=False)


def far_below(values: pd.Series, far: float = FAR) -> float:
    """The limit below which values are far outliers; they would compress the scale of the others."""
    first = values.quantile(0.25)
    return first - far * (values.max() - first)


def late_scale(runs: pd.DataFrame) -> tuple[float, float]:
    """Limits of y for the second half of the rounds, without the labels far below the others of their panel.

    Columns: panel, label, round, value.
    """
    late = runs[runs["round"] > runs.groupby("panel")["round"].transform("max") / 2]
    means = late.groupby(["panel", "label"])["value"].transform("mean")
    low = means.groupby(late["panel"]).transform(lambda values: far_below(values.drop_duplicates()))
    near = late.loc[means >= low, "value"]
    margin = max(1.0, 0.05 * (near.max() - near.min()))
    return near.min() - margin, near.max() + margin


def legend_of(axes: Iterable[Axes]) -> tuple[list, list]:
    """Handles and labels of several axes, each label once."""
    handle_of: dict[str, object] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handle_of.setdefault(label, handle)
    return list(handle_of.values()), list(handle_of)


def legend_above(fig: Figure, axes: Iterable[Axes] = (), handles: Sequence[Any] = ()) -> None:
    """One legend above all panels, in as many columns as fit. It has the axes' labels, then ``handles``."""
    drawn, labels = legend_of(axes)
    drawn, labels = [*drawn, *handles], [*labels, *(entry.get_label() for entry in handles)]
    labels = [in_figure(text) for text in labels]
    if not labels:
        return
    columns = max(1, int(fig.get_figwidth() * CHARACTERS_PER_INCH / (max(map(len, labels)) + 9)))
    place: Any = "outside upper center"  # valid with a constrained layout, but missing in Matplotlib's types
    fig.legend(drawn, labels, loc=place, ncols=min(columns, len(labels)))


@styled
def mean_dots(
    table: pd.DataFrame,
    caption: str = "",
    xlabel: str = "accuracy (%)",
    *,
    dashed: str | None = None,
    far: float = FAR,
) -> Figure:
    """A table as a figure: a row of panels for each data set, a line for each label, means and deviations over seeds.

    Columns: dataset (row of panels), panel (title), label, color, value (mean), std (NaN for one seed); optional: paper
    (the printed value, NaN if there is none), and same (the mean of the label ``dashed`` over this label's seeds, NaN
    if it has all of them), a short line. The panels of a row have one scale. The dashed line is the mean of the label
    ``dashed``, default the first one. Far outliers are written as numbers at the edge (``far``: see ``far_below``).
    """
    sets, dashed = dict(list(table.groupby("dataset", sort=False))), dashed or table["label"].iloc[0]
    columns = table.groupby("dataset")["panel"].nunique().max()
    heights = [0.15 * part["label"].nunique() + 0.35 for part in sets.values()]
    longest = table["label"].str.len().max()
    size = (SINGLE if columns == 1 and longest <= 20 else DOUBLE, sum(heights) + 0.25 * len(sets) + 0.35)
    fig, axes = plt.subplots(
        len(sets), columns, figsize=size, layout="constrained", squeeze=False, sharey="row", sharex="row",
        height_ratios=heights,
    )  # fmt: skip
    look, has_line, cut = looks(table), set[str](), False
    # a row of panels for each data set; unused panels are hidden
    for row, (name, part) in zip(axes, sets.items(), strict=True):
        labels = list(dict.fromkeys(part["label"]))
        panels = list(part.groupby("panel", sort=False))
        low = far_below(part["value"], far)
        # the panel's name on a line of its own, if one of the row's titles would not fit on one line
        fits = all("\n" not in wrapped(f"{name}: {panel}", columns + 0.5) for panel, _ in panels)
        split = " " if fits else "\n"
        for ax in row[len(panels) :]:
            ax.set_axis_off()
        for ax, (panel, cells) in zip(row, panels, strict=False):
            _dots_of(ax, cells, labels, look, low=low)
            for value in cells.loc[(cells["label"] == dashed) & (cells["value"] >= low), "value"]:
                ax.axvline(value, color="0.6", linewidth=0.8, linestyle="--")
                has_line.add(str(name))
            _label_rows(ax, labels)
            ax.set_title(wrapped(f"{name}:{split}{panel}" if len(sets) > 1 else panel, columns + 0.5))
            ax.set_xlabel(xlabel)
        if (part["value"] < low).any():  # a number at the edge lies beyond the scale
            cut = True
            left, right = row[0].get_xlim()
            row[0].set_xlim(left=max(low - 0.02 * (right - low), left))
    without = [in_figure(str(name)) for name in sets if name not in has_line]
    missing = f" (not on {', '.join(without)})" if without else ""
    notes = [f"dashed: {dashed}{missing}"] if has_line else []
    if "same" in table and table["same"].notna().any():
        notes.append(f"|: {dashed} on the seeds of this line")
    if table["std"].notna().any():
        notes.insert(0, "filled marks, bars: mean and standard deviation over seeds" + ", cut at the edge" * cut)
    if table.loc[table["value"].notna(), "std"].isna().any():
        notes.insert(0, ONE_SEED)
    if "paper" in table and table["paper"].notna().any():
        notes.insert(0, "black ◇: the paper")
    return captioned(fig, caption, "; ".join(notes))


@styled
def lead_dots(leads: pd.DataFrame, leader: str, caption: str = "", *, over: bool = False) -> Figure:
    """The leads of the label ``leader`` over the others: a panel for each data set, a line for each label, one scale.

    ``over``: those of the others over it; each panel then has its own labels and scale. Columns: dataset, label, color,
    lead (points), low, high (of the 95 % interval; NaN for one seed), seeds; optional: paper (the printed lead, NaN if
    there is none). Far outliers are written as numbers at the edge. Raises ValueError without leads.
    """
    if leads.empty:
        raise ValueError(f"no run of another method has a seed in common with {leader}, so there is no lead to draw")
    cells = leads.rename(columns={"lead": "value"}).assign(std=(leads["high"] - leads["low"]) / 2)  # half the interval
    labels, sets = list(dict.fromkeys(cells["label"])), dict(list(cells.groupby("dataset", sort=False)))
    size = (DOUBLE if len(sets) > 1 else SINGLE, (0.15 if len(labels) > 20 else 0.2) * len(labels) + 1.1)
    fig, axes = plt.subplots(
        1, len(sets), figsize=size, layout="constrained", squeeze=False, sharex=not over, sharey=not over
    )
    look, high, low = looks(cells), -far_below(-cells["value"], FAR_AHEAD), -np.inf
    for ax, (name, part) in zip(axes[0], sets.items(), strict=True):
        ax.axvline(0, color="0.4", linewidth=0.8)
        if over:
            labels, high, low = list(dict.fromkeys(part["label"])), np.inf, far_below(part["value"], FAR_FROM_BEST)
        _dots_of(ax, part, labels, look, low=low, high=high)
        _label_rows(ax, labels)
        ax.set_title(wrapped(str(name).replace(": ", ":\n"), len(sets)) if len(sets) > 1 else "")
        ax.set_xlabel("lead (points)")
    notes = [
        f"marks: the lead of each method over {leader}" if over else f"marks: the lead of {leader}, over each method"
    ]
    if (several := cells.loc[cells["std"].notna(), "seeds"]).size:
        seeds = " or ".join(str(n) for n in sorted(several.unique()))
        notes.append(f"bars: 95\N{NO-BREAK SPACE}% interval, paired over {seeds} seeds")
    if cells["std"].isna().any():
        notes.append("hollow: no interval")
    if "paper" in cells and cells["paper"].notna().any():
        notes.append("black ◇: the paper")
    return captioned(fig, caption, "; ".join(notes))


def _label_rows(ax: Axes, labels: Sequence[str]) -> None:
    """Rows with the ``labels``, the first one above, and a pale line for each."""
    ax.set_yticks([-place for place in range(len(labels))], [plain(label) for label in labels])
    ax.set_ylim(-len(labels) + 0.4, 0.6)
    ax.grid(axis="y", color="0.93", linewidth=0.6)
    ax.set_axisbelow(True)


def _dots_of(
    ax: Axes,
    table: pd.DataFrame,
    labels: list[str],
    look: Mapping[str, Look],
    *,
    low: float = -np.inf,
    high: float = np.inf,
) -> None:
    """One panel of ``mean_dots`` or ``lead_dots``. Values below ``low`` or above ``high`` are numbers at the edge."""
    edge = ax.get_yaxis_transform()
    for cell in table.itertuples():
        y = -labels.index(cell.label)
        printed, same = getattr(cell, "paper", np.nan), getattr(cell, "same", np.nan)
        if low <= same <= high:
            ax.plot(same, y, "|", color="0.35", markersize=8)
        for value, std, of in ((printed, np.nan, PAPER), (cell.value, cell.std, look[cell.label])):
            if low <= value <= high:
                face = "w" if np.isnan(std) else of.color
                spread = None if np.isnan(std) else std
                ax.errorbar(value, y, xerr=spread, fmt=of.marker, color=of.color, mfc=face, capsize=2, elinewidth=1)
            elif not np.isnan(value):  # a missing value leaves its line empty
                text, shift = f"{'◇ ' * (of is PAPER)}{value:.1f}", 0.2 * (of is PAPER)
                text, place, side = (f" ◂ {text}", shift, "left") if value < low else (f"{text} ▸ ", 1 - shift, "right")
                ax.annotate(text, xy=(place, y), xycoords=edge, va="center", ha=side, fontsize=7, color=of.color)


def band(
    ax: Axes,
    group: pd.DataFrame,
    label: str,
    look: Look,
    *,
    banded: bool = True,
    above: bool = False,
    below: bool = False,
    shift: int = 0,
) -> None:
    """A line for the mean over seeds, and with several seeds a band from minimum to maximum.

    Columns: seed, round, value. ``above``: thicker, and on top of others. ``below``: wide, and under others, so that
    both of two equal lines are visible. ``shift`` moves the markers, so that those of several lines do not cover each
    other.
    """
    by_round = group.groupby("round")["value"].agg(["mean", "min", "max"])
    style: dict[str, Any] = {"linewidth": 2.0, "zorder": 3} if above else WIDE if below else {}
    every = max(1, len(by_round) // MARKS)
    face = "w" if group["seed"].nunique() == 1 else look.color
    ax.plot(
        by_round.index, by_round["mean"], label=label, color=look.color, linestyle=look.dash, marker=look.marker,
        markerfacecolor=face, markevery=(shift % every, every), markersize=3.5, **style,
    )  # fmt: skip
    if banded and group["seed"].nunique() > 1:
        ax.fill_between(by_round.index, by_round["min"], by_round["max"], color=look.color, alpha=0.15, linewidth=0)


def dots(
    ax: Axes,
    x: np.ndarray,
    values: Sequence[np.ndarray],
    look: Look,
    label: str,
    *,
    joined: bool = True,
    below: bool = False,
) -> None:
    """A mark for each mean, and a small dot for every seed; one seed is a hollow mark. ``joined``: with a line.

    ``below``: the line is wide and under others.
    """
    several = max(map(len, values)) > 1
    for position, column in zip(x, values, strict=True):
        if several:
            ax.plot(np.full(len(column), position), column, ".", color=look.color, markersize=3.5, alpha=0.6)
    face, dash = look.color if several else "w", look.dash if joined else ""
    means = [np.mean(column) for column in values]
    style = WIDE if below else {}
    ax.plot(x, means, color=look.color, marker=look.marker, linestyle=dash, markerfacecolor=face, label=label, **style)


def captioned(fig: Figure, caption: str, note: str = "") -> Figure:
    """Finish a figure: panel letters, names as figures write them, and a caption below it as part of the image.

    ``caption``: preset, data, seeds; ``note``: what the marks are, omitted if there is no caption.
    """
    panels = [ax for ax in fig.axes if ax.axison and ax.get_label() != "<colorbar>"]
    for letter, ax in zip(ascii_lowercase, panels if len(panels) > 1 else (), strict=False):
        ax.set_title(letter, loc="left", x=-0.02, ha="right", fontweight="bold")
    for text in fig.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(in_figure(text.get_text()))
    if caption:
        width = int(CAPTION_PER_INCH * fig.get_figwidth())
        lines = [in_figure(line) for line in (*caption.splitlines(), note) if line]
        # lists of seeds in brackets are not broken
        lines = [
            re.sub(r"\(\d+(, \d+)+\)", lambda seeds: seeds[0].replace(" ", "\N{NO-BREAK SPACE}"), line)
            for line in lines
        ]
        shown = [fill(line, width) for line in lines]
        fig.supxlabel("\n".join(shown), fontsize=6.5, color="0.35")
    return fig


@styled
def overlap_matrices(
    matrices: Mapping[str, np.ndarray], classes: Mapping[str, Sequence[str]], label: str, caption: str = ""
) -> Figure:
    """Heat maps [N, N] of the overlap of clients, one panel each, labelled with the clients' classes.

    FedSelect, Figure 4, and Figure 1 of its workshop version.
    """
    import seaborn as sns  # imported here because it takes a second

    size = (DOUBLE, DOUBLE / max(2.6, len(matrices) + 0.3) + 0.6)
    fig, axes = plt.subplots(1, len(matrices), figsize=size, layout="constrained", squeeze=False)
    low = min(0.0, *(float(np.nanmin(m)) for m in matrices.values() if not np.isnan(m).all()), 0.0)
    same = len({tuple(names) for names in classes.values()}) == 1
    for ax, (title, matrix) in zip(axes[0], matrices.items(), strict=True):
        names = classes[title]
        sides = {"xticklabels": names, "yticklabels": names if ax is axes[0][0] or not same else False}
        sns.heatmap(matrix, ax=ax, vmin=low, vmax=1, cmap="viridis", square=True, cbar=False, rasterized=True, **sides)
        ax.tick_params(axis="x", length=0, labelsize=6, rotation=90)
        ax.tick_params(axis="y", length=0, labelsize=6, rotation=0)
        ax.set_title(title)
    fig.colorbar(axes[0][-1].collections[0], ax=axes[0], label=fill(label, 24))
    axes[0][0].set_ylabel("client (its classes)")
    return captioned(fig, caption)

"""Two pictures of a paper: its claims, effect by effect, and the cells of its tables beside the runs here."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pfl_core.study.claims import NOT_FOUND, OPEN, REPRODUCED, REVERSED, SHOWN, Found, Judged, span
from pfl_core.study.compare import STAND_IN
from pfl_core.study.labels import short_data
from pfl_core.study.names import plain
from pfl_core.study.published import method_of, panel_of
from pfl_core.study.style import BLACK, BLUE, DOUBLE, GREEN, GREY, ORANGE, SKY, VERMILLION, styled

COLORS = {REPRODUCED: GREEN, NOT_FOUND: ORANGE, REVERSED: VERMILLION, OPEN: GREY, SHOWN: SKY}
UNSEARCHED = "rates not searched"
MANY = 8  # effects of a claim
ROW, HEAD, FOOT = 0.135, 0.36, 0.16  # inches: an effect, the heading of a claim, the numbers below its axis
LINE = 0.12  # inches: each further line of a claim's text
LABELS = 0.42  # share of the width that the names of the effects take
NUMBERS = 0.23  # share for the numbers on the right
SMALL = 5.5  # font size
PAPER_SETTING = "paper"
NOTE = (
    "Lines: 95 % intervals over seeds, cut at the frame. Accuracies in points. Grey diamond: misses the bound.\n"
    "Smaller, larger: than in the paper. Too wide: the interval holds the bound and reaches the paper's value.\n"
    "After Holm: reversed, but no more than chance gives in so many effects. A claim takes its worst word.\n"
    "Left out: claims without runs, with one seed, without searched rates, or from the algorithm."
)
HEADLINE_NOTE = (
    "Lines: 95 % intervals over seeds, cut at the frame. Short black line: what the claim must exceed, or stay below.\n"
    "A few main effects of each paper, in all settings with an interval; all others are on the results pages.\n"
    "Differences of accuracies in percentage points. Several diamonds: the paper's data sets that this one stands for."
)
FEW_SEEDS = {1: ", one seed", 2: ", two seeds"}
CELLS_NOTE = (
    "Lines join the printed number and the one here. [real]: fewer rounds or a smaller network, see the results page.\n"
    "Do not compare rows of different presets. Rows can also have different seeds; claims use those that both have."
)


def of_nearest(claim: Judged) -> list[Found]:
    """The effects that give the claim its word: those of the nearest option."""
    nearest = claim.nearest
    return [found for found in claim.effects if found.option == nearest]


def data_of(effects: Iterable[Found]) -> str:
    """The data of the effects' runs, in short: "CIFAR-10 and Fashion-MNIST"."""
    names = (name for found in effects for name in short_data(found.setting, found.data).split(" and "))
    return " and ".join(dict.fromkeys(names))


def drawn(claim: Judged) -> list[Found]:
    """The effects of a claim that the picture shows: those with an interval, or counted, of the nearest option.

    Of a claim with many, only those whose runs can decide.
    """
    having = (f for f in of_nearest(claim) if not math.isnan(f.low) or f.exact and f.seeds)
    searched = [found for found in having if found.why != UNSEARCHED]
    return searched if len(searched) <= MANY else [found for found in searched if not found.blocked]


@styled
def claims_figure(judged: Sequence[Judged], title: str) -> Figure:
    """The effects of all claims that do not follow from the algorithm, a strip per claim with its own scale.

    Diamond: the paper's value. Dot with interval: here, filled at the paper's setting, in the colour of the outcome.
    A short black line is the bound.
    """
    shown = [(claim, effects) for claim in judged if not claim.claim.follows and (effects := drawn(claim))]
    texts = [textwrap.wrap(claim.claim.text, 105) for claim, _ in shown]
    strips = [_by_quantity(effects) for _, effects in shown]
    heights = [
        HEAD + LINE * (len(text) - 1) + sum(ROW * len(part) + FOOT for part in parts)
        for text, parts in zip(texts, strips, strict=True)
    ]
    height = sum(heights) + 0.75 + 0.1 * len(NOTE.splitlines())
    fig = plt.figure(figsize=(DOUBLE, height))
    y = height - 0.75
    fig.text(1 - NUMBERS + 0.01, (y + 0.02) / height, "here (paper)", fontsize=SMALL)
    for (claim, effects), text, parts in zip(shown, texts, strips, strict=True):
        head = f"{claim.claim.number}  {claim.word}"
        fig.text(0.01, (y - 0.13) / height, head, fontsize=7, fontweight="bold", color=COLORS.get(claim.word, BLACK))
        for line in text:
            fig.text(0.165, (y - 0.13) / height, line, fontsize=SMALL + 0.5)
            y -= LINE
        fig.text(0.01, (y - 0.26 + LINE) / height, _left_out(claim, effects), fontsize=SMALL, color=GREY)
        y -= HEAD - LINE
        for part in parts:
            if len({found.setting for found in effects}) > 1:
                named = [replace(f, effect=f"{f.setting}: {f.effect}" if f.setting else f.effect) for f in part]
            else:
                named = part
            _strip(_axes(fig, y, len(part)), named, [claim.size(found) for found in part])
            y -= ROW * len(part) + FOOT
    return _with_head(fig, title, _legend(), SMALL + 1, NOTE)


@styled
def headline_figure(papers: Mapping[str, Sequence[Found]]) -> Figure:
    """The main effects of each paper, under its title; drawn as in ``claims_figure``."""
    strips = {title: _by_quantity(effects) for title, effects in papers.items()}
    rows = sum(map(len, papers.values()))
    height = (
        0.75
        + 0.1 * len(HEADLINE_NOTE.splitlines())
        + 0.22 * len(papers)
        + ROW * rows
        + FOOT * sum(map(len, strips.values()))
    )
    fig = plt.figure(figsize=(DOUBLE, height))
    y = height - 0.7
    fig.text(1 - NUMBERS + 0.01, (y + 0.02) / height, "here (paper)", fontsize=SMALL)
    for title, parts in strips.items():
        fig.text(0.01, (y - 0.13) / height, title, fontsize=7, fontweight="bold")
        y -= 0.22
        for part in parts:
            _strip(_axes(fig, y, len(part)), part, [found.size for found in part])
            y -= ROW * len(part) + FOOT
    return _with_head(fig, "Four papers' effects, printed and here", _legend(), SMALL + 1, HEADLINE_NOTE)


def _legend() -> list[Line2D]:
    words = (REPRODUCED, NOT_FOUND, REVERSED, OPEN)
    dots = [_dot("here, the paper's setting", BLACK, True), _dot("here, another setting", BLACK, False)]
    return dots + [Line2D([], [], color=COLORS[word], lw=2.5, label=word) for word in words]


def _axes(fig: Figure, top: float, rows: int) -> Axes:
    """Axes for so many rows, with their upper edge at ``top`` inches."""
    height, tall = fig.get_figheight(), ROW * rows
    ax = fig.add_axes((LABELS, (top - tall) / height, 1 - LABELS - NUMBERS, tall / height))
    ax.set(ylim=(rows - 0.5, -0.5), yticks=[])
    ax.tick_params(axis="x", labelsize=SMALL - 0.5, pad=1, length=1.5)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x", lw=0.3, color="#dddddd")
    ax.set_axisbelow(True)
    return ax


def _row(ax: Axes, row: int, name: str, here: float, text: str, color: str, filled: bool) -> None:
    """A dot for the number here, the name on the left and the numbers on the right."""
    ax.plot(here, row, "o", color=color, mfc=color if filled else "white", ms=3.6, zorder=3)
    sides = ((0, -4, "right", _short(name, 66), BLACK), (1, 4, "left", text, color))
    for x, shift, align, words, ink in sides:
        ax.annotate(
            words, (x, row), (shift, 0), ("axes fraction", "data"), "offset points",
            ha=align, va="center", fontsize=SMALL, color=ink,
        )  # fmt: skip


def _diamonds(ax: Axes, row: int, printed: Sequence[float], color: str = BLACK) -> None:
    ax.plot(printed, [row] * len(printed), "D", mfc="none", mec=color, mew=0.7, ms=3.4, zorder=4)


def _dot(label: str, color: str, filled: bool) -> Line2D:
    return Line2D([], [], marker="o", color=color, mfc=color if filled else "white", ms=4, label=label)


def _with_head(fig: Figure, title: str, legend: Sequence[Line2D], fontsize: float, note: str) -> Figure:
    """The figure with title, legend and note."""
    height = fig.get_figheight()
    paper = Line2D([], [], marker="D", ls="", mfc="none", mec=BLACK, ms=4, label="the paper")
    fig.text(0.01, 1 - 0.2 / height, title, fontsize=9, fontweight="bold")
    fig.text(0.01, 0.03 / height, note, fontsize=SMALL, color=GREY)
    at = (0.0, 1 - 0.25 / height)
    fig.legend(handles=[paper, *legend], ncols=4, loc="upper left", bbox_to_anchor=at, fontsize=fontsize)
    return fig


def _by_quantity(effects: Sequence[Found]) -> list[list[Found]]:
    """The effects by what they count, which their names begin with ("rounds to 95 %: ..."): each has its own axis."""
    parts: dict[str, list[Found]] = {}
    for found in effects:
        parts.setdefault(found.effect.rpartition(": ")[0], []).append(found)
    return list(parts.values())


def _strip(ax: Axes, effects: Sequence[Found], sizes: Sequence[str]) -> None:
    """Effects with one scale. ``sizes``: of each, "smaller" or "larger" than printed, or empty."""
    for row, (found, its_size) in enumerate(zip(effects, sizes, strict=True)):
        color = COLORS.get(found.outcome, BLACK)
        if not found.exact:
            ax.plot([found.low, found.high], [row, row], color=color, lw=1.6, solid_capstyle="butt")
        ax.plot([found.bound, found.bound], [row - 0.42, row + 0.42], color=BLACK, lw=0.8, zorder=2)
        text = f"{round(found.mean, 9) + 0.0:.3g}" + (f" ({span(found.printed, '.3g')})" if found.printed else "")
        text = f"{text}  {its_size or found.why.partition(':')[0]}".replace("-", "−")
        _row(ax, row, plain(found.effect), found.mean, text, color, found.preset == PAPER_SETTING)
        missed = [number for number in found.printed if found.side * (number - found.bound) <= 0]
        _diamonds(ax, row, [number for number in found.printed if number not in missed])
        _diamonds(ax, row, missed, GREY)
    ax.set_xlim(*_limits(effects))
    ax.locator_params(axis="x", nbins=6)


def _limits(effects: Sequence[Found]) -> tuple[float, float]:
    """Limits that show all means, bounds and printed values, and intervals up to twice that range."""
    points = [x for f in effects for x in (f.mean, f.bound, *f.printed)]
    ends = [x for f in effects for x in (f.low, f.high) if not math.isnan(x)]
    low, high = min(points), max(points)
    reach = max(high - low, 1e-3)
    low, high = max(min([low, *ends]), low - reach), min(max([high, *ends]), high + reach)
    pad = 0.05 * max(high - low, 0.02)  # with less, the axis labels need a power of ten beside them
    return low - pad, high + pad


def _left_out(claim: Judged, effects: Sequence[Found]) -> str:
    """Effects of the claim that are not drawn, and why; and on what the others were run."""
    rest = Counter(f.why or f.outcome for f in of_nearest(claim) if f not in effects)
    presets = dict.fromkeys(found.preset for found in effects)
    where = " and ".join(f"{preset}, {data_of(f for f in effects if f.preset == preset)}" for preset in presets)
    text = "; ".join([_short(where, 90), *(f"not drawn: {count} {reason}" for reason, count in rest.items())])
    option = f"option {claim.nearest}; " if claim.nearest is not None else ""
    return option + text


def _short(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1].rstrip() + "…"


@styled
def cells_figure(cells: pd.DataFrame, title: str) -> Figure:
    """The printed cells that have runs: diamond = the paper, dot = here (filled at the paper's setting).

    ``cells``: see ``compare.as_frame``. A panel for each table and metric.
    """
    have = cells[cells["here"].notna() & cells["paper"].notna()]
    panels = list(have.groupby(["table", "metric"], sort=False))
    heights = [0.34 + ROW * len(part) + FOOT for _, part in panels]
    height = sum(heights) + 0.7 + 0.1 * CELLS_NOTE.count("\n")
    fig = plt.figure(figsize=(DOUBLE, height))
    y = height - 0.6
    for (_, part), tall in zip(panels, heights, strict=True):
        ax = _axes(fig, y - 0.3, len(part))
        for row, cell in enumerate(part.itertuples()):
            color = {True: GREEN, False: VERMILLION}.get(cell.reproduced, BLUE)
            ax.plot([cell.paper, cell.here], [row, row], color=color, lw=1)
            here = f", here {plain(cell.data.removesuffix(STAND_IN).strip())}" if STAND_IN in cell.data else ""
            stopped = "rounds" in cell.differs.split(", ")
            size = f" [{cell.preset}]" if cell.preset != "paper" else " [stopped early]" if stopped else ""
            few = FEW_SEEDS.get(len(cell.seeds), "")
            label, text = f"{cell.dataset}{here}: {method_of(cell)}{size}", f"{cell.here:.4g} ({cell.paper:.4g}){few}"
            _row(ax, row, label, cell.here, text, color, filled=cell.reproduced in (True, False))
            _diamonds(ax, row, [cell.paper])
        fig.text(0.01, (y - 0.18) / height, panel_of(part.iloc[0]), fontsize=7, fontweight="bold")
        y -= tall
    legend = [
        _dot("here, within 2 points or the paper's spread", GREEN, True),
        _dot("here, not within it", VERMILLION, True),
        _dot("here, another setting or not judged", BLUE, False),
    ]
    return _with_head(fig, title, legend, SMALL + 0.5, CELLS_NOTE)

"""Figures shared by the papers' notebooks: class counts by client, accuracy curves, dot plots, overlap matrices."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from textwrap import fill
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import PIL.Image
from IPython.display import Image, display
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from pfl_core.data.registry import data_dir
from pfl_core.files import atomic_write
from pfl_core.runs.provenance import ROOT
from pfl_core.study.alt_text import alt_text
from pfl_core.study.labels import GENERATED
from pfl_core.study.methods import COLORS, NAMES, Look, label_looks, method_of
from pfl_core.study.names import in_figure, plain
from pfl_core.study.statistics import LEAST_SEEDS, Interval, interval
from pfl_core.study.style import DOUBLE, SETTINGS, SINGLE, styled

__all__ = ["COLORS", "NAMES", "method_of"]  # for notebooks

CHARACTERS_PER_INCH = 18  # of a legend
CAPTION_PER_INCH = 20  # characters
TITLES_PER_FIGURE = 100  # characters of the titles of a row of panels, in a double-column figure
MANY = 5  # a panel with more lines than this has no bands: they would cover each other
MARKS = 7  # markers on a curve
FAR_MARK = 4.0  # a mark this many quartile ranges away from the others is a number at the edge
DPI = 200  # of image files; notebooks show half of it
SHOWN = 110  # display size in a notebook, pixels per inch
UNDATED = {"pdf": ("Creator", "Producer", "CreationDate"), "svg": ("Date",)}  # what would differ each time
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


def curves_note(runs: pd.DataFrame, banded: bool | str = True) -> str:
    """What the lines and bands of a figure are. ``banded``: whether there are bands, or where (" in panel a").

    Columns: seed, and those of row, col, label and round that tell points apart.
    """
    point = [name for name in ("row", "col", "label", "round") if name in runs]
    seeds = runs.groupby(point)["seed"].nunique() if point else pd.Series(runs["seed"].nunique())
    if seeds.max() == 1:
        return "lines: one seed"
    hollow = f"; hollow: under {LEAST_SEEDS} seeds" if seeds.min() < LEAST_SEEDS else ""
    bands = f"bands{banded if isinstance(banded, str) else ''}: lowest to highest seed" if banded else "no bands"
    return f"lines: mean over {_numbers(seeds)} seeds{hollow}; {bands}"


def wrapped(title: str, columns: float) -> str:
    """A panel's title with display names, in lines that fit one of ``columns`` panels of a double-column figure.

    Lines do not end within a name, an equation, or "(for axial)".
    """
    width = int(TITLES_PER_FIGURE / columns)
    lines = in_figure(title).replace(" = ", "\u00a0=\u00a0").replace("(for ", "(for\u00a0").splitlines()
    return "\n".join(fill(line, width, break_on_hyphens=False, break_long_words=False) for line in lines)


def legend_above(fig: Figure, axes: Iterable[Axes] | None = None, handles: Sequence[Any] = ()) -> None:
    """One legend above all panels, in as many columns as fit. It has the axes' labels, each once, then ``handles``.

    ``axes``: default all, or none if there are ``handles``.
    """
    entries: dict[str, Any] = {}
    for ax in axes if axes is not None else () if handles else fig.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(in_figure(label), handle)
    entries |= {in_figure(handle.get_label()): handle for handle in handles}
    if entries:
        columns = max(1, int(fig.get_figwidth() * CHARACTERS_PER_INCH / (max(map(len, entries)) + 9)))
        place: Any = "outside upper center"  # valid with a constrained layout, but missing in Matplotlib's types
        fig.legend(entries.values(), entries, loc=place, ncols=min(columns, len(entries)))


def lines(ax: Axes, runs: pd.DataFrame, look: Mapping[str, Look], banded: bool = True) -> None:
    """A line for each label: the mean over seeds, and with several seeds a band from minimum to maximum.

    Columns: label, seed, round, value. Markers of different lines stand at different rounds. Under LEAST_SEEDS seeds
    they are hollow, each by itself.
    """
    for shift, (name, group) in enumerate(runs.groupby("label", sort=False)):
        of, by_round = look[str(name)], group.groupby("round")["value"].agg(["mean", "min", "max"])
        few = group.groupby("round")["seed"].nunique() < LEAST_SEEDS
        every = max(1, len(by_round) // MARKS)
        mark = {"color": of.color, "marker": of.marker, "markersize": 3.5}
        ax.plot(
            by_round["mean"], label=str(name), linestyle=of.dash, markevery=(shift % every, every), **mark,
            markerfacecolor="w" if few.all() else of.color,
        )  # fmt: skip
        hollow = by_round["mean"].iloc[shift % every :: every][few]
        if len(hollow) and not few.all():
            ax.plot(hollow, linestyle="none", markerfacecolor="w", **mark)
        if banded and group["seed"].nunique() > 1:
            ax.fill_between(by_round.index, by_round["min"], by_round["max"], color=of.color, alpha=0.15, linewidth=0)
    if pd.api.types.is_integer_dtype(runs["round"]):
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))


@styled
def captioned(fig: Figure, caption: str, note: str = "") -> Figure:
    """Finish a figure: panel letters, names as figures write them, and a caption below it as part of the image.

    ``caption``: preset, data, seeds; ``note``: what the marks are, omitted if there is no caption.
    """
    if not isinstance(fig.get_layout_engine(), ConstrainedLayoutEngine):  # seaborn's leaves no room for the caption
        fig.set_layout_engine("constrained")
    panels = [ax for ax in fig.axes if ax.axison and ax.get_label() != "<colorbar>"]
    for letter, ax in zip(ascii_lowercase, panels if len(panels) > 1 else (), strict=False):
        ax.set_title(letter, loc="left", x=-0.02, ha="right", fontweight="bold")
    for text in fig.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(in_figure(text.get_text()))
    if caption:
        width = int(CAPTION_PER_INCH * fig.get_figwidth())
        shown = [fill(in_figure(line), width) for line in (*caption.splitlines(), note) if line]
        fig.supxlabel("\n".join(shown), fontsize=6.5, color="0.35")
    return fig


# ---- the plots of the notebooks: a frame in, columns by name, a figure out ------------------------------------------


@styled
def intervals(
    data: pd.DataFrame,
    x: str,
    y: str = "label",
    *,
    col: str | None = None,
    row: str | None = None,
    low: str | None = None,
    high: str | None = None,
    paper: str | None = None,
    line: float | str | None = None,
    colors: Mapping[str, Any] | None = None,
    xlabel: str = "mean client accuracy (%)",
    cut: bool | float = True,
) -> Figure:
    """A mark for each value of ``y``: the mean of ``x`` over the rows (seeds), its 95 % interval, a small dot a row.

    Give the columns ``low`` and ``high`` if the interval is known; the data then have a row for each mark. ``paper``: a
    column with the printed value (black ◇). ``line``: a number, or the value of ``y`` whose mean gets a dashed line.
    ``col`` and ``row`` make panels; those of a row have one scale and one list of labels. ``cut``: marks this many
    quartile ranges (True: FAR_MARK) away from the others are numbers at the edge. Under LEAST_SEEDS seeds a mark is
    hollow and has no interval. ``colors``: label -> a colour of Matplotlib, or a `Look`, in place of the method's.
    """
    cells = _cells(data, x, y, row, col, low, high, paper)
    counts = cells.groupby("row", sort=False)["y"].nunique()
    single = cells["col"].nunique() == 1 and cells["y"].str.len().max() <= 24
    width, least = (SINGLE, 1.8) if single else (DOUBLE, 1.4)  # the caption takes more lines in a narrow figure
    size = (width, max(least, sum(0.16 * counts + 0.5) + 0.3))
    fig, panels = _panels(cells, size, 0.5, sharex="row", height_ratios=counts + 1.5)
    look = label_looks(cells["y"], colors)
    for ax, in_row, here in panels:
        labels = list(dict.fromkeys(in_row["y"]))
        ax.set_xlim(_scale(in_row, line if isinstance(line, float | int) else None, cut))
        at = here.loc[here["y"] == line, "mean"] if isinstance(line, str) else [] if line is None else [line]
        for place in at:
            ax.axvline(place, color="0.6", linewidth=0.8, linestyle="--" if isinstance(line, str) else "-")
        _marks(ax, here, labels, look)
        ax.set_yticks(range(0, -len(labels), -1), [in_figure(label) for label in labels])
        ax.set_ylim(-len(labels) + 0.4, 0.6)
        ax.grid(axis="y", color="0.93", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.set_xlabel(wrapped(xlabel, cells["col"].nunique() + 0.5))
    beyond = any("(" in text.get_text() for ax in fig.axes for text in ax.texts)
    notes = [f"black ◇{', or number in brackets' * beyond}: the paper"] if cells["paper"].notna().any() else []
    if (several := cells.loc[cells["low"].notna(), "seeds"]).size:
        notes.append(f"bars: 95\N{NO-BREAK SPACE}% interval over {_numbers(several)} seeds")
    if cells.loc[cells["mean"].notna(), "low"].isna().any():
        notes.append(f"hollow: under {LEAST_SEEDS} seeds")
    if isinstance(line, str):
        notes.append(f"dashed: {line}")
    fig.set_label("; ".join(notes))
    return fig


def _texts(data: pd.DataFrame, **columns: str | None) -> pd.DataFrame:
    """The data, and further columns with the texts of others; empty for None. Raises ValueError for missing labels."""
    if empty := [name for name in columns.values() if name and data[name].isna().any()]:
        lacking = data[data[empty[0]].isna()]
        of = f", those of {', '.join(lacking['method'].unique())}" if "method" in data else ""
        raise ValueError(f"{len(lacking)} of {len(data)} rows have no {empty[0]!r}{of}")
    return data.assign(**{name: data[of].astype(str) if of else "" for name, of in columns.items()})


def _panels(
    data: pd.DataFrame, size: tuple[float, float], margin: float = 0.0, **options: Any
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame, pd.DataFrame]]]:
    """A figure with a panel for each value of the columns ``row`` and ``col``, and the data of its row and its own.

    Panels without data are left empty. ``margin``: the width of the labels beside the panels, in panels.
    """
    rows, cols = (list(dict.fromkeys(data[name])) for name in ("row", "col"))
    fig, axes = plt.subplots(
        len(rows), len(cols), figsize=size, layout="constrained", squeeze=False, sharey="row", **options
    )
    panels: list[tuple[Axes, pd.DataFrame, pd.DataFrame]] = []
    columns = (len(cols) + margin) * DOUBLE / size[0]
    for (row, col), ax in zip(product(rows, cols), axes.flat, strict=True):
        in_row = data[data["row"] == row]
        here = in_row[in_row["col"] == col]
        if here.empty:
            ax.set_axis_off()
        else:
            ax.set_title(wrapped(": ".join(filter(None, (row, col))), columns))
            first = not panels or panels[-1][1]["row"].iloc[0] != row
            ax.tick_params(labelleft=first)  # also if the row begins with empty panels
            panels.append((ax, in_row, here))
    return fig, panels


def _cells(
    data: pd.DataFrame,
    x: str,
    y: str,
    row: str | None,
    col: str | None,
    low: str | None,
    high: str | None,
    paper: str | None,
) -> pd.DataFrame:
    """A row for each mark: row, col, y, mean, low, high, seeds, each (the values), paper."""
    table = _texts(data, row=row, col=col, y=y).assign(paper=data[paper] if paper else np.nan)
    cells = []
    for place, group in table.groupby(["row", "col", "y"], sort=False):
        values = group[x].dropna()
        of = interval(values)
        if low and high:
            of = Interval(of.mean, group[low].iloc[0], group[high].iloc[0], int(group["seeds"].iloc[0]))
        if of.seeds < LEAST_SEEDS:
            of = Interval(of.mean, np.nan, np.nan, of.seeds)
        cells.append((*place, of.mean, of.low, of.high, of.seeds, values.to_numpy(), group["paper"].mean()))
    return pd.DataFrame(cells, columns=["row", "col", "y", "mean", "low", "high", "seeds", "each", "paper"])


def _scale(cells: pd.DataFrame, line: float | None, cut: bool | float) -> tuple[float, float]:
    """Limits that hold the marks and the bars, with ``cut`` no further than so many quartile ranges from the middle."""
    ends = np.concatenate([cells[["mean", "low", "high", "paper"]].to_numpy(float).ravel(), *cells["each"]])
    ends = np.append(ends[np.isfinite(ends)], [] if line is None else [line])
    left, right = ends.min(), ends.max()
    if cut and cells["mean"].nunique() > 1:
        first, third = cells["mean"].quantile([0.25, 0.75])
        reach = (FAR_MARK if cut is True else cut) * (third - first)
        kept = [] if line is None else [line]
        left, right = max(left, min([first - reach, *kept])), min(right, max([third + reach, *kept]))
    pad = 0.04 * (right - left) or 1.0
    return left - pad, right + pad


def _marks(ax: Axes, cells: pd.DataFrame, labels: Sequence[str], look: Mapping[str, Look]) -> None:
    """The marks of one panel; those beyond its limits are numbers at the edge, and bars end there with an arrowhead.

    Printed numbers at the edge are in brackets.
    """
    edge, (left, right) = ax.get_yaxis_transform(), ax.get_xlim()
    for cell in cells.itertuples():
        y, of = -labels.index(cell.y), look[cell.y]
        if len(cell.each) > 1:
            ax.plot(cell.each, [y] * len(cell.each), ".", color=of.color, markersize=3, alpha=0.45, zorder=2)
        if left <= cell.paper <= right:
            ax.plot(cell.paper, y, PAPER.marker, color=PAPER.color, mfc="none", clip_on=False, zorder=4)
        if left <= cell.mean <= right:
            bar = not np.isnan(cell.low)
            if bar:
                ax.plot([cell.low, cell.high], [y, y], color=of.color, linewidth=1.2, zorder=2)
                for end, tip, past in ((left, 4, cell.low < left), (right, 5, cell.high > right)):
                    if past:  # 4 and 5 are Matplotlib's ◂ and ▸ with their points at the end
                        ax.plot(end, y, marker=tip, markersize=3, color=of.color, clip_on=False)
            ax.plot(cell.mean, y, of.marker, color=of.color, mfc=of.color if bar else "w", clip_on=False, zorder=3)
        for at, side in ((0, "left"), (1, "right")):
            own, printed = (bool(v < left if at == 0 else v > right) for v in (cell.mean, cell.paper))
            text = " ".join([f"{cell.mean:.1f}"] * own + [f"({cell.paper:.1f})"] * printed)
            if text:
                text, color = f"{text} ▸ " if at else f" ◂ {text}", of.color if own else PAPER.color
                ax.annotate(text, (at, y), xycoords=edge, va="center", ha=side, fontsize=7, color=color)


@styled
def curves(
    data: pd.DataFrame,
    x: str = "round",
    y: str = "value",
    hue: str = "label",
    *,
    col: str | None = None,
    row: str | None = None,
    paper: str | None = None,
    colors: Mapping[str, Any] | None = None,
    xlabel: str = "communication round",
    ylabel: str = "mean client accuracy (%)",
    log: bool = False,
    closer: bool = False,
) -> Figure:
    """A line for each value of ``hue``: the mean of ``y`` at each ``x`` over the rows (seeds), with a band around it.

    The band is from the lowest to the highest seed; panels with more than MANY lines have none. ``col`` and ``row``
    make panels with one scale a row; ``paper``: a column with printed values (◇); ``log``: a logarithmic ``x``;
    ``closer``: the scale of the second half of the rounds and of the printed values; ``colors`` as in ``intervals``.
    """
    table = _texts(data, row=row, col=col, label=hue).assign(round=data[x], value=data[y])
    labels, num_rows, num_cols = (table[name].nunique() for name in ("label", "row", "col"))
    look = label_looks(table["label"], colors)
    seeds = table.groupby(["row", "col", "label"])["seed"].nunique().rename("seeds").reset_index()
    several = seeds.groupby(["row", "col"])["seeds"].agg(lambda of: of.max() > 1)  # panels that could have bands
    few = several & (seeds.groupby(["row", "col"]).size() <= MANY)
    banded = " in panels with few lines" if few.any() and (several & ~few).any() else bool(few.any())
    size = (DOUBLE if num_cols > 1 or labels > 4 else SINGLE, 2.0 * num_rows + 0.5)
    fig, panels = _panels(table, size, sharex="col")
    for ax, in_row, here in panels:
        lines(ax, here, look, here["label"].nunique() <= MANY)
        for label, group in here.groupby("label", sort=False) if paper else ():
            printed = group.groupby("round")[paper].mean()
            ax.plot(printed, "D", color=look[str(label)].color, mfc="none", markersize=5)
        if log:
            ticks = sorted(here["round"].unique())
            ax.set_xscale("log")
            ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            ax.minorticks_off()
        if closer:
            late = in_row["round"] > in_row.groupby("col")["round"].transform("max") / 2
            shown = pd.concat([in_row["value"][late], *([in_row[paper]] if paper else [])])
            ax.set_ylim(shown.min() - 1, shown.max() + 1)
        ax.set(xlabel=wrapped(xlabel, num_cols), ylabel=ylabel)
        ax.label_outer()
    legend_above(fig)
    fig.set_label(curves_note(table, banded) + ("; ◇: the paper" if paper else ""))
    return fig


@styled
def matrices(panels: Mapping[str, pd.DataFrame], *, label: str, vmin: float | None = None, vmax: float = 1.0) -> Figure:
    """Small multiples of square matrices between clients, such as the overlap of their masks. The index names them."""
    import seaborn as sns  # imported here because it takes a second

    size = (DOUBLE, DOUBLE / max(2.6, len(panels) + 0.3) + 0.6)
    fig, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
    names = [list(part.index) for part in panels.values()]
    low = min(0.0, *(part.min(axis=None) for part in panels.values())) if vmin is None else vmin
    for ax, (title, part) in zip(axes[0], panels.items(), strict=True):
        named = ax is axes[0][0] or list(part.index) != names[0]
        sns.heatmap(
            part, ax=ax, vmin=low, vmax=vmax, cmap="viridis", square=True, cbar=False, rasterized=True,
            xticklabels=True, yticklabels=named,
        )  # fmt: skip
        ax.set(title=plain(title), xlabel="", ylabel="")
        ax.tick_params(axis="x", length=0, labelsize=6, rotation=90)
        ax.tick_params(axis="y", length=0, labelsize=6, rotation=0)
    fig.colorbar(axes[0][-1].collections[0], ax=axes[0], label=fill(label, 24))
    axes[0][0].set_ylabel("client (its classes)")
    return fig


def shades(name: str, count: int) -> list[Any]:
    """So many colours of a seaborn palette ("Reds"), light to dark, without the palest."""
    import seaborn as sns

    return sns.color_palette(name, count + 2)[2:]


def _numbers(values: Iterable[float]) -> str:
    """ "3", or "3 to 5"."""
    distinct = sorted({f"{value:g}" for value in values}, key=float)
    return " to ".join(distinct[:1] + distinct[1:][-1:])


def caption(runs: pd.DataFrame) -> str:
    """What a figure was drawn from: preset, data, clients, rounds, seeds and overrides of these runs; and a GPU."""
    of_setting = runs.groupby("setting")["seed"].unique().map(lambda seeds: tuple(sorted(seeds))).unique()
    numbers = ", ".join(map(str, of_setting[0]))
    alike = f"{'seeds' if len(of_setting[0]) > 1 else 'one seed:'} {numbers}"
    seeds = alike if len(of_setting) == 1 else f"{_numbers(map(len, of_setting))} seeds a data set"
    data = dict.fromkeys(map(_named, runs["dataset"], runs["data"]))
    other = [device for device in dict.fromkeys(runs["device"]) if device != "cpu"]
    devices = f", on {' and '.join(other)}" if other else ""
    preset = f"preset {label}: " if (label := runs["preset"].iloc[0]) else ""
    stopped = re.findall(r"(\d+ of \d+) rounds", " ".join(dict.fromkeys(runs["data"])))
    clients, rounds = _numbers(runs["clients"]), " and ".join(stopped) or _numbers(runs["rounds"])
    texts = runs["overrides"].dropna() if "overrides" in runs else ()
    overrides = " and ".join(dict.fromkeys(filter(None, texts)))
    changed = f"; changed: {overrides}" if overrides else ""
    return f"{preset}{' + '.join(data)}; {clients} clients, {rounds} rounds, {seeds}{devices}{changed}"


def _named(dataset: str, data: str) -> str:
    """The data set, and in brackets what is special about its copy: "CIFAR-10 (JPEG copy)"."""
    special = re.search(rf"\(.+?\)|{GENERATED}", data)
    return plain(dataset) + (f" ({special[0].strip('()')})" if special and "(" not in dataset else "")


def figures_dir() -> Path:
    """The folder of a preset's own figures: PFL_FIGURES_DIR of the environment, else figures/ in the repository."""
    return Path(os.environ.get("PFL_FIGURES_DIR") or ROOT / "figures")


@styled
def save(fig: Figure, data: pd.DataFrame, name: str, runs: pd.DataFrame, note: str = "", about: str = "") -> None:
    """Finish a figure, write it as PNG with its ``data`` as CSV, and show it: figures/<preset>/<name>.

    ``runs``: what it was drawn from, for the caption and the preset. ``about`` replaces the caption, for what no run
    made. `pfl figures` names the folder in PFL_FIGURES_DIR. Without it, as in an opened notebook, the figure goes to
    figures/ in the data folder, so that no committed figure is replaced, and its path is printed.
    PFL_FIGURE_FORMATS=pdf,svg adds formats.
    """
    captioned(fig, about or caption(runs), "; ".join(text for text in (str(fig.get_label()), note) if text))
    image = drawn(fig)
    folder = os.environ.get("PFL_FIGURES_DIR")
    path = Path(folder or data_dir() / "figures") / runs["preset"].iloc[0] / name
    atomic_write(path.with_suffix(".png"), packed(image))
    for kind in filter(None, os.environ.get("PFL_FIGURE_FORMATS", "").split(",")):
        file = io.BytesIO()
        with mpl.rc_context({**SETTINGS, "svg.hashsalt": name}):
            fig.savefig(file, format=kind, metadata=dict.fromkeys(UNDATED[kind]))
        atomic_write(path.with_suffix(f".{kind}"), file.getvalue())
    numbers = data.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    atomic_write(path.with_suffix(".csv"), numbers.encode())
    if not folder:  # else whoever set it knows it
        print(f"written to {os.path.relpath(path.with_suffix('.png'))}")
    plt.close(fig)
    show(fig, image)


def show(fig: Figure, image: PIL.Image.Image | None = None) -> None:
    """Show a figure in the notebook with alternative text, at half its resolution, and close it."""
    image = drawn(fig) if image is None else image
    plt.close(fig)
    half = image.resize((image.width // 2, image.height // 2), PIL.Image.Resampling.LANCZOS)
    display(Image(packed(half, small=True), width=round(fig.get_figwidth() * SHOWN), alt=alt_text(fig)))


def drawn(fig: Figure, dpi: int = DPI) -> PIL.Image.Image:
    """The figure as an image. Also fixes the layout, which later drawings then do not compute again."""
    fig.set_dpi(dpi)
    canvas = FigureCanvasAgg(fig)
    canvas.draw()
    fig.set_layout_engine("none")
    return PIL.Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def packed(image: PIL.Image.Image, dpi: int = DPI, small: bool = False) -> bytes:
    """The image as PNG of at most 256 colours: a third of the size, and no difference to the eye.

    ``small``: the palette covers colours of few pixels, such as those of a mark in a small picture or a long table.
    """
    file = io.BytesIO()
    palette = PIL.Image.Quantize.MAXCOVERAGE if small else PIL.Image.Quantize.MEDIANCUT
    few = image.quantize(256, palette, kmeans=int(small), dither=PIL.Image.Dither.NONE)
    few.save(file, format="png", dpi=(dpi, dpi), optimize=True)
    return file.getvalue()

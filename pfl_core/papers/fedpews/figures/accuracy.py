"""Figures of FedPeWS's accuracy over rounds and time, mask diagnostics, and the heat maps of λ and τ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from pfl_core.papers.fedpews.settings import method_title
from pfl_core.study.plots import MANY, captioned, curves_note, legend_above, lines, wrapped
from pfl_core.study.style import COLORS, DASHES, DOUBLE, MARKERS, WINE, Look, looks, styled

FIXED = "-"  # label of FedPeWS-Fixed's row, as in the paper
ON_FEDPROX = WINE  # the warm-up on FedProx
BLANK = "0.92"  # grey of cells that were not run
CLIP = 3.0  # see ``_scale``
PANELS = 4  # in a row
DIAGNOSTICS = {  # statistic of the masks -> title
    "mask_prob": "mean probability p",
    "mask_low": "share of p < 0.1",
    "mask_high": "share of p > 0.9",
    "mask_distance": "distance of two clients' p",
    "selected": "neurons a client selects",
    "neurons_covered": "neurons of any client",
    "neurons_shared": "neurons of several clients",
    "params_covered": "parameters of any client",
    "diversity": "diversity ‖p − p_others‖²",
}
SHARES = {  # statistic of the masks -> vertical axis, if it is no share of the neurons
    "mask_prob": "probability",
    "mask_distance": "mean of |p − p'|",
    "params_covered": "share of the parameters",
    "diversity": "squared distance",
}
MOST = 0.9  # share of the paper's cells; a map with at least as many cells needs no frames


def warmup_labels(runs: pd.DataFrame, by_lam: bool = False) -> pd.DataFrame:
    """``runs`` with a label and a colour for each method and base. Columns: method, base, lam.

    With ``by_lam`` the label includes λ, and each λ has a shade from light to dark.
    """
    lams = sorted(runs.loc[runs["method"] == "fedpews", "lam"].unique())
    shades = dict(zip(lams, plt.get_cmap("OrRd")(np.linspace(0.55, 0.95, len(lams))), strict=True))
    labels, colors = [], []
    for method, base, lam in zip(runs["method"], runs["base"], runs["lam"], strict=True):
        learned, name = method == "fedpews", method_title(method, base)
        labels.append(f"{name}, λ = {lam:g}" if learned and by_lam else name)
        color = ON_FEDPROX if learned and base == "fedprox" else COLORS[method]
        colors.append(tuple(shades[lam]) if learned and by_lam else color)
    return runs.assign(label=labels, color=colors)


@styled
def warmup_curves(runs: pd.DataFrame, ylabel: str = "", caption: str = "") -> Figure:
    """Figures 4, 5, 6 (left) and 9: a panel for each setting or metric, with a dashed line at the switch.

    Columns: panel, label, color, seed, round, value, switch (W in rounds, 0 without a warm-up). With ``ylabel`` all
    panels have one scale; otherwise the panels' names are their vertical axes.
    """
    names, look, banded = list(dict.fromkeys(runs["panel"])), looks(runs), runs["label"].nunique() <= MANY
    fig, axes = _panels(len(names), shared=bool(ylabel))
    for ax, name in zip(axes, names, strict=True):
        here = runs[runs["panel"] == name]
        lines(ax, here, look, banded)
        for rounds in sorted(set(here["switch"]) - {0}):
            ax.axvline(rounds, color="0.45", linestyle="--", linewidth=0.8)
        if ylabel:
            ax.set_title(wrapped(name, min(PANELS, len(axes))))
        else:
            ax.set_ylabel(name)
        ax.set_xlabel("communication round")
    for ax in axes[::PANELS] if ylabel else ():
        ax.set_ylabel(ylabel)
    legend_above(fig, axes)
    switched = "; dashed: end of the warm-up" if (runs["switch"] > 0).any() else ""
    return captioned(fig, caption, curves_note(runs, banded) + switched)


@styled
def accuracy_over_time(runs: pd.DataFrame, caption: str = "") -> Figure:
    """Figure 10: accuracy over time, a panel for each setting, with a large mark at the end of the warm-up.

    Lines are means over seeds, bands span them. Columns: panel, label, color, seed, round, time (since the run's start,
    in rounds without a warm-up), value, switch (W in rounds, 0 without a warm-up).
    """
    names, look = list(dict.fromkeys(runs["panel"])), looks(runs)
    fig, axes = _panels(len(names), shared=True)
    for ax, name in zip(axes, names, strict=True):
        for label, group in runs[runs["panel"] == name].groupby("label", sort=False):
            color, marker, dash = look[str(label)]
            line = group.groupby("round").agg(
                time=("time", "mean"), mean=("value", "mean"), low=("value", "min"), high=("value", "max")
            )
            ax.plot(line["time"], line["mean"], color=color, linestyle=dash, label=label)
            if group["seed"].nunique() > 1:
                ax.fill_between(line["time"], line["low"], line["high"], color=color, alpha=0.15, linewidth=0)
            switch = line[line.index.isin(group["switch"])]
            ax.plot(switch["time"], switch["mean"], marker, color=color, markersize=6)
        ax.set_title(wrapped(name, min(PANELS, len(axes))))
        ax.set_xlabel("time (in rounds of FedAvg)")
    for ax in axes[::PANELS]:
        ax.set_ylabel("accuracy (%)")
    legend_above(fig, axes)
    return captioned(fig, caption, curves_note(runs) + "; mark: end of the warm-up")


@styled
def mask_diagnostics(runs: pd.DataFrame, caption: str = "") -> Figure:
    """Statistics of the learned masks after each warm-up round, a panel for each diagnostic.

    Columns: metric, label, seed, round, value. The hatched area in the panel ``selected`` is the paper's range, 0.1 to
    0.5.
    """
    metrics, labels = list(dict.fromkeys(runs["metric"])), list(dict.fromkeys(runs["label"]))
    colors = [COLORS[name] for name in ("fedavg", "fedpews", "fedpews_fixed", "fedprox", "ditto", "scaffold")]
    look = {
        label: Look(colors[i % len(colors)], MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)])
        for i, label in enumerate(labels)
    }
    rows = -(-len(metrics) // 3)
    size = (DOUBLE, 1.45 * rows + 0.9)
    fig, axes = plt.subplots(rows, 3, figsize=size, sharex=True, layout="constrained", squeeze=False)
    for ax in axes.flat[len(metrics) :]:
        ax.set_axis_off()
    for ax, metric in zip(axes.flat, metrics, strict=False):
        lines(ax, runs[runs["metric"] == metric], look)
        if metric == "selected":
            ax.axhspan(0.1, 0.5, facecolor="none", edgecolor="0.7", hatch="////", linewidth=0, zorder=0)
        if metric != "diversity":
            ax.set(ylim=(-0.04, 1.04), yticks=(0, 0.5, 1))
        ax.set_ylabel(SHARES.get(metric, "share of the neurons"))
        ax.set_title(DIAGNOSTICS.get(metric, metric))
    axes[0][0].set_xlim(0.5, runs["round"].max() + 0.5)
    for ax in axes.flat[max(0, len(metrics) - 3) : len(metrics)]:
        ax.set_xlabel("warm-up round")
        ax.tick_params(labelbottom=True)
    legend_above(fig, [axes[0][0]])
    return captioned(fig, caption, curves_note(runs) + "; hatched: the paper's range of selected neurons")


def sensitivity_grid(
    cells: pd.DataFrame, column: str = "mean", rows: Sequence[str] | None = None, taus: Sequence[float] | None = None
) -> pd.DataFrame:
    """The layout of Tables 7 and 8: rows λ ascending and fixed masks ("-") last, columns τ with FedAvg (τ = 0) first.

    cells: method (fedavg, fedpews, fedpews_fixed), lam, tau, and ``column``. FedAvg's value is repeated in every row;
    missing cells are NaN. ``rows`` and ``taus`` (from ``grid_axes``) default to those of the cells.
    """
    cell_rows, cell_taus = grid_axes(cells)
    warm = cells[cells["method"] != "fedavg"]
    # Learned and fixed masks as λ x τ; FedAvg is added as the first column, τ = 0.
    grid = warm.assign(row=_row(warm)).pivot(index="row", columns="tau", values=column)
    grid = grid.reindex(index=cell_rows if rows is None else rows, columns=cell_taus if taus is None else taus)
    plain = cells.loc[cells["method"] == "fedavg", column]
    grid.insert(0, 0.0, plain.iloc[0] if len(plain) else np.nan)
    return grid.rename_axis(index="λ", columns="τ")


def grid_axes(*grids: pd.DataFrame) -> tuple[list[str], list[float]]:
    """The rows (λ ascending, then fixed masks) and columns (τ > 0 ascending) of all grids together."""
    warm = pd.concat([cells.loc[cells["method"] != "fedavg", ["method", "lam", "tau"]] for cells in grids])
    lams = [f"{lam:g}" for lam in sorted(warm.loc[warm["method"] == "fedpews", "lam"].unique())]
    return lams + [FIXED] * bool((warm["method"] == "fedpews_fixed").any()), sorted(warm["tau"].unique())


def _row(warm: pd.DataFrame) -> pd.Series:
    """The row label of each cell: λ, or FIXED."""
    return warm["lam"].astype(float).map("{:g}".format).where(warm["method"] == "fedpews", FIXED)


@styled
def sensitivity(paper: pd.DataFrame, reproduced: pd.DataFrame, titles: Sequence[str], caption: str = "") -> Figure:
    """Figure 6 (right): the paper's cells (left) and the reproduced ones (right).

    The upper maps show the accuracy, the lower ones its difference to FedAvg. Columns of paper and reproduced: method,
    lam, tau, mean, std (over seeds), difference (to FedAvg), difference_std, in percent and points. Both maps have the
    same λ and τ; missing cells are blank. Both maps of a row have one colour scale. Cells of the paper that were
    reproduced are framed unless these are most of them. The best cell of each map is bold.
    """
    axes_of = grid_axes(paper, reproduced)
    # For each quantity the paper's grid and the reproduced one.
    grids = {
        name: [sensitivity_grid(cells, name, *axes_of) for cells in (paper, reproduced)]
        for name in ("mean", "std", "difference", "difference_std")
    }
    rows = len(axes_of[0])
    size = (DOUBLE, 0.27 * 2 * max(rows, 4) + 2.1)
    fig, axes = plt.subplots(2, 2, figsize=size, layout="constrained", squeeze=False)
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(wrapped(title, 2))
    for row, name, form, cmap, label in (
        (axes[0], "mean", "{:.2f}", "viridis", "accuracy (%)"),
        (axes[1], "difference", "{:+.2f}", "RdBu", "difference to FedAvg (points)"),
    ):
        paper_grid, our_grid = grids[name]
        # One colour scale for both maps of a row.
        norm, beyond = _scale(paper_grid, our_grid, signed=name == "difference")
        spreads = grids["std" if name == "mean" else "difference_std"]
        for ax, grid, spread in zip(row, grids[name], spreads, strict=True):
            _heat_map(ax, grid, _texts(grid, spread, form), norm, plt.get_cmap(cmap))
        colors = plt.cm.ScalarMappable(norm, cmap)
        fig.colorbar(colors, ax=row, label=label, pad=0.02, extend="both" if beyond else "neither")
    # Frame the reproduced cells in the paper's maps, unless nearly all are.
    in_paper, reproduced = (grid.notna() for grid in grids["mean"])
    common = in_paper & reproduced
    framed = bool(common.to_numpy().sum() < MOST * in_paper.to_numpy().sum())
    for ax in axes[:, 0] if framed else ():
        _frame(ax, common)
    blank = "" if all(mask.to_numpy().all() for mask in (in_paper, reproduced)) else "not run"
    spread = any(grid.notna().to_numpy().any() for grid in (*grids["std"], *grids["difference_std"]))
    legend_above(fig, handles=_marks(framed, blank))
    note = "±: standard deviation over seeds; of differences paired by seed (paper: as of independent runs)"
    return captioned(fig, caption, note if spread else "")


@styled
def rounds_maps(cells: pd.DataFrame, title: str, caption: str = "") -> Figure:
    """The first round that reaches the target accuracy (left), and its difference to FedAvg (right), over λ and τ.

    cells: of ``results.grid_cells`` with ``same_rate``, in rounds. Cells that do not reach the target are blank. Fewest
    rounds are bold.
    """
    names = ("mean", "std", "difference", "difference_std")
    grids = {name: sensitivity_grid(cells, name) for name in names}
    size = (DOUBLE, 0.24 * max(len(grids["mean"]), 4) + 1.2)
    fig, axes = plt.subplots(1, 2, figsize=size, layout="constrained")
    for ax, name, form, cmap, label in (
        (axes[0], "mean", "{:.0f}", "viridis_r", title),
        (axes[1], "difference", "{:+.0f}", "RdBu_r", "rounds more than FedAvg"),
    ):
        values = grids[name].to_numpy(float)
        limit = np.nanmax(np.abs(values), initial=1.0)
        norm = Normalize(-limit, limit) if name == "difference" else Normalize(np.nanmin(values), np.nanmax(values))
        spread = grids["std" if name == "mean" else "difference_std"]
        _heat_map(ax, grids[name], _texts(grids[name], spread, form), norm, plt.get_cmap(cmap), best=np.nanmin)
        fig.colorbar(plt.cm.ScalarMappable(norm, cmap), ax=ax, label="rounds", pad=0.02)
        ax.set_title(label)
    axes[1].set_ylabel("")
    blank = "target accuracy not reached" if grids["mean"].isna().to_numpy().any() else ""
    legend_above(fig, handles=_marks(framed=False, blank=blank, best="fewest rounds, FedAvg included"))
    spread = grids["std"].notna().to_numpy().any()
    return captioned(fig, caption, "±: standard deviation over seeds; of differences paired by seed" if spread else "")


def _panels(count: int, shared: bool) -> tuple[Figure, np.ndarray]:
    """A figure with rows of at most PANELS panels."""
    columns, rows = min(count, PANELS), -(-count // PANELS)
    size = (DOUBLE, 1.9 * rows + 0.7)
    fig, axes = plt.subplots(rows, columns, figsize=size, sharey=shared, layout="constrained", squeeze=False)
    for ax in axes.flat[count:]:
        ax.set_axis_off()
    return fig, axes.flat[:count]


def _scale(paper: pd.DataFrame, reproduced: pd.DataFrame, signed: bool) -> tuple[Normalize, bool]:
    """One colour scale for both maps, and whether some cells are beyond it. A signed scale is centred at 0.

    A signed scale covers at least the paper's values and at most CLIP times their range. Otherwise large reproduced
    losses would leave the paper's map without contrast.
    """
    published, own = (grid[~np.isnan(grid)] for grid in (paper.to_numpy(float), reproduced.to_numpy(float)))
    values = np.append(published, own)
    if not signed:
        return Normalize(values.min(), values.max()), False
    largest = np.abs(values).max()
    limit = min(largest, CLIP * np.abs(published).max())
    return Normalize(-limit, limit), bool(largest > limit)


def _texts(grid: pd.DataFrame, spread: pd.DataFrame, form: str) -> pd.DataFrame:
    """Each cell's number, with its deviation below if there is one; empty for missing cells."""
    numbers = grid.map(form.format) + spread.map("\n±{:.2f}".format).where(spread.notna(), "")
    numbers = numbers.map(lambda text: text.replace("-", "−"))
    return numbers.where(grid.notna(), "")


def _heat_map(
    ax: Axes,
    grid: pd.DataFrame,
    texts: pd.DataFrame,
    norm: Normalize,
    cmap: Colormap,
    best: Callable[[np.ndarray], float] = np.nanmax,
) -> None:
    """Draws the cells with white borders and texts. FedAvg's column is drawn as one cell.

    The best cell is bold, and so are those that show the same number.
    """
    rows, columns = grid.shape
    values = np.ma.masked_invalid(grid.to_numpy(float))
    ax.pcolormesh(np.arange(columns + 1), np.arange(rows + 1), values, norm=norm, cmap=cmap, rasterized=True)
    ax.hlines(range(1, rows), 1, columns, color="w", linewidth=1)
    ax.vlines(range(1, columns), 0, rows, color="w", linewidth=1)
    numbers = texts.map(lambda text: text.partition("\n")[0])
    bold = set(numbers.to_numpy()[grid == best(grid.to_numpy(float))]) if grid.notna().to_numpy().any() else set()
    for row, column in np.ndindex(rows, columns):
        value = grid.iat[row, column]
        # The text of FedAvg's column is drawn once, at half its height.
        if np.isnan(value) or (column == 0 and row != rows // 2):
            continue
        dark = np.dot(cmap(norm(value))[:3], (0.299, 0.587, 0.114)) < 0.5  # luminance of the cell's colour
        position = (column + 0.5, rows / 2 if column == 0 else row + 0.5)
        weight = "bold" if numbers.iat[row, column] in bold else "normal"
        ax.text(
            *position, texts.iat[row, column], color="w" if dark else "k", weight=weight,
            ha="center", va="center", fontsize=5.5, linespacing=0.95, in_layout=False,
        )  # fmt: skip
    ax.set(xlim=(0, columns), ylim=(rows, 0), xlabel="τ (0: FedAvg)", ylabel="λ, or fixed masks", facecolor=BLANK)
    ax.set_xticks(np.arange(columns) + 0.5, [f"{tau:g}" for tau in grid.columns])
    ax.set_yticks(np.arange(rows) + 0.5, ["fixed" if row == FIXED else row for row in grid.index])
    ax.tick_params(length=0)


def _frame(ax: Axes, common: pd.DataFrame) -> None:
    """Frames these cells, except FedAvg's."""
    for row, column in np.argwhere(common.to_numpy()[:, 1:]):
        ax.add_patch(Rectangle((column + 1, row), 1, 1, fill=False, edgecolor="k", linewidth=1.0, zorder=3))


def _marks(framed: bool, blank: str, best: str = "best cell of its map, FedAvg included") -> list[Artist]:
    """Legend entries for bold cells, frames and blanks. ``blank``: what a blank cell means; "" if there is none."""
    sign: dict[str, Any] = {"linestyle": "none", "color": "k", "markeredgewidth": 0}
    marks: list[Artist] = [Line2D([], [], marker=r"$\mathbf{bold}$", markersize=18, label=best, **sign)]
    if framed:
        marks.append(Patch(facecolor="none", edgecolor="k", linewidth=1.0, label="cell that was run here"))
    if blank:
        marks.append(Patch(facecolor=BLANK, label=blank))
    return marks

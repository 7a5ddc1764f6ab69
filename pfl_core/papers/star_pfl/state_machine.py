"""Star-PFL's state machine on artificial updates: a worked example, typical patterns, and their pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from pfl_core.algorithms.star_pfl.masks import average_, average_stability
from pfl_core.algorithms.star_pfl.probe import ACTIVE, FROZEN, PROBING
from pfl_core.papers.star_pfl.null_model import Simulated, simulate
from pfl_core.seeding import generator
from pfl_core.study.plots import legend_above
from pfl_core.study.style import BLUE, DOUBLE, styled

# Entry -> update of rounds 1 to 8, taken only if the entry is trained: a oscillates, b drifts, c oscillates and then
# moves again, d never moves. Binary fractions, so every score is exact.
EXAMPLE = {
    "a": (0.5, -0.5, 0.0, 0.5, -0.5, 0.0, 0.5, 0.0),
    "b": (0.25,) * 8,
    "c": (0.5, -0.5, 0.0, 1.0, 0.25, -0.5, 0.5, -0.25),
    "d": (0.0,) * 8,
}
STATE_COLORS = {"active": "#f2f2f2", "frozen": "#6baed6", "probing": "#d55e00"}  # in the order of the states' numbers
COLORMAP = ListedColormap(list(STATE_COLORS.values()))
WAKES_AT = 20  # updates after which the pattern "wakes up" stops oscillating
# Pattern -> function of n and of a standard normal number: the entry's update number n, from 0
PATTERNS: dict[str, Callable[[int, float], float]] = {
    "oscillation": lambda n, noise: 1.0 - 2.0 * (n % 2),
    "drift": lambda n, noise: 0.7 + noise,
    "noise": lambda n, noise: noise,
    "dead": lambda n, noise: 0.0,
    "wakes up": lambda n, noise: 1.0 - 2.0 * (n % 2) if n < WAKES_AT else 0.7,
}


def worked_example(threshold: float = 0.1, length: int = 4) -> pd.DataFrame:
    """The state machine of a server on ``EXAMPLE``, a row per round and entry.

    Columns: round, entry, state (in the round), score (that Measure sees), M, dW, W, score' (after the update), L, F,
    M' and M after (as Check leaves them). Cells are empty where the entry is not trained or not measured.
    """
    given = torch.tensor([*zip(*EXAMPLE.values(), strict=True), (0.0,) * len(EXAMPLE)])  # [9, entries]
    # one round more than the example, because M' of the last one shows in the next
    run = simulate(lambda t, record, entries: given[t], len(given), threshold, length, 1, len(EXAMPLE))
    t, j = (axis.ravel() for axis in np.indices((len(given) - 1, len(EXAMPLE))))
    active, probe, score = run.active.numpy(), run.probe.numpy(), run.score.double().numpy()  # [9, entries] each
    trained, probed_next = active[t, j], probe[t + 1, j]
    measured = (t > 0) & active[t - 1, j] & ~probe[t, j]  # Measure looks at active entries only
    return pd.DataFrame(
        {
            "round": t + 1,
            "entry": np.array(list(EXAMPLE))[j],
            "state": np.array(list(STATE_COLORS))[states(run).numpy()[t, j]],
            "score": np.where(measured, score[t - 1, j], np.nan),
            "M": trained.astype(int),
            "dW": np.where(trained, given.double().numpy()[t, j], np.nan),
            "W": run.value.double().numpy()[t, j],
            "score'": np.where(trained, score[t, j], np.nan),
            "L": run.waited.numpy()[t, j].astype(int),
            "F": run.interval.numpy()[t, j].astype(int),
            "M' after": probed_next.astype(int),
            "M after": (trained | probed_next).astype(int),
        }
    )


def trajectories(
    threshold: float,
    length: int,
    *,
    rounds: int = 40,
    recorded: int = 1,
    patterns: Sequence[str] = tuple(PATTERNS),
    decay: float | None = None,
    thaw: bool = True,
    seed: int = 0,
) -> pd.DataFrame:
    """States and scores of each pattern; all have the same noise. ``decay``: use APF's moving averages, not a window.

    Columns: pattern, round, state (a number), score, wait (F).
    """

    def updates(t: int, record: int, entries: int) -> Tensor:
        number = t * recorded + record
        drawn = torch.randn((), generator=generator(seed, "patterns", number)).item()
        return torch.tensor([PATTERNS[name](number, drawn) for name in patterns])

    averages: dict[str, Any] = {}
    if decay is not None:  # the window then has two slots, the averages of the updates and of their absolute values
        length, averages = 2, {"score": average_stability, "push": partial(average_, decay=decay)}
    run = simulate(updates, rounds, threshold, length, recorded, len(patterns), thaw=thaw, **averages)
    j, t = (axis.ravel() for axis in np.indices((len(patterns), rounds)))
    columns = {"state": states(run), "score": run.score, "wait": run.interval}  # [rounds, patterns]
    table = pd.DataFrame({"pattern": np.array(patterns)[j], "round": t + 1})
    return table.assign(**{name: values.numpy()[t, j] for name, values in columns.items()})


def states(run: Simulated) -> Tensor:
    """States [rounds, entries]: ACTIVE, FROZEN or PROBING."""
    trained = torch.where(run.probe, PROBING, ACTIVE)
    return torch.where(run.active, trained, FROZEN)


def panels(cases: Mapping[str, Mapping[str, Any]], **common: Any) -> pd.DataFrame:
    """``trajectories`` of several cases, name -> arguments, with the name in the column ``setting``."""
    return pd.concat(trajectories(**{**common, **case}).assign(setting=name) for name, case in cases.items())


def trained_share(table: pd.DataFrame) -> pd.Series:
    """Share of the rounds in which each pattern is trained (active or probing), in percent."""
    return 100 * (table["state"] != FROZEN).groupby(table["pattern"], sort=False).mean()


# ---- figures: the states as colours ---------------------------------------------------------------------------------


def state_patches() -> list[Patch]:
    """Legend entries of the states."""
    return [Patch(facecolor=color, edgecolor="0.8", label=state) for state, color in STATE_COLORS.items()]


def score_panel(ax: Axes, line: pd.DataFrame, threshold: float | None = None, color: str = BLUE) -> None:
    """Draws an entry's score over its states, which are the background. Columns: round, score, state (a number)."""
    edges = np.append(line["round"] - 0.5, line["round"].iloc[-1] + 0.5)
    look: Any = {"cmap": COLORMAP, "vmin": 0, "vmax": 2, "alpha": 0.45, "linewidth": 0, "rasterized": True}
    ax.pcolormesh(edges, [-0.04, 1.04], line["state"].to_numpy()[None], zorder=0, **look)
    ax.plot(line["round"], line["score"], ".-", color=color, markersize=2.5, linewidth=0.9)
    if threshold is not None:
        ax.axhline(threshold, color="k", linewidth=0.8, linestyle="--", label="threshold T")
    ax.set_ylim(-0.04, 1.04)


@styled
def pattern_panels(table: pd.DataFrame, threshold: float) -> Figure:
    """Scores by round over the states; rows are patterns, columns settings. ``table``: see ``panels``."""
    patterns, settings = (list(dict.fromkeys(table[name])) for name in ("pattern", "setting"))
    size = (DOUBLE, len(patterns) + 0.9)
    fig, axes = plt.subplots(
        len(patterns), len(settings), figsize=size, layout="constrained", sharex=True, sharey=True, squeeze=False
    )
    for row, pattern in zip(axes, patterns, strict=True):
        for ax, setting in zip(row, settings, strict=True):
            score_panel(ax, table[(table["pattern"] == pattern) & (table["setting"] == setting)], threshold)
        row[0].set_ylabel(f"{pattern}\nscore")
    for ax, setting in zip(axes[0], settings, strict=True):
        ax.set_title(setting)
    for ax in axes[-1]:
        ax.set_xlabel("round")
    legend_above(fig, axes[0], state_patches())
    return fig


@styled
def raster(table: pd.DataFrame) -> Figure:
    """States of sampled entries: rows are entries in the order of the layers, columns rounds; a panel for each party.

    Columns: party, round, entry, layer, state (a number).
    """
    parties = list(dict.fromkeys(table["party"]))
    fig, axes = plt.subplots(1, len(parties), figsize=(DOUBLE, 3.8), layout="constrained", sharey=True)
    for ax, party in zip(axes, parties, strict=True):
        mine = table[table["party"] == party]
        grid = mine.pivot(index="entry", columns="round", values="state")
        layer = mine.drop_duplicates("entry").set_index("entry").loc[grid.index, "layer"].to_numpy()
        extent = (grid.columns[0] - 0.5, grid.columns[-1] + 0.5, len(grid) - 0.5, -0.5)
        ax.imshow(grid, aspect="auto", extent=extent, cmap=COLORMAP, vmin=0, vmax=2, interpolation="none")
        first = np.flatnonzero(np.append(True, layer[1:] != layer[:-1]))  # first row of each layer
        for place in first[1:]:
            ax.axhline(place - 0.5, color="k", linewidth=0.6)
        ax.set(xlabel="communication round", title=party)
        ax.set_yticks((first + np.append(first[1:], len(grid))) / 2 - 0.5, layer[first])
        ax.tick_params(axis="y", length=0)
    legend_above(fig, handles=state_patches())
    return fig

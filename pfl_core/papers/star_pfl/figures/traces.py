"""Figures of Star-PFL's stability traces."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from pfl_core.study.methods import NAMES
from pfl_core.study.plots import band, captioned, curves_note, legend_above, lines, share_y
from pfl_core.study.style import BLUE, DASHES, DOUBLE, MARKERS, ORANGE, VERMILLION, Look, looks, styled

STATE_COLORS = {"active": "#f2f2f2", "frozen": "#6baed6", "probing": "#d55e00"}
PAIR = (Look(ORANGE, "o"), Look(BLUE, "s", DASHES[1]))  # the paper's orange and blue
WHY = {"never moved": "#bdbdbd", "cancelled out": "#6baed6"}
NOISE = "#333333"
SCORE = "score (0: updates cancel,\n1: one direction)"
SIDES = {"server": BLUE, "clients": VERMILLION}


@styled
def values_and_scores(values: pd.DataFrame, scores: pd.DataFrame, threshold: float | None, caption: str = "") -> Figure:
    """Figure 1, a row for each party: values of the pair, then the score of each of the two over its states.

    Columns of ``values``: party, name ("random": the control, in grey), entry, time (rounds), value; of ``scores``:
    party, name, round, score, unfrozen_score (the score with nothing frozen), state.
    """
    parties = list(dict.fromkeys(values["party"]))
    fig, grid = plt.subplots(
        len(parties), 3, figsize=(DOUBLE, 2.0 * len(parties) + 0.7), layout="constrained", squeeze=False
    )
    for axes, party in zip(grid, parties, strict=True):
        party_values, party_scores = values[values["party"] == party], scores[scores["party"] == party]
        names = list(dict.fromkeys(party_scores["name"]))
        # control entries in grey, then the pair and its scores
        for _, line in party_values[party_values["name"] == "random"].groupby("entry"):
            axes[0].plot(line["time"], line["value"], color="0.75", linewidth=0.7, label="random")
        for ax, name, look in zip(axes[1:], names, PAIR, strict=True):
            line = party_values[party_values["name"] == name]
            axes[0].plot(line["time"], line["value"], color=look.color, linestyle=look.dash, label=name)
            score_panel(ax, party_scores[party_scores["name"] == name], look.color, threshold)
            ax.set_title(f"{party}: {name}")
        axes[0].axhline(0, color="0.85", linewidth=0.8, zorder=0)
        axes[0].set(ylabel="value")
        axes[0].set_title(f"{party}, nothing frozen")
        axes[0].set_xlabel("communication round")  # the parties' values have different ranges of rounds
        axes[1].set_ylabel(SCORE)
    for ax in grid[-1][1:]:
        ax.set_xlabel("communication round")
    legend_above(fig, grid[0], state_patches())
    return captioned(fig, caption)


def score_panel(ax: Axes, line: pd.DataFrame, color: str, threshold: float | None) -> None:
    """Draws an entry's score by round. Columns: round, score, unfrozen_score, state."""
    shade(ax, line["round"].to_numpy(), line["state"].to_numpy())
    ax.plot(line["round"], line["score"], ".-", color=color, markersize=2.5, linewidth=0.9)
    ax.plot(line["round"], line["unfrozen_score"], color="0.45", linewidth=0.9, linestyle=":", label="nothing frozen")
    if threshold is not None:
        ax.axhline(threshold, color="k", linewidth=0.8, linestyle="--", label="threshold T")
    ax.set_ylim(-0.04, 1.04)


def state_patches() -> list[Patch]:
    """Legend entries of the states."""
    return [Patch(facecolor=color, edgecolor="0.8", label=state) for state, color in STATE_COLORS.items()]


def shade(ax: Axes, rounds: np.ndarray, states: np.ndarray) -> None:
    """Colours the background of each round by the entry's state (a number)."""
    edges = np.append(rounds - 0.5, rounds[-1] + 0.5)
    colors = ListedColormap(list(STATE_COLORS.values()))
    ax.pcolormesh(
        edges,
        [-0.04, 1.04],
        states[None],
        cmap=colors,
        vmin=0,
        vmax=2,
        alpha=0.45,
        linewidth=0,
        zorder=0,
        rasterized=True,
    )


@styled
def raster(table: pd.DataFrame, caption: str = "") -> Figure:
    """States of sampled entries: rows are entries in the order of the layers, columns rounds; a panel for each party.

    Columns: party, round, entry, layer, state.
    """
    parties = list(dict.fromkeys(table["party"]))
    fig, axes = plt.subplots(1, len(parties), figsize=(DOUBLE, 3.8), layout="constrained", sharey=True)
    for ax, party in zip(axes, parties, strict=True):
        mine = table[table["party"] == party]
        grid = mine.pivot(index="entry", columns="round", values="state")
        layer = mine.drop_duplicates("entry").set_index("entry").loc[grid.index, "layer"].to_numpy()
        extent = (grid.columns[0] - 0.5, grid.columns[-1] + 0.5, len(grid) - 0.5, -0.5)
        colors = ListedColormap(list(STATE_COLORS.values()))
        ax.imshow(grid, aspect="auto", extent=extent, cmap=colors, vmin=0, vmax=2, interpolation="none")
        first = np.flatnonzero(np.append(True, layer[1:] != layer[:-1]))  # first row of each layer
        for place in first[1:]:
            ax.axhline(place - 0.5, color="k", linewidth=0.6)
        ax.set(xlabel="communication round", title=party)
        ax.set_yticks((first + np.append(first[1:], len(grid))) / 2 - 0.5, layer[first])
        ax.tick_params(axis="y", length=0)
    legend_above(fig, handles=state_patches())
    return captioned(fig, caption)


@styled
def frozen_shares(layers: pd.DataFrame, why: pd.DataFrame, caption: str = "") -> Figure:
    """Frozen share of all entries by reason and on noise (above), and of each layer, in a small panel (below).

    Columns of ``layers`` and ``why``: party, layer, round, mean, low, high.
    """
    names = [name for name in dict.fromkeys(layers["layer"]) if name not in ("all", "noise")]
    fig = plt.figure(figsize=(DOUBLE, 4.2), layout="constrained")
    grid = fig.add_gridspec(2, 2 * len(names), height_ratios=(1.6, 1.0))
    above = [fig.add_subplot(grid[0, : len(names)])]
    above.append(fig.add_subplot(grid[0, len(names) :], sharey=above[0]))
    for ax, party in zip(above, SIDES, strict=True):
        parts = why[why["party"] == party].pivot(index="round", columns="layer", values="mean")[list(WHY)]
        ax.stackplot(parts.index, parts.T.to_numpy(), colors=list(WHY.values()), labels=list(WHY))
        noise = layers[(layers["party"] == party) & (layers["layer"] == "noise")]
        ax.plot(noise["round"], noise["mean"], color=NOISE, linestyle="--", label="noise alone" if len(noise) else None)
        ax.set(xlabel="communication round", title=f"{party}: all entries")
    below: list[Axes] = []
    for place, name in enumerate(names):
        below.append(fig.add_subplot(grid[1, 2 * place : 2 * place + 2], sharey=below[0] if below else None))
        _layer_panel(below[-1], layers[layers["layer"] == name])
        below[-1].set_title(name)
    for ax in (above[1], *below[1:]):
        ax.tick_params(labelleft=False)
    above[0].set_ylabel("frozen (% of all entries)")
    below[0].set_ylabel("frozen (% of\nthe layer)")
    below[len(names) // 2].set_xlabel("communication round")
    legend_above(fig, (above[0], below[0]))
    return captioned(fig, caption, "lines of clients: means; bands: range of the clients")


def _layer_panel(ax: Axes, layer: pd.DataFrame) -> None:
    """The frozen share of one layer: a line for the server, one for the clients' mean, with their range."""
    for party, color in SIDES.items():
        line = layer[layer["party"] == party]
        ax.plot(line["round"], line["mean"], color=color, linewidth=0.9, label=party)
        if party == "clients":
            ax.fill_between(line["round"], line["low"], line["high"], linewidth=0, color=color, alpha=0.2)
    ax.xaxis.set_major_locator(MaxNLocator(2, integer=True))


@styled
def waits_and_scores(waits: pd.DataFrame, scores: pd.DataFrame, threshold: float | None, caption: str = "") -> Figure:
    """Waiting times after several rounds (above), and scores of the run and of noise (below).

    ``waits``: see ``results.traces.waits``; ``scores``: see ``results.traces.score_shares``.
    """
    fig, axes = plt.subplots(2, 2, figsize=(DOUBLE, 4.4), layout="constrained", sharex="row", squeeze=False)
    rounds = sorted(waits["round"].unique())
    for ax, party in zip(axes[0], ("server", "clients"), strict=True):
        for place, t in enumerate(rounds):
            mine = waits[(waits["party"] == party) & (waits["round"] == t)]
            color, shift = plt.get_cmap("plasma")(place / max(len(rounds), 2)), 0.14 * (place - (len(rounds) - 1) / 2)
            ax.plot(mine["wait"] + shift, mine["entries"], MARKERS[place], color=color, label=f"after round {t}")
        ax.set(xlabel="waiting time F (rounds)", yscale="log", title=f"{party}, waiting times")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    for ax, party in zip(axes[1], ("server", "clients"), strict=True):
        for of, style in (("run", dict(color=BLUE, linewidth=1.2)), ("noise", dict(color=NOISE, linestyle="--"))):
            mine = scores[(scores["party"] == party) & (scores["of"] == of)]
            label = {"run": "the run", "noise": "noise alone"}[of]
            ax.stairs(mine["share"], np.append(mine["low"], 1.0), label=label, **style)
        if threshold is not None:
            ax.axvline(threshold, color="k", linewidth=0.8, linestyle=":", label="threshold T")
        ax.set(xlabel=SCORE.replace("\n", " "), title=f"{party}, scores")
    axes[0][0].set_ylabel("entries")
    axes[1][0].set_ylabel("share of the entries (%)")
    axes[0][1].legend()
    axes[1][1].legend()
    for row in axes:
        share_y(*row)
    return captioned(fig, caption)


@styled
def size_against_score(table: pd.DataFrame, correlations: Mapping[str, float], caption: str = "") -> Figure:
    """|value| against score of the sampled entries. ``correlations``: party -> rank correlation over all entries.

    Columns: party, layer, value, score.
    """
    fig, axes = plt.subplots(
        1, len(correlations), figsize=(DOUBLE, 2.8), layout="constrained", sharex=True, sharey=True
    )
    layers = list(dict.fromkeys(table["layer"]))
    palette = plt.get_cmap("viridis")(np.linspace(0, 0.92, len(layers)))
    for ax, (party, correlation) in zip(axes, correlations.items(), strict=True):
        for layer, color, marker in zip(layers, palette, MARKERS, strict=False):
            mine = table[(table["party"] == party) & (table["layer"] == layer) & (table["score"] > 0)]
            ax.scatter(mine["value"].abs(), mine["score"], s=9, color=color, marker=marker, linewidth=0, label=layer)
        ax.set(xlabel="|value|", xscale="log", ylim=(-0.04, 1.04))
        ax.set_title(f"{party}: rank correlation {correlation:+.2f}")
    axes[0].set_ylabel(SCORE)
    legend_above(fig, axes)
    return captioned(fig, caption, "dots: sampled entries with a score above 0; correlation: over all entries")


@styled
def payload_and_accuracy(sent: pd.DataFrame, accuracy: pd.DataFrame, caption: str = "") -> Figure:
    """Upload of a client, per round and in total, and accuracy of the received and of the trained model.

    Columns of ``sent``: seed, round, percent, saved (total so far in percent of FedAvg's), noise; of ``accuracy``:
    panel, label, color, seed, round, value.
    """
    fig, axes = plt.subplots(1, 3, figsize=(DOUBLE, 2.7), layout="constrained")
    band(axes[0], sent.rename(columns={"percent": "value"}), "each round", Look(BLUE, "o"))
    band(axes[0], sent.rename(columns={"saved": "value"}), "sum so far", Look(VERMILLION, "s", DASHES[1]))
    if sent["noise"].notna().any():
        band(axes[0], sent.rename(columns={"noise": "value"}), "noise alone, each round", Look(NOISE, "", DASHES[2]))
    axes[0].axhline(100, color="0.6", linewidth=0.8, linestyle="--")
    axes[0].set(xlabel="communication round", ylabel="uploaded (% of FedAvg)", title="payload")
    for ax, (panel, mine) in zip(axes[1:], accuracy.groupby("panel", sort=False), strict=True):
        lines(ax, mine, looks(accuracy), wide=NAMES["star_pfl"])
        ax.set(xlabel="communication round", title=str(panel))
    axes[1].set_ylabel("mean client accuracy (%)")
    share_y(*axes[1:])
    legend_above(fig, axes[:2])
    return captioned(fig, caption, curves_note(accuracy))

"""Figures of Star-PFL's stability traces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pfl_core.study.plots import band, captioned

STATE_COLORS = {"active": "#f2f2f2", "frozen": "#6baed6", "probing": "#fd8d3c"}
PAIR = ("#e07b00", "#2b6cb0")  # the paper's orange and blue
WHY = {"never moved": "#bdbdbd", "cancelled out": "#6baed6"}
NOISE = "#333333"
# lines that are not of a layer
STYLES: dict[str, dict[str, Any]] = {
    "all": {"color": "k", "linewidth": 2.2},
    "noise": {"color": NOISE, "linestyle": "--"},
}


def values_and_scores(values: pd.DataFrame, scores: pd.DataFrame, threshold: float | None, caption: str = "") -> Figure:
    """Figure 1, a row for each party: values of the pair, then the score of each of the two over its states.

    Columns of ``values``: party, name ("random": the control, in grey), entry, time (rounds), value; of ``scores``:
    party, name, round, score, unfrozen_score (the score with nothing frozen), state.
    """
    parties = list(dict.fromkeys(values["party"]))
    fig, grid = plt.subplots(
        len(parties), 3, figsize=(11.5, 3.0 * len(parties) + 0.4), layout="constrained", squeeze=False
    )
    for axes, party in zip(grid, parties, strict=True):
        party_values, party_scores = values[values["party"] == party], scores[scores["party"] == party]
        names = list(dict.fromkeys(party_scores["name"]))
        # control entries in grey, then the pair and its scores
        for _, line in party_values[party_values["name"] == "random"].groupby("entry"):
            axes[0].plot(line["time"], line["value"], color="0.75", linewidth=0.7, label="random")
        for ax, name, color in zip(axes[1:], names, PAIR, strict=True):
            line = party_values[party_values["name"] == name]
            axes[0].plot(line["time"], line["value"], color=color, label=name)
            score_panel(ax, party_scores[party_scores["name"] == name], color, threshold)
            ax.set_title(f"(b) {party}: {name}", fontsize=10)
        axes[0].axhline(0, color="0.85", linewidth=0.8, zorder=0)
        axes[0].set(ylabel="value")
        axes[0].set_title(f"(a) {party}, nothing frozen", fontsize=10)
        # one legend entry for each label
        handles = dict(zip(*axes[0].get_legend_handles_labels()[::-1], strict=True))
        axes[0].legend(handles.values(), handles, frameon=False, fontsize=7)
        axes[1].set_ylabel("score (0 steady, 1 one way)")
    for ax in grid[-1]:
        ax.set_xlabel("communication round")
    marks, labels = grid[0][1].get_legend_handles_labels()
    fig.legend(
        [*marks, *state_patches()],
        [*labels, *STATE_COLORS],
        loc="outside upper right",
        ncols=5,
        frameon=False,
        fontsize=8,
    )
    return captioned(fig, caption)


def score_panel(ax: Axes, line: pd.DataFrame, color: str, threshold: float | None) -> None:
    """Draws an entry's score by round. Columns: round, score, unfrozen_score, state."""
    shade(ax, line["round"].to_numpy(), line["state"].to_numpy())
    ax.plot(line["round"], line["score"], ".-", color=color, label="Star-PFL")
    ax.plot(line["round"], line["unfrozen_score"], color="0.45", linewidth=0.9, linestyle=":", label="nothing frozen")
    if threshold is not None:
        ax.axhline(threshold, color="k", linewidth=0.8, linestyle="--")
    ax.set_ylim(-0.04, 1.04)


def state_patches() -> list[Patch]:
    return [Patch(facecolor=color, edgecolor="0.8") for color in STATE_COLORS.values()]


def shade(ax: Axes, rounds: np.ndarray, states: np.ndarray) -> None:
    """Colours the background of each round by the entry's state (a number)."""
    edges = np.append(rounds - 0.5, rounds[-1] + 0.5)
    colors = ListedColormap(list(STATE_COLORS.values()))
    ax.pcolormesh(edges, [-0.04, 1.04], states[None], cmap=colors, vmin=0, vmax=2, alpha=0.45, linewidth=0, zorder=0)


def raster(table: pd.DataFrame, caption: str = "", panel: str = "") -> Figure:
    """States of sampled entries: rows are entries in the order of the layers, columns rounds; a panel for each party.

    Columns: party, round, entry, layer, state. ``panel``: prefix of the titles.
    """
    parties = list(dict.fromkeys(table["party"]))
    fig, axes = plt.subplots(1, len(parties), figsize=(11.0, 5.4), layout="constrained", sharey=True)
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
        ax.set(xlabel="communication round", title=f"{panel} {party}".strip())
        ax.set_yticks((first + np.append(first[1:], len(grid))) / 2 - 0.5, layer[first])
        ax.tick_params(axis="y", length=0)
    fig.legend(state_patches(), STATE_COLORS, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return captioned(fig, caption)


def frozen_shares(layers: pd.DataFrame, why: pd.DataFrame, caption: str = "") -> Figure:
    """(d) frozen share by layer and on noise; (e) frozen share by reason.

    Columns of ``layers`` and ``why``: party, layer, round, mean, low, high.
    """
    parties = ("server", "clients")
    fig, axes = plt.subplots(2, 2, figsize=(10.5, 6.2), layout="constrained", sharex=True, sharey="row")
    names = [name for name in dict.fromkeys(layers["layer"]) if name not in STYLES]
    colors = plt.get_cmap("viridis")(np.linspace(0, 0.92, len(names)))
    styles = STYLES | {name: {"color": color, "linewidth": 1} for name, color in zip(names, colors, strict=True)}
    # upper row: a line for each layer
    for ax, party in zip(axes[0], parties, strict=True):
        for name, line in layers[layers["party"] == party].groupby("layer", sort=False):
            ax.plot(line["round"], line["mean"], label=name, **styles[name])
            if party == "clients":
                shown = {"color": styles[name]["color"], "alpha": 0.2 if name == "all" else 0.06}
                ax.fill_between(line["round"], line["low"], line["high"], linewidth=0, **shown)
        ax.set_title(f"(d) {party}" + (": means; bands over clients" if party == "clients" else ""))
    # lower row: stacked shares by reason
    for ax, party in zip(axes[1], parties, strict=True):
        parts = why[why["party"] == party].pivot(index="round", columns="layer", values="mean")[list(WHY)]
        ax.stackplot(parts.index, parts.T.to_numpy(), colors=list(WHY.values()), labels=list(WHY))
        if (noise := layers[(layers["party"] == party) & (layers["layer"] == "noise")]).size:
            ax.plot(noise["round"], noise["mean"], color=NOISE, linestyle="--", label="noise alone")
        ax.set(xlabel="communication round", title=f"(e) {party}")
    axes[0][0].set_ylabel("frozen (% of the layer)")
    axes[1][0].set_ylabel("frozen (% of all entries)")
    for row in axes:
        row[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return captioned(fig, caption)


def waits_and_scores(waits: pd.DataFrame, scores: pd.DataFrame, threshold: float | None, caption: str = "") -> Figure:
    """(f) waiting times after several rounds; (g) scores of the run and of noise.

    ``waits``: see ``results.traces.waits``; ``scores``: see ``results.traces.score_shares``.
    """
    fig, axes = plt.subplots(2, 2, figsize=(10.0, 6.0), layout="constrained", sharex="row", squeeze=False)
    rounds = sorted(waits["round"].unique())
    for ax, party in zip(axes[0], ("server", "clients"), strict=True):
        for place, t in enumerate(rounds):
            mine = waits[(waits["party"] == party) & (waits["round"] == t)]
            color = plt.get_cmap("plasma")(place / max(len(rounds), 2))
            ax.plot(mine["wait"], mine["entries"], "o-", color=color, markersize=4, label=f"round {t}")
        ax.set(xlabel="waiting time F (rounds)", yscale="log", title=f"(f) {party}")
    for ax, party in zip(axes[1], ("server", "clients"), strict=True):
        for of, style in (("run", dict(color="#2b6cb0", linewidth=1.5)), ("noise", dict(color=NOISE, linestyle="--"))):
            mine = scores[(scores["party"] == party) & (scores["of"] == of)]
            ax.stairs(mine["share"], np.append(mine["low"], 1.0), label=of, **style)
        if threshold is not None:
            ax.axvline(threshold, color="k", linewidth=0.8, linestyle=":")
        ax.set(xlabel="score (0 steady, 1 moving one way)", title=f"(g) {party}")
    axes[0][0].set_ylabel("entries")
    axes[1][0].set_ylabel("share of the entries (%)")
    axes[0][1].legend(frameon=False, fontsize=8)
    axes[1][1].legend(frameon=False, fontsize=8)
    return captioned(fig, caption)


def size_against_score(table: pd.DataFrame, correlations: Mapping[str, float], caption: str = "") -> Figure:
    """(h) |value| against score of the sampled entries. ``correlations``: party -> rank correlation over all entries.

    Columns: party, layer, value, score.
    """
    fig, axes = plt.subplots(1, len(correlations), figsize=(9.0, 3.6), layout="constrained", sharey=True)
    layers = list(dict.fromkeys(table["layer"]))
    palette = plt.get_cmap("viridis")(np.linspace(0, 0.92, len(layers)))
    for ax, (party, correlation) in zip(axes, correlations.items(), strict=True):
        for layer, color in zip(layers, palette, strict=True):
            mine = table[(table["party"] == party) & (table["layer"] == layer) & (table["score"] > 0)]
            ax.scatter(mine["value"].abs(), mine["score"], s=14, color=color, alpha=0.8, label=layer)
        ax.set(xlabel="|value|", xscale="log", ylim=(-0.04, 1.04))
        ax.set_title(f"(h) {party}: rank correlation {correlation:+.2f}", fontsize=10)
    axes[0].set_ylabel("score (0 steady, 1 moving one way)")
    axes[-1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return captioned(fig, caption)


def payload_and_accuracy(sent: pd.DataFrame, accuracy: pd.DataFrame, caption: str = "") -> Figure:
    """(i) upload of a client, per round and in total; (j) accuracy of the received and of the trained model.

    Columns of ``sent``: seed, round, percent, saved (total so far in percent of FedAvg's), noise; of ``accuracy``:
    panel, label, color, seed, round, value.
    """
    fig, axes = plt.subplots(1, 3, figsize=(11.5, 3.4), layout="constrained")
    band(axes[0], sent.rename(columns={"percent": "value"}), "each round", "#2b6cb0")
    band(axes[0], sent.rename(columns={"saved": "value"}), "sum so far", "#c44e52")
    if sent["noise"].notna().any():
        band(axes[0], sent.rename(columns={"noise": "value"}), "of noise, each round", NOISE)
    axes[0].axhline(100, color="0.6", linewidth=0.8, linestyle="--")
    axes[0].set(xlabel="communication round", ylabel="uploaded (% of FedAvg)", title="(i) payload")
    axes[0].legend(frameon=False, fontsize=8, loc="center right")
    for ax, (panel, mine) in zip(axes[1:], accuracy.groupby("panel", sort=False), strict=True):
        for (label, color), line in mine.groupby(["label", "color"], sort=False):
            band(ax, line, label, color)
        ax.set(xlabel="communication round", title=f"(j) {panel}")
    axes[1].set_ylabel("mean client accuracy (%)")
    axes[2].sharey(axes[1])
    axes[1].legend(frameon=False, fontsize=8, loc="lower right")
    return captioned(fig, caption)

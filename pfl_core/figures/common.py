"""What every paper's notebooks draw: who got what, and accuracy over rounds."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

NAMES = {
    "local": "Local",
    "fedavg": "FedAvg",
    "fedavg_ft": "FedAvg + FT",
    "fedselect": "FedSelect",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "fednova": "FedNova",
    "moon": "MOON",
    "fedpews": "FedPeWS",
    "fedpews_fixed": "FedPeWS-Fixed",
}
COLORS = {
    "local": "#7f7f7f",
    "fedavg": "#4c72b0",
    "fedavg_ft": "#55a868",
    "fedselect": "#c44e52",
    "fedprox": "#17a2b8",
    "scaffold": "#937860",
    "fednova": "#da8bc3",
    "moon": "#b8a01f",
    "fedpews": "#dd7a2a",
    "fedpews_fixed": "#8172b3",
}


def who_got_what(counts: np.ndarray, title: str = "") -> Figure:
    """Dots: clients along x, classes along y, area = training samples. counts [N, C]."""
    counts = np.asarray(counts)
    clients, classes = np.nonzero(counts)
    amount = counts[clients, classes]
    fig, ax = plt.subplots(figsize=(max(4.0, 0.35 * len(counts)), 3.2), layout="constrained")
    ax.scatter(clients, classes, s=160 * amount / counts.max(), color="#4c72b0", alpha=0.8)
    ax.set(xlabel="client", ylabel="class", title=title, xticks=range(len(counts)), yticks=range(counts.shape[1]))
    ax.margins(0.08)
    fig.text(0.99, 0.01, f"largest dot: {counts.max()} samples", ha="right", fontsize=7, color="0.4")
    return fig


def accuracy_curves(runs: pd.DataFrame, caption: str = "") -> Figure:
    """Mean client accuracy per round; the band spans the seeds. Columns: label, color, seed, round, value."""
    fig, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for (label, color), group in runs.groupby(["label", "color"], sort=False):
        band(ax, group, label, color)
    ax.set(xlabel="communication round", ylabel="mean client accuracy (%)")
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return captioned(fig, caption)


def band(ax: Axes, group: pd.DataFrame, label: str, color: str | tuple) -> None:
    """Mean over seeds as a line, their span as a band. Columns: round, value."""
    by_round = group.groupby("round")["value"].agg(["mean", "min", "max"])
    ax.plot(by_round.index, by_round["mean"], label=label, color=color)
    ax.fill_between(by_round.index, by_round["min"], by_round["max"], color=color, alpha=0.15, linewidth=0)


def dots(ax: Axes, x: np.ndarray, values: list[np.ndarray], color: str, label: str) -> None:
    """Every seed as a small dot, the means as a line."""
    for position, column in zip(x, values, strict=True):
        ax.plot(np.full(len(column), position), column, "o", color=color, markersize=3, alpha=0.5)
    ax.plot(x, [np.mean(column) for column in values], "-o", color=color, markersize=6, label=label)


def captioned(fig: Figure, caption: str) -> Figure:
    """Preset, data and seeds below the picture, so that it never travels without them."""
    if caption:
        fig.supxlabel(caption, fontsize=7, color="0.35")
    return fig

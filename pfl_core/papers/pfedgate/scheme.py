"""Diagram of pFedGate after the paper's Figures 1 and 2."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from pfl_core.study.plots import captioned
from pfl_core.study.style import DOUBLE, styled

PRIVATE, SHARED = "#f3e3c3", "#dbe6f4"  # colours of private and of shared parts


@styled
def gate_scheme() -> Figure:
    """Figures 1 and 2 of pFedGate: a client's round on the left, its gate on the right."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(DOUBLE, 3.3), layout="constrained", width_ratios=(1.25, 1))
    for ax, title in ((left, "a client's round"), (right, "its gate")):
        ax.set(xlim=(-0.1, 10.1), ylim=(0, 10), title=title)
        ax.set_axis_off()
    _box(left, 0, 8.3, 9.9, 1.3, "server: one dense model θ; each block: mean over the clients that sent it", SHARED)
    _box(left, 0, 5.2, 2.4, 1.3, "θ, all blocks", SHARED)
    _box(left, 0, 1.6, 2.4, 1.3, "a batch x", PRIVATE)
    _box(left, 3.1, 1.6, 2.3, 1.3, "gate φ", PRIVATE)
    _box(left, 6.2, 2.6, 3.0, 1.2, "importances G;\nknapsack: mask I", PRIVATE)
    _box(left, 6.2, 0.6, 3.7, 1.2, "scales M", PRIVATE)
    _box(left, 3.6, 5.2, 6.3, 1.3, "θ' = θ M' by blocks,  M' = I M:\nloss of x; gradients of θ and φ", PRIVATE)
    _arrow(left, (1.2, 8.3), (1.2, 6.5), "download")
    _arrow(left, (2.4, 5.85), (3.6, 5.85))
    _arrow(left, (2.4, 2.25), (3.1, 2.25))
    _arrow(left, (5.4, 2.5), (6.2, 3.2))
    _arrow(left, (5.4, 2.0), (6.2, 1.2))
    _arrow(left, (7.4, 3.8), (7.0, 5.2))
    _arrow(left, (9.55, 1.8), (9.55, 5.2))
    _arrow(left, (6.2, 6.5), (6.2, 8.3), "upload: blocks that\nany batch used")
    _box(right, 3.2, 8.4, 3.6, 1.1, "x, a batch of images", PRIVATE)
    _box(right, 1.6, 6.4, 6.8, 1.1, "switchable norm (layer, instance, batch)", PRIVATE)
    for x, name, what in ((0.2, "W₁ x₁ + b₁", "M: a scale"), (5.4, "W₂ x₁ + b₂", "G: an importance")):
        _box(right, x, 4.4, 4.4, 1.1, name, PRIVATE)
        _box(right, x, 2.4, 4.4, 1.1, "batch norm, sigmoid, mean", PRIVATE)
        _box(right, x, 0.4, 4.4, 1.1, f"{what} per block", PRIVATE)
        middle = x + 2.2
        _arrow(right, (5.0, 6.4), (middle, 5.5))
        _arrow(right, (middle, 4.4), (middle, 3.5))
        _arrow(right, (middle, 2.4), (middle, 1.5))
    _arrow(right, (5.0, 8.4), (5.0, 7.5))
    return captioned(fig, "blue: shared; sand: stays with the client")


def _box(ax: Axes, x: float, y: float, wide: float, high: float, text: str, color: str) -> None:
    ax.add_patch(FancyBboxPatch((x + 0.1, y + 0.1), wide - 0.2, high - 0.2, "round,pad=0.1", fc=color, ec="0.4"))
    ax.text(x + wide / 2, y + high / 2, text, ha="center", va="center", fontsize=6.2)


def _arrow(ax: Axes, start: tuple[float, float], stop: tuple[float, float], text: str = "") -> None:
    ax.annotate("", stop, start, arrowprops={"arrowstyle": "->", "color": "0.3"})
    if text:
        ax.text((start[0] + stop[0]) / 2 + 0.15, (start[1] + stop[1]) / 2, text, fontsize=6.2, color="0.3", va="center")

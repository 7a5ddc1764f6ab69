"""The style of all figures: page widths and fonts. Colours and looks: ``study.methods``."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
from cycler import cycler

from pfl_core.study.methods import BLACK, BLUE, DASHES, GREEN, GREY, ORANGE, SKY, VERMILLION, WINE  # noqa: F401

SINGLE, DOUBLE = 3.3, 6.9  # widths of a single-column and of a double-column figure, inches

SETTINGS: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.titlepad": 5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.columnspacing": 1.4,
    "legend.labelspacing": 0.35,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "axes.prop_cycle": cycler(color=[BLUE, VERMILLION, GREEN, ORANGE, SKY, WINE, GREY]),
    "pdf.fonttype": 42,  # embeds TrueType fonts, which publishers ask for
}
styled = mpl.rc_context(SETTINGS)  # decorator of every function that returns a figure

"""The style of all figures: page widths, fonts, and the looks of labels. Those of methods: ``study.methods``."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import pandas as pd

from pfl_core.study.methods import (  # noqa: F401  (colours and looks for figures)
    BLACK,
    BLUE,
    BROWN,
    DASHDOT,
    DASHED,
    DOTTED,
    GREEN,
    GREY,
    INDIGO,
    LONG,
    METHODS,
    OLIVE,
    ORANGE,
    PINK,
    PRINTED,
    SKY,
    SOLID,
    TEAL,
    VERMILLION,
    WINE,
    Look,
)  # fmt: skip

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
    "pdf.fonttype": 42,  # embeds TrueType fonts, which publishers ask for
}
styled = mpl.rc_context(SETTINGS)  # decorator of every function that returns a figure


LOOKS = {name: method.look for name, method in METHODS.items()}
COLORS = {name: look.color for name, look in LOOKS.items()}
DASHES: Any = (SOLID, DASHED, DOTTED, DASHDOT, LONG, (0, (3, 1, 1, 1, 1, 1)))  # of settings of one method
MARKERS = "osD^vPX<>phd"


def method_of(label: str) -> str | None:
    """The method whose display name starts the label ("FedSelect, α = 0.3"), or None."""
    starts = [shown for shown in PRINTED if label.startswith(shown)]
    return PRINTED[max(starts, key=len)] if starts else None


def looks(table: pd.DataFrame) -> dict[str, Look]:
    """The look of each label of a figure. Columns: label, color.

    A method's first label has the method's marker and dash pattern, and its further labels the next free dash patterns.
    Labels without a method's name take markers and dash patterns in order.
    """
    found: dict[str, Look] = {}
    first, others = table.drop_duplicates("label"), 0
    repeats: dict[str, int] = {}
    for label, color in zip(first["label"], first["color"], strict=True):
        if (method := method_of(label)) is None:
            found[label] = Look(color, MARKERS[others % len(MARKERS)], DASHES[others % len(DASHES)])
            others += 1
        else:
            look, place = LOOKS[method], repeats.get(method, 0)
            dashes = [look.dash, *(dash for dash in DASHES if dash != look.dash)]
            found[label] = Look(color, look.marker, dashes[place % len(dashes)])
            repeats[method] = place + 1
    return found

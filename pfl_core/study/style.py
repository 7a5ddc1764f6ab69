"""The style of all figures: page widths, fonts, and a colour, marker and dash pattern for each method.

Colours are those of Okabe and Ito and of Tol's "muted" scheme, which readers with a colour vision deficiency can tell
apart. Methods of one paper also differ in the marker, so that figures can be read in grey.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import matplotlib as mpl
import pandas as pd

from pfl_core.study import names

SINGLE, DOUBLE = 3.3, 6.9  # widths of a single-column and of a double-column figure, inches

BLACK, GREY, ORANGE, SKY, GREEN, BLUE = "#000000", "#7a7a7a", "#e69f00", "#56b4e9", "#009e73", "#0072b2"
VERMILLION, PINK, WINE, INDIGO, OLIVE, TEAL, BROWN = (
    "#d55e00", "#cc79a7", "#882255", "#332288", "#999933", "#44aa99", "#7f4f24",
)  # fmt: skip

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


class Look(NamedTuple):
    """How a line and its markers are drawn."""

    color: Any
    marker: str
    dash: Any = "-"


SOLID: Any = "-"
DASHED, DOTTED, DASHDOT, LONG = (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2))
METHODS = {
    "local": Look(GREY, "s", DOTTED),
    "fedavg": Look(BLACK, "o", SOLID),
    "fedavg_ft": Look(SKY, "^", DASHED),
    "fedselect": Look(VERMILLION, "D", SOLID),
    "fedselect_gradltn": Look(WINE, "d", SOLID),
    "ditto": Look(ORANGE, "v", DASHED),
    "fedpac": Look(GREEN, "P", DASHDOT),
    "fedrep": Look(PINK, "X", DASHED),
    "fedper": Look(BROWN, "<", DASHDOT),
    "fedbabu": Look(OLIVE, ">", DOTTED),
    "lg_fedavg": Look(BLUE, "p", LONG),
    "lotteryfl": Look(INDIGO, "h", DASHDOT),
    "fedprox": Look(SKY, "*", DASHED),
    "scaffold": Look(GREEN, "X", DASHDOT),
    "fednova": Look(PINK, "^", DOTTED),
    "moon": Look(OLIVE, "v", LONG),
    "fedpews": Look(VERMILLION, "s", SOLID),
    "fedpews_fixed": Look(BLUE, "D", DASHED),
    "star_pfl": Look(WINE, "*", SOLID),
    "fedbn": Look(SKY, "v", DASHDOT),
    "fedap": Look(ORANGE, "X", LONG),
    "pfedgate": Look(INDIGO, "D", SOLID),
    "pfedme": Look(OLIVE, "<", DASHDOT),
    "perfedavg": Look(WINE, ">", DOTTED),
    "fedem": Look(VERMILLION, "P", DASHED),
    "heterofl": Look(GREEN, "*", LONG),
    "fedmask": Look(TEAL, "H", DOTTED),
    "fedmd": Look(BROWN, "d", DASHDOT),
}
COLORS = {name: look.color for name, look in METHODS.items()}
DASHES: Any = (SOLID, DASHED, DOTTED, DASHDOT, LONG, (0, (3, 1, 1, 1, 1, 1)))  # of settings of one method
MARKERS = "osD^vPX<>phd"
_SHOWN_AS = {text: name for name, text in names.NAMES.items()} | {
    "GradLTN": "fedselect_gradltn",
    "FedAvg + PeWS": "fedpews",
    "FedProx + PeWS": "fedpews",
}  # display name, at the start of a label -> method


def method_of(label: str) -> str | None:
    """The method whose display name starts the label ("FedSelect, α = 0.3"), or None."""
    starts = [shown for shown in _SHOWN_AS if label.startswith(shown)]
    return _SHOWN_AS[max(starts, key=len)] if starts else None


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
            look, place = METHODS[method], repeats.get(method, 0)
            dashes = [look.dash, *(dash for dash in DASHES if dash != look.dash)]
            found[label] = Look(color, look.marker, dashes[place % len(dashes)])
            repeats[method] = place + 1
    return found

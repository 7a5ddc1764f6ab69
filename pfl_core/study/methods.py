"""The methods in tables and figures: one entry each, with display name, look, and the papers' other names for it.

Colours are those of Okabe and Ito and of Tol's "muted" scheme, which readers with a colour vision deficiency can tell
apart. Methods of one paper also differ in the marker, so that figures can be read in grey.
"""

from __future__ import annotations

from typing import Any, NamedTuple

BLACK, GREY, ORANGE, SKY, GREEN, BLUE = "#000000", "#7a7a7a", "#e69f00", "#56b4e9", "#009e73", "#0072b2"
VERMILLION, PINK, WINE, INDIGO, OLIVE, TEAL, BROWN = (
    "#d55e00", "#cc79a7", "#882255", "#332288", "#999933", "#44aa99", "#7f4f24",
)  # fmt: skip


class Look(NamedTuple):
    """How a line and its markers are drawn."""

    color: Any
    marker: str
    dash: Any = "-"


class Method(NamedTuple):
    """A method as readers see it."""

    name: str
    look: Look
    printed: tuple[str, ...] = ()  # other names in the papers' tables


SOLID: Any = "-"
DASHED, DOTTED, DASHDOT, LONG = (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2))
METHODS = {
    "local": Method("Local", Look(GREY, "s", DOTTED), ("Local Only",)),
    "fedavg": Method("FedAvg", Look(BLACK, "o", SOLID)),
    "fedavg_ft": Method("FedAvg + FT", Look(SKY, "^", DASHED), ("FedAvg-FT",)),
    "fedselect": Method("FedSelect", Look(VERMILLION, "D", SOLID)),
    "fedselect_gradltn": Method("FedSelect (GradLTN)", Look(WINE, "d", SOLID), ("GradLTN",)),
    "ditto": Method("Ditto", Look(ORANGE, "v", DASHED)),
    "fedpac": Method("FedPAC", Look(GREEN, "P", DASHDOT)),
    "fedrep": Method("FedRep", Look(PINK, "X", DASHED)),
    "fedper": Method("FedPer", Look(BROWN, "<", DASHDOT)),
    "fedbabu": Method("FedBABU", Look(OLIVE, ">", DOTTED)),
    "lg_fedavg": Method("LG-FedAvg", Look(BLUE, "p", LONG)),
    "lotteryfl": Method("LotteryFL", Look(INDIGO, "h", DASHDOT)),
    "fedprox": Method("FedProx", Look(SKY, "*", DASHED)),
    "scaffold": Method("SCAFFOLD", Look(GREEN, "X", DASHDOT)),
    "fednova": Method("FedNova", Look(PINK, "^", DOTTED)),
    "moon": Method("MOON", Look(OLIVE, "v", LONG)),
    "fedpews": Method(
        "FedPeWS", Look(VERMILLION, "s", SOLID), ("FedAvg+PeWS", "FedProx+PeWS", "FedAvg + PeWS", "FedProx + PeWS")
    ),
    "fedpews_fixed": Method("FedPeWS-Fixed", Look(BLUE, "D", DASHED)),
    "star_pfl": Method("Star-PFL", Look(WINE, "*", SOLID)),
    "fedbn": Method("FedBN", Look(SKY, "v", DASHDOT)),
    "fedap": Method("FedAP", Look(ORANGE, "X", LONG)),
    "pfedgate": Method("pFedGate", Look(INDIGO, "D", SOLID)),
    "pfedme": Method("pFedMe", Look(OLIVE, "<", DASHDOT)),
    "perfedavg": Method("Per-FedAvg", Look(WINE, ">", DOTTED)),
    "fedem": Method("FedEM", Look(VERMILLION, "P", DASHED)),
    "heterofl": Method("HeteroFL", Look(GREEN, "*", LONG)),
    "fedmask": Method("FedMask (as read here)", Look(TEAL, "H", DOTTED), ("FedMask",)),
    "fedmd": Method("FedMD", Look(BROWN, "d", DASHDOT)),
}
NAMES = {key: method.name for key, method in METHODS.items()}
# A name in a paper, or at the start of a label -> the registered name. "FedProx+PeWS" is FedPeWS on another base.
PRINTED = {name: key for key, method in METHODS.items() for name in (method.name, *method.printed)}

"""The methods in tables and figures: one entry each, with display name, look, and the papers' other names for it.

Colours are those of Okabe and Ito and of Tol's "muted" scheme, which readers with a colour vision deficiency can tell
apart. Methods of one paper also differ in the marker, so that figures can be read in grey.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
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


class Names(dict[str, str]):
    """Registered name -> display name; a class of one's own ("mine:HalfStep") has its own name."""

    def __missing__(self, method: str) -> str:
        return method.rpartition(":")[2] if isinstance(method, str) else method  # NaN stays NaN


SOLID: Any = "-"
DASHED, DOTTED, DASHDOT, LONG = (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2))
DASHES: Any = (SOLID, DASHED, DOTTED, DASHDOT, LONG, (0, (3, 1, 1, 1, 1, 1)))  # of settings of one method
MARKERS = "os^vPX<>phH8"  # of labels without a method's name; a diamond is the paper's
METHODS = {
    "local": Method("Local", Look(GREY, "s", DOTTED), ("Local Only",)),
    "fedavg": Method("FedAvg", Look(BLACK, "o", SOLID)),
    "fedavg_ft": Method("FedAvg + FT", Look(SKY, "^", DASHED), ("FedAvg-FT",)),
    "fedselect": Method("FedSelect", Look(VERMILLION, "*", SOLID)),
    "fedselect_gradltn": Method("FedSelect (GradLTN)", Look(WINE, "H", SOLID), ("GradLTN",)),
    "ditto": Method("Ditto", Look(ORANGE, "v", DASHED)),
    "fedpac": Method("FedPAC", Look(GREEN, "P", DASHDOT)),
    "fedrep": Method("FedRep", Look(PINK, "X", DASHED)),
    "fedper": Method("FedPer", Look(BROWN, "<", DASHDOT)),
    "fedbabu": Method("FedBABU", Look(OLIVE, ">", DOTTED)),
    "lg_fedavg": Method("LG-FedAvg", Look(BLUE, "p", LONG)),
    "lotteryfl": Method("LotteryFL", Look(INDIGO, "8", DASHDOT)),
    "fedprox": Method("FedProx", Look(SKY, "*", DASHED)),
    "scaffold": Method("SCAFFOLD", Look(GREEN, "X", DASHDOT)),
    "fednova": Method("FedNova", Look(PINK, "^", DOTTED)),
    "moon": Method("MOON", Look(OLIVE, "v", LONG)),
    "fedpews": Method(
        "FedPeWS", Look(VERMILLION, "s", SOLID), ("FedAvg+PeWS", "FedProx+PeWS", "FedAvg + PeWS", "FedProx + PeWS")
    ),
    "fedpews_fixed": Method("FedPeWS-Fixed", Look(BLUE, "8", DASHED)),
    "star_pfl": Method("Star-PFL", Look(WINE, "*", SOLID)),
    "fedbn": Method("FedBN", Look(SKY, "v", DASHDOT)),
    "fedap": Method("FedAP", Look(ORANGE, "X", LONG)),
    "pfedgate": Method("pFedGate", Look(INDIGO, "h", SOLID)),
    "pfedme": Method("pFedMe", Look(OLIVE, "<", DASHDOT)),
    "perfedavg": Method("Per-FedAvg", Look(WINE, ">", DOTTED)),
    "fedem": Method("FedEM", Look(VERMILLION, "P", DASHED)),
    "heterofl": Method("HeteroFL", Look(GREEN, "*", LONG)),
    "fedmask": Method("FedMask (as read here)", Look(TEAL, "H", DOTTED), ("FedMask",)),
    "fedmd": Method("FedMD", Look(BROWN, "8", DASHDOT)),
}
NAMES = Names({key: method.name for key, method in METHODS.items()})
# A name in a paper, or at the start of a label -> the registered name. "FedProx+PeWS" is FedPeWS on another base.
PRINTED = {name: key for key, method in METHODS.items() for name in (method.name, *method.printed)}
COLORS = {key: method.look.color for key, method in METHODS.items()}  # a notebook may change them


def method_of(label: str) -> str | None:
    """The method whose display name starts the label ("FedSelect, α = 0.3"), or None."""
    return PRINTED.get(max(filter(label.startswith, PRINTED), key=len, default=""))


def label_looks(labels: Iterable[str], colors: Mapping[str, Any] | None = None) -> dict[str, Look]:
    """The look of each label: that of the method whose name it begins with, else the next colour, marker and dash.

    Further labels of a method have its marker and the next free dashes. ``colors`` gives some labels colours of their
    own, or whole looks, as another figure has them.
    """
    given, method = colors or {}, {label: method_of(label) for label in map(str, labels)}
    taken = {COLORS[name] for name in method.values() if name}
    taken |= {own.color if isinstance(own, Look) else own for own in given.values()}
    free = [color for color in dict.fromkeys(COLORS.values()) if color not in taken] or list(COLORS.values())
    found: dict[str, Look] = {}
    places: Counter[str | None] = Counter()
    for label, name in method.items():
        place = places[name]
        if name is None:
            look = Look(*(options[place % len(options)] for options in (free, MARKERS, DASHES)))
        else:
            usual = METHODS[name].look
            dashes = sorted(DASHES, key=lambda dash: dash != usual.dash)
            look = usual._replace(color=COLORS[name], dash=dashes[place % len(DASHES)])
        own = given.get(label, look.color)
        found[label] = own if isinstance(own, Look) else look._replace(color=own)
        places[name] += 1
    return found

"""One file per method; importing this package registers them all."""

from pfl_core.algorithms import (  # noqa: F401  (they register themselves)
    ditto,
    fedap,
    fedavg,
    fedbn,
    fedem,
    fedmask,
    fedmd,
    fednova,
    fedpac,
    fedprox,
    heterofl,
    local,
    lotteryfl,
    moon,
    partial,
    perfedavg,
    pfedme,
    scaffold,
)
from pfl_core.algorithms.fedpews import fixed as fedpews_fixed
from pfl_core.algorithms.fedpews import method as fedpews
from pfl_core.algorithms.fedselect import gradltn as fedselect_gradltn
from pfl_core.algorithms.fedselect import method as fedselect
from pfl_core.algorithms.pfedgate import method as pfedgate
from pfl_core.algorithms.star_pfl import likeness as star_pfl_likeness
from pfl_core.algorithms.star_pfl import method as star_pfl

__all__ = [
    "ditto",
    "fedap",
    "fedavg",
    "fedbn",
    "fedem",
    "fedmask",
    "fedmd",
    "fednova",
    "fedpac",
    "fedpews",
    "fedpews_fixed",
    "fedprox",
    "fedselect",
    "fedselect_gradltn",
    "heterofl",
    "local",
    "lotteryfl",
    "moon",
    "partial",
    "perfedavg",
    "pfedgate",
    "pfedme",
    "scaffold",
    "star_pfl",
    "star_pfl_likeness",
]

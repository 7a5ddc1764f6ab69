"""One file per method; importing this package registers them all."""

from pfl_core.algorithms import (
    fedavg,
    fednova,
    fedpac,
    fedpews,
    fedprox,
    fedselect,
    fedselect_gradltn,
    local,
    lotteryfl,
    moon,
    scaffold,
)

__all__ = [
    "fedavg",
    "fednova",
    "fedpac",
    "fedpews",
    "fedprox",
    "fedselect",
    "fedselect_gradltn",
    "local",
    "lotteryfl",
    "moon",
    "scaffold",
]

"""One file per method; importing this package registers them all."""

from pfl_core.algorithms import (
    ditto,
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
    partial,
    perfedavg,
    pfedgate,
    pfedme,
    scaffold,
)

__all__ = [
    "ditto",
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
    "partial",
    "perfedavg",
    "pfedgate",
    "pfedme",
    "scaffold",
]

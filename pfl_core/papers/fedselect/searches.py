"""FedSelect: the searches of its comparisons. The grids were committed before the searches."""

from __future__ import annotations

from pfl_core.papers.fedselect.settings import BASELINES, VALIDATED
from pfl_core.study.search import Search

# For all methods. The middle rate is that of FedSelect's released code; the paper names no strengths. Not in the paper:
# 50 validation images per class and client, on which no run trains.
RATES = (0.01, 0.05, 0.25)
_RATE = {"lr": RATES}
LAMBDAS = (0.05, 0.1, 0.5, 1.0)  # Ditto's weight
HEAD_RATES = (0.01, 0.05, 0.25)
_QUICK_RATE = {"lr": (0.03, 0.1, 0.3)}  # at quick only the rate, on ten validation images per class and client
SEARCHES = {
    ("quick", "cifar10"): (
        *(Search(name, _QUICK_RATE) for name in BASELINES),
        Search("fedselect", _QUICK_RATE, {"alpha": 0.30}),
    ),
    ("real", VALIDATED): (
        Search("local", _RATE),
        Search("fedavg", _RATE),
        Search("fedavg_ft", _RATE),
        Search("ditto", {**_RATE, "lam": LAMBDAS}),
        Search("fedpac", {**_RATE, "lam": (0.1, 1.0, 10.0)}),
        Search("fedrep", {**_RATE, "lr_head": HEAD_RATES}),
        Search("fedper", _RATE),
        Search("fedbabu", _RATE),
        Search("lg_fedavg", _RATE),
        # searched at α = 0.30; the values are used at all limits
        Search("fedselect", {**_RATE, "p": (0.01, 0.05, 0.25)}, {"alpha": 0.30}),
    ),
}

"""pFedGate: what may decide its claims, and the searches behind its comparisons; committed before the runs.

Where nothing is said of a claim, it needs all conditions of ``study.criteria``.
"""

from __future__ import annotations

from pfl_core.papers.pfedgate.settings import BASELINES, SETTINGS
from pfl_core.study.criteria import CONDITIONS, CONVERGENCE, MECHANISM, SEARCH, Criteria, Waiver
from pfl_core.study.search import Search

# The paper's grid of rates is 0.005 to 0.5; these are its middle, and an end that is best is gone beyond. Strengths are
# the paper's grids (Ditto's weight, pFedMe's, the rate of FedRep's head); the rate of the gate has its 0.5 and 1.5 and
# (ours) 5; where the gate starts is ours (0: its scales at a half, the paper's; 3: near 1). Validation images are the
# paper's: a fifth of each client's, on which no final run trains either.
RATES = (0.03, 0.1, 0.3)
_RATE = {"lr": RATES}
PROBED = {"keep_ratio": 0.5, "probe": True}  # as the main comparison runs it
# pFedGate is searched at s = 0.5; the values serve all budgets, so that a curve over s has one rate.
_GATE = Search("pfedgate", {**_RATE, "lr_gate": (0.5, 1.5, 5.0)}, PROBED, {"scale_bias_init": (0.0, 3.0)})
_MASKS = Search("fedmask", {"lr_mask": (5.0, 50.0, 500.0)})
SEARCHES = {
    # rates alone, to save time: all methods keep the strengths that they have by default
    ("quick", "cifar10"): (
        _GATE,
        _MASKS,
        *(Search(name, _RATE) for name in (*BASELINES, "perfedavg") if name != "fedmask"),
    ),
    ("real", "fashion_mnist"): (
        _GATE,
        Search("fedavg", _RATE),
        Search("fedavg_ft", _RATE),
        Search("local", _RATE),
        Search("fedrep", {**_RATE, "lr_head": (0.005, 0.01, 0.05, 0.1, 0.5)}),
        Search("ditto", {**_RATE, "lam": (0.05, 0.1, 0.5, 0.8)}),
        Search("heterofl", _RATE),
        Search("lg_fedavg", _RATE),
        Search("perfedavg", _RATE),
        Search("fedem", _RATE),
        Search("pfedme", {**_RATE, "lam": (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)}),
        _MASKS,
    ),
}

CRITERIA = Criteria(
    waived={
        3: Waiver(CONDITIONS, "a bound"),
        7: Waiver((CONVERGENCE, MECHANISM, SEARCH), "times and bytes of single steps"),
        8: Waiver((CONVERGENCE, MECHANISM, SEARCH), "times of single steps"),
        9: Waiver(CONDITIONS, "counts of what is sent"),
        19: Waiver((SEARCH,), "about the gates of one method"),
        20: Waiver((CONVERGENCE, SEARCH), "about how the gates of one method change while they train"),
        22: Waiver(CONDITIONS, "counts of what is kept"),
        23: Waiver((SEARCH,), "one model scored in several orders"),
    },
    searched=SETTINGS.searched,
)

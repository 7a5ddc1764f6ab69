"""Star-PFL: what may decide its claims, and the searches behind its comparisons; committed before the runs.

Where nothing is said of a claim, it needs all conditions of ``study.criteria``.
"""

from __future__ import annotations

from pfl_core.papers.star_pfl.settings import SETTINGS
from pfl_core.study.criteria import MECHANISM, SEARCH, Criteria, Waiver
from pfl_core.study.search import Search

# The rate of the released code is the middle one, for all methods; thresholds and windows are the paper's. Validation
# images are the paper's: a fifth of each client's; no final run trains on them.
_RATE = {"lr": (0.003, 0.01, 0.03)}
_METHODS = {
    "local": {},
    "fedavg": {},
    "fedbn": {},
    "fedap": {"lam": (0.3, 0.5, 0.7)},
    "lotteryfl": {"target_density": (0.1, 0.5)},
    "star_pfl": {},
}
SEARCHES = {
    ("real", task): tuple(Search(name, {**_RATE, **strengths}) for name, strengths in _METHODS.items())
    for task in ("axial", "sagital")
}
# the rate alone, to save time; the middle one is the setting's
SEARCHES["quick", "axial"] = tuple(Search(name, {"lr": (0.02, 0.05, 0.1)}) for name in _METHODS)

CRITERIA = Criteria(
    waived={
        4: Waiver((SEARCH,), "counts of what a round sends and computes"),
        6: Waiver((SEARCH,), "about the parameters of one method"),
        7: Waiver((SEARCH,), "about the parameters of one method"),
        12: Waiver((MECHANISM, SEARCH), "asks whether the mechanism acts"),
    },
    searched=SETTINGS.searched,
)

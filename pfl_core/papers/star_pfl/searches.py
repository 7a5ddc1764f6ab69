"""Star-PFL: the hyperparameter searches. The grids were committed before the searches."""

from __future__ import annotations

from pfl_core.study.search import Search

# Every search also tries the setting's rate, at real the released code's 0.01. From a grid of 0.003 to 0.03, Local and
# FedAvg ended at 0.27, two extensions above it, before any other method was searched; so the grid for real lies higher.
# Thresholds and windows are the paper's and not searched.
# Validation images are the paper's split, a fifth of each client's images; no final run trains on them.
_RATE = {"lr": (0.03, 0.1, 0.3)}
_STRENGTHS: dict[str, dict[str, tuple[float, ...]]] = {
    "local": {},
    "fedavg": {},
    "fedbn": {},
    "fedap": {"lam": (0.3, 0.5, 0.7)},
    "lotteryfl": {"target_density": (0.1, 0.5)},
    "star_pfl": {},
}
SEARCHES = {
    ("real", task): tuple(Search(name, {**_RATE, **strengths}) for name, strengths in _STRENGTHS.items())
    for task in ("axial", "sagital")
}
# quick: learning rates only, to save time; the middle of the grid is the setting's rate
SEARCHES["quick", "axial"] = tuple(Search(name, {"lr": (0.02, 0.05, 0.1)}) for name in _STRENGTHS)

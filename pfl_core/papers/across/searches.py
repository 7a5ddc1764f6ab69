"""The searches of the comparison of all methods; committed before the real runs.

Every method has the same grid of learning rates, and a grid for its own strength if it has one. The grids of strengths
are those of the papers' searches where they have one. Every search is on validation images with the first seed.
"""

from __future__ import annotations

from pfl_core.papers.across.settings import SETTINGS
from pfl_core.registry import METHODS
from pfl_core.study.search import Search

Grid = dict[str, tuple[float, ...]]
RATES = (0.03, 0.1, 0.3)
STRENGTHS: dict[str, Grid] = {
    "ditto": {"lam": (0.05, 0.1, 0.5, 1.0)},
    "fedap": {"lam": (0.3, 0.5, 0.7)},
    "fedpac": {"lam": (0.1, 1.0, 10.0)},
    "fedpews": {"lam": (0.5, 2.0, 10.0), "tau": (0.2, 0.5, 0.8)},
    "fedpews_fixed": {"tau": (0.2, 0.5, 0.8)},
    "fedprox": {"mu": (0.001, 0.01, 0.1, 1.0)},
    "fedrep": {"lr_head": RATES},
    "fedselect": {"alpha": (0.05, 0.3, 0.5, 0.8)},
    "fedselect_gradltn": {"keep_rate": (0.25, 0.5, 0.75)},
    "lotteryfl": {"target_density": (0.1, 0.5)},
    "moon": {"mu_con": (0.1, 1.0, 5.0, 10.0)},
    "perfedavg": {"alpha": RATES},
    "pfedgate": {"lr_gate": (0.5, 1.5, 5.0)},
    "pfedme": {"lam": (0.1, 1.0, 10.0)},
}
EACH: dict[str, Grid] = {"pfedgate": {"scale_bias_init": (0.0, 3.0)}}


def searches() -> tuple[Search, ...]:
    """A search for every method. FedMask trains scores of masks, so its only rate is that of the scores."""
    grids = {name: {"lr": RATES, **STRENGTHS.get(name, {})} for name in METHODS}
    grids["fedmask"] = {"lr_mask": (5.0, 50.0, 500.0)}
    return tuple(Search(name, grid, each=EACH.get(name, {})) for name, grid in grids.items())


SEARCHES = {(preset, name): searches() for preset in ("quick", "real") for name in SETTINGS.settings[preset]}

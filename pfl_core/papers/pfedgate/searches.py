"""pFedGate: the hyperparameter searches. The grids were committed before the searches."""

from __future__ import annotations

from pfl_core.papers.pfedgate.settings import BASELINES
from pfl_core.study.search import Search

# Learning rates: the middle of the paper's grid (0.005 to 0.5), widened where an end is best. Strengths: the paper's
# grids (Ditto's and pFedMe's weights, the rate of FedRep's head). Rate of the gate: the paper's 0.5 and 1.5, and 5 (not
# in the paper). Initial bias of the gate's scales: 0 (the paper's, scales at 0.5) and 3 (not in the paper, scales near
# 1). Validation images are the paper's split, a fifth of each client's images; no final run trains on them.
RATES = (0.03, 0.1, 0.3)
_RATE = {"lr": RATES}
PROBED = {"keep_ratio": 0.5, "probe": True}  # the fields of the main comparison's runs
# pFedGate is searched at s = 0.5. All budgets use the result, so that a curve over s has one rate.
_GATE = Search("pfedgate", {**_RATE, "lr_gate": (0.5, 1.5, 5.0)}, PROBED, {"scale_bias_init": (0.0, 3.0)})
_MASKS = Search("fedmask", {"lr_mask": (5.0, 50.0, 500.0)})
OTHERS = tuple(name for name in (*BASELINES, "perfedavg") if name != "fedmask")
STRENGTHS: dict[str, dict[str, tuple[float, ...]]] = {
    "fedrep": {"lr_head": (0.005, 0.01, 0.05, 0.1, 0.5)},
    "ditto": {"lam": (0.05, 0.1, 0.5, 0.8)},
    "pfedme": {"lam": (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)},
}
SEARCHES = {
    # learning rates only, to save time; strengths are the methods' defaults
    ("quick", "cifar10"): (
        _GATE,
        _MASKS,
        *(Search(name, _RATE) for name in OTHERS),
    ),
    ("real", "fashion_mnist"): (
        _GATE,
        *(Search(name, {**_RATE, **STRENGTHS.get(name, {})}) for name in OTHERS),
        _MASKS,
    ),
}

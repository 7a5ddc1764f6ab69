"""FedSelect: the searches of its comparisons. The grids were committed before the searches."""

from __future__ import annotations

from pfl_core.papers.fedselect.settings import BASELINES, CORRUPTED, FEW_IMAGES, VALIDATED
from pfl_core.study.search import Search

# The middle rate is that of FedSelect's released code; the paper names no strengths. Not in the paper: 50 validation
# images per class and client, on which no run trains. At quick only the rate, on ten such images.
RATES = (0.01, 0.05, 0.25)
STRENGTHS: dict[str, dict[str, tuple[float, ...]]] = {
    "ditto": {"lam": (0.05, 0.1, 0.5, 1.0)},
    "fedpac": {"lam": (0.1, 1.0, 10.0)},
    "fedrep": {"lr_head": RATES},
    "fedselect": {"p": RATES},
}
METHODS: dict[str, dict] = {**dict.fromkeys(BASELINES, {}), "fedselect": {"alpha": 0.30}}  # used at all limits
SEARCHES = {
    ("quick", "cifar10"): tuple(Search(name, {"lr": (0.03, 0.1, 0.3)}, fields) for name, fields in METHODS.items()),
    **{
        ("real", setting): tuple(
            Search(name, {"lr": RATES, **STRENGTHS.get(name, {})}, fields) for name, fields in METHODS.items()
        )
        for setting in (VALIDATED, CORRUPTED, FEW_IMAGES)
    },
}

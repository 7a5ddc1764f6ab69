"""How Star-PFL's tables and stored runs are matched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pfl_core.study.compare import Comparison, Fields


@dataclass(frozen=True)
class StarPFLComparison(Comparison):
    def run_fields(self, run: Mapping[str, Any], fields: Fields) -> Fields:
        """alpha is that of the split, which varies in the tables."""
        return {**fields, "alpha": run["dirichlet"]} if "dirichlet" in run else fields


COMPARISON = StarPFLComparison(
    "star_pfl",
    defaults={"client_weighting": "samples"},
    varied=("threshold_global", "threshold_local", "thaw"),
    datasets={"Axial": "organamnist", "Sagital": "organsmnist"},  # never with another set in their place
    settings={"Axial": ("axial",), "Sagital": ("sagital",)},
    # the round is that of the best validation accuracy (this project's choice: the paper does not say)
    metrics={"mean_client_accuracy": "acc_mean_picked", "final_accuracy": "acc_pooled"},
    units={"mean_client_accuracy": 0.01},  # the paper prints shares, records hold percent
)

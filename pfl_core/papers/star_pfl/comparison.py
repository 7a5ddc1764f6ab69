"""Matches the cells of Star-PFL's tables with stored runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pfl_core.study.comparison import Comparison, Fields


@dataclass(frozen=True)
class StarPFLComparison(Comparison):
    def run_fields(self, run: Mapping[str, Any], fields: Fields) -> Fields:
        """Adds the α of the split, which the tables vary."""
        return {**fields, "alpha": run["dirichlet"]} if "dirichlet" in run else fields


COMPARISON = StarPFLComparison(
    "star_pfl",
    defaults={"client_weighting": "samples"},
    varied=("threshold_global", "threshold_local", "thaw"),
    datasets={"Axial": "organamnist", "Sagital": "organsmnist"},  # no stand-ins
    settings={"Axial": ("axial",), "Sagital": ("sagital",)},
    # accuracy in the round with the best validation accuracy (not in the paper, which does not name the round)
    metrics={"mean_client_accuracy": "acc_mean_picked", "final_accuracy": "acc_pooled"},
    units={"mean_client_accuracy": 0.01},  # the paper prints fractions, records hold percent
)

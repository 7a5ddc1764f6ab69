"""The runs that the cells of Star-PFL's tables are about."""

from __future__ import annotations

from pfl_core.study.published import Tables

TABLES = Tables(
    datasets={"Axial": "organamnist", "Sagital": "organsmnist"},  # no stand-ins
    settings={"Axial": ("axial",), "Sagital": ("sagital",)},
    metrics={
        # In the round with the best validation accuracy; the paper names neither the round nor the scoring point.
        "mean_client_accuracy": ("acc_mean_picked", "acc_mean_picked_trained", "acc_mean_picked_merged"),
        "rounds_to_convergence": ("rounds_to_convergence", "rounds_to_95_val"),
    },
    units={"mean_client_accuracy": 0.01},  # the paper prints fractions, records hold percent
    fields={"alpha": "partition_alpha"},
)

"""The runs that the cells of FedPeWS's tables are about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pfl_core.papers.fedpews.settings import BEST
from pfl_core.study.published import Runs, Tables

BASES = {"FedAvg+PeWS": {}, "FedProx+PeWS": {"base": "fedprox"}}  # a method's name in the tables -> its base
WARM_UPS = ("fedpews", "fedpews_fixed")  # the tables print τ = 0 for the others
# Fields that Table 3 does not state, at the best values of Tables 7 and 8, as the runs have them.
UNSTATED = {
    ("table3", dataset): dict(zip(("lam", "tau"), BEST[setting], strict=True))
    for dataset, setting in (("CIFAR-MNIST", "cifar_mnist"), ("{Path-OCT-Tissue}MNIST", "path_oct_tissue"))
}


def runs(cell: Any, fields: dict[str, Any]) -> Iterator[Runs]:
    """The runs of a cell. Tables 2 and 6 have a setting for each rate of the server; Figure 5 has four clients."""
    if cell.method in BASES:
        fields = {**UNSTATED.get((cell.table, cell.dataset), {}), **fields, **BASES[cell.method]}
    if cell.key not in WARM_UPS:
        fields = {name: value for name, value in fields.items() if name != "tau"}
    setting = f"lr_server={fields['lr_server']:g}" if "lr_server" in fields else ""
    yield Runs(cell.key, fields, setting="four clients" if cell.table == "figure5" else setting)


TABLES = Tables(
    datasets={
        "CIFAR-MNIST": "cifar_mnist",
        "{Path-OCT-Tissue}MNIST": "path_oct_tissue",
        "Synthetic-32K": "synthetic_32k",
        "Synthetic-3.2K": "synthetic_3200",
    },
    stand_ins={
        "Synthetic-32K": ("synthetic_3200",),
        "CIFAR-MNIST": ("synthetic_3200",),
        "{Path-OCT-Tissue}MNIST": ("mnist+fashion_mnist+cifar10", "synthetic_3200"),
    },
    settings={
        "Synthetic-32K": ("lr_server=1", "lr_server=0.5", "lr_server=0.25"),
        "Synthetic-3.2K": ("lr_server=0.1",),
    },
    # The shared model is scored on all test data, which is the pooled accuracy. Figure 5's text states no round.
    metrics={"final_accuracy": "acc_pooled", "accuracy": ("acc_late", "acc_pooled")},
    fields={"lambda": "lam", "eta_g": "lr_server"},
    runs=runs,
    figures=("figure5",),
)

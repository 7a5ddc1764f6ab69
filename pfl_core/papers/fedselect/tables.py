"""The runs that the cells of FedSelect's tables are about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pfl_core.papers.fedselect.settings import LAYERS
from pfl_core.runs import RunSpec
from pfl_core.study.published import ANY, Runs, Tables

RULES: dict[str, tuple[dict[str, Any], ...]] = {  # Table 3; it prints no limit, and "random" has two readings
    "Personalize Least": ({"ranking": "least_change", "alpha": ANY},),
    "Random": ({"masks": "random", "alpha": ANY}, {"ranking": "random", "alpha": ANY}),
    **{f"Layer {name}": ({"masks": "layers", "group": name, "alpha": ANY},) for name in "ABCD"},
}


def runs(cell: Any, fields: dict[str, Any]) -> Iterator[Runs]:
    """The runs of a cell."""
    rule = fields.pop("rule", None)
    for of_rule in RULES[rule] if rule else ({},):
        yield Runs(cell.key, {**fields, **of_rule})


def with_group(spec: RunSpec, changed: dict[str, Any]) -> dict[str, Any]:
    """The changed fields, with ``group`` in place of the layers: Table 3's letter (this project's choice, LAYERS), or
    the layers' names where they are no group of the table.
    """
    if "layers" not in changed:
        return changed
    letters = {(layer,): letter for letter, layer in LAYERS.get(spec.model["name"], {}).items()}
    layers = tuple(changed["layers"])
    return {k: v for k, v in changed.items() if k != "layers"} | {"group": letters.get(layers, ", ".join(layers))}


TABLES = Tables(
    datasets={
        "CIFAR-10": "cifar10",
        "CIFAR10-C": "cifar10_c",
        "Mini-ImageNet": "mini_imagenet",
        "OfficeHome": "office_home",
    },
    stand_ins={"CIFAR-10": ("fashion_small", "digits")},
    metrics={"mean_client_accuracy": "acc_mean", "final_accuracy": "acc_pooled"},
    runs=runs,
    best_of={("table1", "FedSelect"): "table2"},
)

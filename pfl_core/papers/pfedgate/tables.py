"""The runs that the cells of pFedGate's tables are about. Fields have other names there: s, B, step, alpha."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from pfl_core.algorithm import methods
from pfl_core.papers.pfedgate.settings import GATE_PARTS
from pfl_core.study.published import ANY, Runs, Tables, parse_variant, table

GATES: dict[str, dict[str, Any]] = {  # Table 4; the paper does not say what replaces the sigmoid
    "full": {},
    **{part.variant: {name: part.without} for name, part in GATE_PARTS.items()},
    "no_sigmoid": {"sigmoid": False, "without_sigmoid": ANY},
}
SUFFIXES = {  # field of a cell -> its usual value, and what the setting's name has for another
    "alpha": (0.4, "alpha={:g}"),
    "step": (1.0, "epochs={:g}"),
    "sampling": (1.0, "sampled"),
}
DATASETS = {"CIFAR10": "cifar10", "CIFAR100": "cifar100", "EMNIST": "emnist", "FEMNIST": "femnist"}


def runs(cell: Any, fields: dict[str, Any]) -> Iterator[Runs]:
    """The runs of a cell."""
    words = [
        text.format(value) for name, (usual, text) in SUFFIXES.items() if (value := fields.pop(name, usual)) != usual
    ]
    words += ["novel"] if cell.table == "table8" else []
    method, suffix = cell.key, ", ".join(words)
    fields |= GATES[fields.pop("gate", "full")]
    fields.pop("model", None)  # "local" or "global" selects a metric of the same run
    way = fields.pop("public", "").removesuffix("_transfer")  # Table 6
    if method == "fedmd":
        fields |= methods()["fedmd"].variants[f"{DATASETS[cell.dataset]}_{way}"]
    if method == "heterofl":
        fields.pop("keep_ratio")  # 0.55 follows from its two sizes of networks
    if cell.table == "table2":
        batch = f"batch {fields.pop('batch'):g}"
        yield Runs(method, fields | ({"e_step": ANY} if method == "fedem" else {}), setting=batch)
    elif (cell.table, cell.metric, method) == ("table8", "acc_mean_novel", "fedavg"):
        yield from (Runs(name, fields, suffix) for name in ("fedavg_ft", "fedavg"))  # novel clients fine-tune
    elif cell.table == "table9":
        yield from (Runs(method, fields, way) for way in ("", "each round"))
    elif cell.table != "table7" and (cell.metric, method) != ("gap", "fedavg"):  # rates; a difference of two runs
        yield Runs(method, fields, suffix)


METRICS: dict[str, str | tuple[str, ...]] = {
    "acc_mean": "acc_pooled",  # the paper's mean weights clients by their test images
    "sparsity_achieved": "achieved_keep_ratio",
    "rounds_to_90pct": "rounds_to_90",
    "rounds_to_80pct_relative": ("relative_rounds_to_80", "rounds_to_80"),  # only ratios of it; no run has the first
    "acc_mean_participating": "acc_participating",
    "acc_mean_novel": "acc_novel",
    "gap": "novel_gap",
    "acc_mean_local_global_gap": "local_global_gap",
    "acc_bottom_decile_local_global_gap": "local_global_gap_decile",
    "time_ms": "step_ratio",
    "peak_mem_mb": "peak_ratio",
}


def metrics(cell: Any) -> str | tuple[str, ...]:
    """The metrics of a cell, see ``Tables.metrics``."""
    known = METRICS.get(cell.metric, cell.metric)
    return f"global_{known}" if parse_variant(cell.variant).get("model") == "global" else known


def relative_to(cell: Any) -> float:
    """Of a time or memory in Table 2, FedAvg's with the same batches; 1 of other numbers."""
    return _fedavg_costs()[cell.metric, parse_variant(cell.variant)["batch"]] if cell.table == "table2" else 1.0


@cache
def _fedavg_costs() -> dict[tuple[str, float | str], float]:
    """FedAvg's numbers in Table 2, by metric and batch size."""
    rows = [row for row in table("pfedgate", 2).itertuples() if row.method == "FedAvg"]
    return {(row.metric, parse_variant(row.variant)["batch"]): row.value for row in rows}


TABLES = Tables(
    datasets=DATASETS,
    settings={"EMNIST": ("emnist", "fashion_mnist", "mnist", "cifar10")},  # cifar10: of the small presets
    stand_ins={
        "CIFAR10": ("fashion_small", "digits"),
        "EMNIST": ("fashion_mnist", "mnist", "fashion_small", "digits"),
    },
    metrics=metrics,
    relative_to=relative_to,
    fields={"s": "keep_ratio", "B": "blocks_per_tensor"},
    runs=runs,
)

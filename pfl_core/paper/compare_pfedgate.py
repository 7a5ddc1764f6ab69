"""What a number of pFedGate's tables asks for, and what a run of ours is, in the paper's words: s, B, step, alpha."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pfl_core.paper.results import DEFAULTS
from pfl_core.stated import GATE_PARTS

Fields = dict[str, float | str]

# What the tables leave unsaid of their runs; a run that departs from it fits no cell that does not name it.
USUAL: Fields = {
    **{"s": 0.5, "B": 5.0, "alpha": 0.4, "step": 1.0, "sampling": 1.0, "novel": 0.0, "gate": "full", "public": "own"},
    **{name: value for name, value in DEFAULTS["pfedgate"].items() if name not in ("keep_ratio", "blocks_per_tensor")},
}
RENAMED = {"keep_ratio": "s", "blocks_per_tensor": "B"}
ABLATIONS = {(name, str(part.without)): part.variant for name, part in GATE_PARTS.items()}  # Table 4
PUBLIC = {  # Table 6: (clients' data, public data)
    ("femnist", "emnist"): "near_transfer",
    ("femnist", "cifar10"): "far_transfer",
    ("cifar10", "cifar100"): "near_transfer",
    ("cifar10", "femnist"): "far_transfer",
}
# The paper's mean weighs clients by their test samples: our pooled accuracy.
METRICS = {
    "acc_mean": "acc_pooled",
    "sparsity_achieved": "achieved_keep_ratio",
    "rounds_to_90pct": "rounds_to_90",
    "acc_mean_participating": "acc_participating",
    "acc_mean_novel": "acc_novel",
    "gap": "novel_gap",
    "acc_mean_local_global_gap": "local_global_gap",
    "acc_bottom_decile_local_global_gap": "local_global_gap_decile",
}
NOVEL = {"table8": 0.2}


def method_of(cell: Any) -> str:
    """Whose runs fill a cell. FedAvg's novel clients fine-tune its model (section 4.11), and so have FedAvg-FT's runs.

    Its gap is between two runs: no run fills it, notebook 05 shows it.
    """
    tuned = cell.table in NOVEL and cell.key == "fedavg" and METRICS.get(cell.metric) in ("acc_novel", "novel_gap")
    return ("fedavg_ft" if cell.metric == "acc_mean_novel" else "") if tuned else cell.key


def fields_of(run: Mapping[str, Any], fields: Fields) -> Fields:
    """A run's fields; frame included. ``fields`` are those of its variant."""
    given = {RENAMED.get(name, name): value for name, value in fields.items()}
    for (name, value), part in ABLATIONS.items():
        if given.get(name) == value:
            given.pop(name)
            given["gate"] = part if "gate" not in given else "several changes"
    if "public" in given or run["method"] == "fedmd":
        given["public"] = PUBLIC.get((run["dataset"], given.get("public")), "another set")
        given.pop("public_normalise", None)
    if run["method"] == "heterofl":
        given.setdefault("s", 0.55)
    frame = {"alpha": run.get("dirichlet"), "step": run.get("epochs")}
    frame |= {"sampling": run.get("participation"), "novel": run.get("novel")}
    given |= {name: float(value) for name, value in frame.items() if value is not None and not math.isnan(value)}
    setting = run.get("setting", "")
    if setting == "pathological" or ", lr=" in setting or ", lr_gate=" in setting:  # no table searches a rate
        given["setting"] = setting
    return {**USUAL, **given}


def wanted(cell: Any, fields: Fields) -> tuple[Fields, str]:
    """The fields that a cell's run has, and our metric."""
    theirs = {**USUAL, "novel": NOVEL.get(cell.table, 0.0), **fields}
    metric = METRICS.get(cell.metric, cell.metric)
    if theirs.pop("model", "local") == "global":
        metric = f"global_{metric}"
    return theirs, metric

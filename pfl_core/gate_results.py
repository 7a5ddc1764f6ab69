"""What pFedGate's runs tell beyond accuracy: traffic, clients that never took part, gates and labels."""

from __future__ import annotations

import numpy as np

from pfl_core import overlap
from pfl_core.algorithms.pfedgate import PFedGate
from pfl_core.runs import Record


def sent(record: Record) -> dict[str, object]:
    """A run's traffic: s' and q of the last round, megabytes of all uploads, and its accuracy."""
    method = record.spec.build_method()
    label = record.spec.method["name"]
    if isinstance(method, PFedGate):
        label += f", s = {method.keep_ratio:g}" + ("" if method.execution == "dense" else ", sliced")
    kept = float(record.values("kept_ratio").iloc[-1].mean()) if "kept_ratio" in record.series else 1.0
    numbers = record.summary()
    return {
        "label": label,
        "seed": record.spec.seed,
        "s'": kept,
        "q": float(record.values("upload").iloc[-1].mean() / record.num_params),
        "uploads, MB": numbers["upload_mb"],
        "accuracy": numbers["acc_pooled"],
    }


def novel(record: Record) -> dict[str, float]:
    """Where some clients never took part: pooled accuracies (percent) of those that did and of those that never did."""
    spec = record.spec
    if not spec.novel:
        return {}
    count = record.values("count").iloc[-1].to_numpy()
    known = np.zeros(len(count), dtype=bool)
    known[np.concatenate([spec.schedule.clients(len(count), spec.seed, t) for t in range(spec.rounds)])] = True
    correct = record.values("correct").iloc[-1].to_numpy()
    parts = {"acc_participating": known, "acc_novel": ~known}
    return {name: float(100 * correct[here].sum() / count[here].sum()) for name, here in parts.items()}


def labels_held(record: Record) -> np.ndarray:
    """[N, C] bool: which labels a client trains on."""
    return np.array(record.clients["train"]) > 0


def gate_rank(record: Record) -> dict[str, float]:
    """Figure 4 in a number: over pairs of clients, rank correlation of their gates' distance and common labels."""
    if record.spec.partition["name"] != "pathological" or "gate_distances" not in record.arrays:
        return {}
    common = overlap.common_share(labels_held(record))
    return {"gate_rank": overlap.rank_correlation(np.array(record.arrays["gate_distances"]), common, draws=0)[0]}

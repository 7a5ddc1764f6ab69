"""Clients that take part in the training and clients that never do, for Tables 3 and 8."""

from __future__ import annotations

import numpy as np

from pfl_core.runs import Record


def novel(record: Record) -> dict[str, float]:
    """Pooled accuracies (percent) of participating and of novel clients, and ``novel_gap``, their difference.

    Empty for runs without novel clients.
    """
    spec = record.spec
    if not spec.novel:
        return {}
    correct, count = record.last("correct"), record.last("count")
    absent = np.zeros(len(count), dtype=bool)
    absent[spec.schedule.novel_clients(len(count), spec.seed).numpy()] = True
    groups = {"acc_participating": ~absent, "acc_novel": absent}
    accuracy = {name: float(100 * correct[group].sum() / count[group].sum()) for name, group in groups.items()}
    return accuracy | {"novel_gap": accuracy["acc_participating"] - accuracy["acc_novel"]}

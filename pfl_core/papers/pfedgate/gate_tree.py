"""Figure 4 of the paper: do clients with common labels have similar gates?"""

from __future__ import annotations

import numpy as np

from pfl_core.runs import Record
from pfl_core.study import similarity as overlap


def labels_held(record: Record) -> np.ndarray:
    """[N, C] bool: which labels a client trains on."""
    return np.array(record.clients["train"]) > 0


def gate_rank(record: Record) -> dict[str, float]:
    """``gate_rank``: rank correlation of gate distance and common labels over pairs of clients (Figure 4)."""
    if record.spec.partition["name"] != "pathological" or "gate_distances" not in record.arrays:
        return {}
    common = overlap.common_share(labels_held(record))
    return {"gate_rank": overlap.mantel(common, np.array(record.arrays["gate_distances"]), draws=0, ranks=True)[0]}

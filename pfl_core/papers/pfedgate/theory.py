"""What stored runs show of the theory in the pFedGate paper, as metrics of a run (claims 24 and 25).

Theorem 1 is read as: the smaller the budget s, the smaller is the gap between test and training loss. Proposition 1 is
read as: the gate's values M lie between 0 and 1. The assumptions and constants of both are not checked.
"""

from __future__ import annotations

import numpy as np

from pfl_core.papers.pfedgate.gates import gate_values
from pfl_core.runs import Record


def loss_gap(record: Record) -> dict[str, float]:
    """``loss_gap``: test loss minus training loss in the last scored round, mean over the clients that have both.

    The test loss is that of the aggregated model, the training loss the mean over the batches of the round. Both are
    means over images. Empty without a recorded training loss.
    """
    if "train_loss" not in record.series:
        return {}
    test, train = record.values("loss"), record.values("train_loss")
    return {"loss_gap": float((test.iloc[-1] - train.loc[test.index[-1]]).mean())}


def gate_bounds(record: Record) -> dict[str, float]:
    """``gate_smallest``, ``gate_largest``: of the stored gate values, over rounds and blocks; empty without them.

    Stored are means over batches and clients, in which a block that was not kept counts as 0.
    """
    values = gate_values(record)
    if values is None:
        return {}
    return {"gate_smallest": float(np.min(values)), "gate_largest": float(np.max(values))}

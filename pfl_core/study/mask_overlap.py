"""Overlap of the personal masks in a record, by tensor, and whether common classes explain it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pfl_core.runs import Record
from pfl_core.study import similarity
from pfl_core.study.labels import method_fields


def masks(record: Record) -> dict[str, tuple[np.ndarray, int]]:
    """Tensor -> (number of entries that are personal for both clients [N, N], size of the tensor).

    Empty if the record has no masks.
    """
    names = [name.removeprefix("overlap/") for name in record.arrays if name.startswith("overlap/")]
    return {n: (np.array(record.arrays[f"overlap/{n}"]), int(record.arrays[f"size/{n}"])) for n in names}


def head_weight(record: Record) -> str:
    """The weight of the last linear layer, the tensor of FedSelect's Figure 4."""
    return [name for name in masks(record) if name.endswith("weight")][-1]


def overlaps(record: Record, *tensors: str) -> dict[str, np.ndarray]:
    """The three overlap matrices [N, N] of one tensor's masks, or of several tensors together."""
    # several tensors count as one: add their intersections and sizes
    stored = [masks(record)[tensor] for tensor in tensors]
    intersection = np.sum([pair[0] for pair in stored], axis=0)
    entries = sum(pair[1] for pair in stored)
    return {
        "iou_raw": similarity.iou_raw(intersection),
        "iou_minmax": similarity.iou_minmax(intersection),
        "iou_chance": similarity.iou_chance(intersection, entries),
    }


def overlap_contrast(record: Record, *tensors: str, draws: int = 0) -> dict[str, float]:
    """For each normalization of these tensors' overlap: mean over pairs, contrast, and with ``draws`` its p-value."""
    common = similarity.common_classes(np.array(record.clients["train"]))
    pairs = np.triu_indices(len(common), 1)  # each pair of clients once
    out = {}
    for name, matrix in overlaps(record, *tensors).items():
        values = matrix[pairs]
        out[f"{name}_mean"] = float(np.nanmean(values)) if not np.isnan(values).all() else np.nan
        out[f"{name}_contrast"], p_value = similarity.contrast(matrix, common, draws)
        out |= {f"{name}_p": p_value} if draws else {}
    return out


def layer_contrasts(records: Sequence[Record]) -> pd.DataFrame:
    """A row per run and weight tensor, with the contrast of ``iou_chance``.

    Columns: key (of the run), alpha, seed, tensor, personal (personal fraction of the tensor), contrast, p_value.
    """
    rows = []
    for record in records:
        alpha = method_fields(record.spec)["alpha"]
        for tensor, (intersection, entries) in masks(record).items():
            if not tensor.endswith("weight"):
                continue
            contrasts = overlap_contrast(record, tensor, draws=similarity.DRAWS)
            rows.append(
                {
                    "key": record.key,
                    "alpha": alpha,
                    "seed": record.spec.seed,
                    "tensor": tensor,
                    "personal": float(np.diag(intersection).mean() / entries),
                    "contrast": contrasts["iou_chance_contrast"],
                    "p_value": contrasts["iou_chance_p"],
                }
            )
    return pd.DataFrame(rows)

"""How far the masks that a run kept overlap, tensor by tensor, and whether common classes explain it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pfl_core.runs import Record
from pfl_core.study import similarity


def masks(record: Record) -> dict[str, tuple[np.ndarray, int]]:
    """Tensor -> (entries that two clients both have personal [N, N], entries of the tensor), where masks were kept."""
    names = [name.removeprefix("overlap/") for name in record.arrays if name.startswith("overlap/")]
    return {n: (np.array(record.arrays[f"overlap/{n}"]), int(record.arrays[f"size/{n}"])) for n in names}


def head_weight(record: Record) -> str:
    """The weights of the last linear layer, Figure 4's tensor."""
    return [name for name in masks(record) if name.endswith("weight")][-1]


def overlaps(record: Record, *tensors: str) -> dict[str, np.ndarray]:
    """The three overlap matrices [N, N] of one tensor's masks, or of several as one."""
    found = masks(record)
    both, entries = (sum(part) for part in zip(*(found[tensor] for tensor in tensors), strict=True))
    return {
        "iou_raw": similarity.iou_raw(both),
        "iou_minmax": similarity.iou_minmax(both),
        "iou_chance": similarity.iou_chance(both, entries),
    }


def overlap_contrast(record: Record, *tensors: str) -> dict[str, float]:
    """For each normalisation of these tensors' overlap: its mean over pairs, contrast, and permutation p-value."""
    common = similarity.common_classes(np.array(record.clients["train"]))
    pairs = np.triu_indices(len(common), 1)
    out = {}
    for name, matrix in overlaps(record, *tensors).items():
        values = matrix[pairs]
        out[f"{name}_mean"] = float(np.nanmean(values)) if not np.isnan(values).all() else np.nan
        out[f"{name}_contrast"], out[f"{name}_p"] = similarity.contrast(matrix, common)
    return out


def layer_contrasts(records: Sequence[Record]) -> pd.DataFrame:
    """A row per run and weight tensor; the overlap is ``iou_chance``.

    Columns: alpha, seed, tensor, personal (its share of the tensor), contrast, p_value.
    """
    rows = []
    for record in records:
        for tensor, (both, entries) in masks(record).items():
            if not tensor.endswith("weight"):
                continue
            found = overlap_contrast(record, tensor)
            rows.append(
                {
                    "alpha": record.spec.build_method().alpha,
                    "seed": record.spec.seed,
                    "tensor": tensor,
                    "personal": float(np.diag(both).mean() / entries),
                    "contrast": found["iou_chance_contrast"],
                    "p_value": found["iou_chance_p"],
                }
            )
    return pd.DataFrame(rows)

"""Overlap of FedSelect's masks: matrices sorted by classes, and contrasts by limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from pfl_core.papers.fedselect.labels import BY_TENSOR
from pfl_core.runs import Record
from pfl_core.study import mask_overlap, similarity
from pfl_core.study.frames import method_fields

PER_TENSOR = f", {BY_TENSOR}"


def scope(record: Record) -> str:
    """Which entries the run ranks together: "" for one ranking, PER_TENSOR for a ranking of each tensor by itself."""
    return PER_TENSOR if method_fields(record.spec)["selection_scope"] == "per_tensor" else ""


def by_scope(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The runs of each scope that has any, one ranking first."""
    groups = {name: [record for record in records if scope(record) == name] for name in ("", PER_TENSOR)}
    return {name: runs for name, runs in groups.items() if runs}


def order(record: Record) -> list[int]:
    """The clients, sorted by their classes, so that neighbours have common classes."""
    held = [tuple(np.flatnonzero(row)) for row in record.clients["train"]]
    return sorted(range(len(held)), key=held.__getitem__)


def classes(record: Record) -> list[str]:
    """The classes of each client in ``order``: "0,3"."""
    held = [",".join(map(str, np.flatnonzero(row))) for row in record.clients["train"]]
    return [held[k] for k in order(record)]


def matrix(record: Record, tensor: str, measure: str, *, numbered: bool = True) -> pd.DataFrame:
    """The overlap [N, N] of a tensor's masks, clients in ``order``, named by their classes: "4 (0,3)" or "0,3"."""
    clients = order(record)
    names = [f"{k} ({text})" if numbered else text for k, text in zip(clients, classes(record), strict=True)]
    return pd.DataFrame(mask_overlap.overlaps(record, tensor)[measure][np.ix_(clients, clients)], names, names)


def by_limit(runs: Sequence[Record], tensor: str, measure: str) -> dict[float, pd.DataFrame]:
    """α -> ``matrix``, for runs of one seed."""
    ordered = sorted(runs, key=lambda run: run.spec.method["alpha"])
    return {run.spec.method["alpha"]: matrix(run, tensor, measure) for run in ordered}


def long(matrices: Mapping[object, pd.DataFrame], column: str) -> pd.DataFrame:
    """A row for each entry of the matrices. Columns: i, j, value, and ``column`` with the matrix's key."""
    frames = [
        table.rename_axis("i").melt(ignore_index=False, var_name="j").assign(**{column: key})
        for key, table in matrices.items()
    ]
    return pd.concat(frames).reset_index()


def contrasts(runs: Sequence[Record], *tensors: str) -> pd.DataFrame:
    """A row per run: alpha, seed and ``mask_overlap.overlap_contrast`` of the tensors."""
    rows = [
        {
            "alpha": run.spec.method["alpha"],
            "seed": run.spec.seed,
            **mask_overlap.overlap_contrast(run, *tensors, draws=similarity.DRAWS),
        }
        for run in runs
    ]
    return pd.DataFrame(rows)


def chance_check(densities: Sequence[float], clients: int = 10, entries: int = 20_000) -> pd.DataFrame:
    """Mean overlap of random masks by density, plain and corrected for chance."""
    stream, rows = np.random.default_rng(0), []
    pairs = np.triu_indices(clients, 1)
    for density in densities:
        masks = (stream.random((clients, entries)) < density).astype(float)
        shared = masks @ masks.T
        raw, corrected = similarity.iou_raw(shared)[pairs], similarity.iou_chance(shared, entries)[pairs]
        rows.append((density, raw.mean(), corrected.mean()))
    return pd.DataFrame(rows, columns=["density", "iou_raw", "iou_chance"]).set_index("density")

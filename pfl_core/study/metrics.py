"""The metrics frame: a row for each run and metric. ``compare`` and the claim checks take it as input."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pfl_core.runs import Record, RunSpec
from pfl_core.study.checks import failed, flat, inert, validation_change
from pfl_core.study.distance import differences
from pfl_core.study.frames import data_name, method_fields, published_set
from pfl_core.study.mask_overlap import head_weight, masks, overlap_contrast
from pfl_core.study.settings import PaperSettings

COLUMNS = (
    "paper dataset setting clients dirichlet epochs participation novel model method variant seed preset data rounds "
    "partial flat differs stale key metric value"
).split()

ExtraMetrics = Callable[[Record], dict[str, float]]
RunMetrics = Mapping[str, dict[str, Any]]  # of one run, see `run_metrics`


def variant(spec: RunSpec, own_fields: Mapping[str, Any]) -> str:
    """The reading and the fields in which a run's method differs from its paper's settings: "alpha=0.5;p=0.1".

    ``own_fields`` are the fields that the paper's settings give the method. Several budgets of pFedGate are written as
    ``budgets``. Fields for probing are left out, because they do not change the results.
    """
    reading = spec.method.get("reading", "paper")
    # the fields that are not written: those of the reading, replaced by those of the paper's settings
    plain = dataclasses.asdict(type(spec.build_method()).reading(reading)) | dict(own_fields)
    parts = [] if reading == "paper" else [f"reading={reading}"]
    for name, value in method_fields(spec).items():
        if name == "keep_ratio" and isinstance(value, tuple):
            parts.append(f"budgets={' and '.join(map(str, value))}")
        elif value != plain[name] and name not in ("probe", "probe_epochs", "probe_whole"):
            parts.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}")
    return ";".join(parts)


def metrics_frame(runs: Iterable[RunMetrics]) -> pd.DataFrame:
    """A row per run and metric, with COLUMNS.

    - ``rounds``: completed rounds. ``partial``: whether the run was stopped early; ``data`` then says so as well.
    - ``flat``: whether its accuracy no longer changed in the last rounds, see ``checks.flat``.
    - ``clients``: number of clients. ``novel``: fraction of clients that never take part.
    - ``dirichlet``: alpha of a Dirichlet partition, else NaN.
    - ``differs``: in which respects the run differs from the paper's setting ("rounds, network"), see ``distance``.
    """
    rows = [
        {**run["tags"], "metric": metric, "value": value} for run in runs for metric, value in run["metrics"].items()
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def run_metrics(record: Record, settings: PaperSettings, extra: Sequence[ExtraMetrics] = ()) -> RunMetrics:
    """The ``tags`` of one run (COLUMNS without the last two) and its ``metrics`` (name -> value), as JSON data.

    Metrics of the last round: those of ``Record.summary``; ``uplink_fraction``, the values that a client sends relative
    to the whole model; and, if masks were stored, for the head's weight: ``iou_raw`` and ``iou_chance`` (means over
    pairs of clients) and ``iou_contrast`` (of ``iou_chance``, pairs with a common class minus pairs without). Metrics
    of the whole run: ``train_images`` (mean over clients), ``roughness``, and ``validation_change``, ``inert`` and
    ``failed`` of ``study.checks``. The functions in ``extra`` add further metrics. ``settings``: those of the run's
    paper.
    """
    spec = record.spec
    tags = {
        "paper": spec.paper,
        "dataset": published_set(record),
        "setting": spec.setting,
        "clients": spec.clients,
        "dirichlet": spec.identity(written_out=True)["partition"].get("alpha", math.nan),
        "epochs": spec.train.epochs,
        "participation": spec.participation,
        "novel": spec.novel,
        "model": spec.model["name"],
        "method": spec.method["name"],
        "variant": variant(spec, settings.fields_of(spec)),
        "seed": spec.seed,
        "preset": spec.preset_label,
        "data": data_name(record) + (f", {record.length} rounds" if record.partial else ""),
        "rounds": record.rounds,
        "partial": record.partial,
        "flat": flat(record),
        "differs": ", ".join(differences(spec, record.rounds, settings)),
        "stale": record.stale,
        "key": record.key,
    }
    # metrics: last round, then whole run, then the paper's own, then mask overlap
    numbers = record.summary()
    if "upload" in record.series:
        numbers["uplink_fraction"] = float(record.values("upload").iloc[-1].mean() / record.num_params)
    if "train" in record.clients:
        numbers["train_images"] = float(np.sum(record.clients["train"], axis=1).mean())
    numbers["roughness"] = roughness(record)
    numbers |= {"validation_change": validation_change(record), "inert": inert(record)}
    numbers["failed"] = failed(record)
    for function in extra:
        numbers |= function(record)
    if masks(record):
        contrasts = overlap_contrast(record, head_weight(record))
        numbers |= {"iou_raw": contrasts["iou_raw_mean"], "iou_chance": contrasts["iou_chance_mean"]}
        numbers["iou_contrast"] = contrasts["iou_chance_contrast"]
    return {"tags": tags, "metrics": {name: float(value) for name, value in numbers.items()}}


def roughness(record: Record) -> float:
    """Sample standard deviation (points) of the changes of ``acc_mean`` between scored rounds, in the second half.

    NaN with fewer than two changes. Lower is smoother; comparable between runs with the same ``eval_every``.
    """
    curve = record.reported_curve()["acc_mean"]
    return float(curve[curve.index >= record.rounds / 2].diff().std())

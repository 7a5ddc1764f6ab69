"""From records to tidy data frames: what figures draw, claims are checked on, and tables show."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from pfl_core import presets
from pfl_core.results import (
    fedpews,
    pfedgate,
    pfedgate_parts,
    star_pfl,
    star_pfl_freezing,
    star_pfl_likeness,
    star_pfl_traces,
)
from pfl_core.results.endings import same_end
from pfl_core.results.mask_overlap import head_weight, layer_contrasts, masks, overlap_contrast, overlaps
from pfl_core.results.named import data_name, dataset, where
from pfl_core.results.rates import by_rate
from pfl_core.runs import Record, RunSpec

__all__ = [
    "TIDY",
    "by_rate",
    "clients",
    "curves",
    "data_name",
    "dataset",
    "fedpews",
    "head_weight",
    "layer_contrasts",
    "masks",
    "overlap_contrast",
    "overlaps",
    "pfedgate",
    "pfedgate_parts",
    "roughness",
    "same_end",
    "settings",
    "star_pfl",
    "star_pfl_freezing",
    "star_pfl_likeness",
    "star_pfl_traces",
    "summaries",
    "tidy",
    "variant",
    "where",
]

TIDY = (
    "paper dataset setting clients dirichlet epochs participation novel model method variant seed preset data rounds "
    "partial stale metric value"
).split()

NUMBERS: dict[str, tuple[Callable[[Record], dict[str, float]], ...]] = {  # paper -> what else is told of its runs
    "fedpews": (fedpews.to_target, fedpews.warmup, fedpews.own_groups),
    "star_pfl": (star_pfl.numbers, star_pfl_likeness.numbers),
    "pfedgate": (pfedgate.gate_numbers, pfedgate_parts.novel, pfedgate_parts.gate_rank),
}


def settings(spec: RunSpec) -> dict[str, object]:
    """The method's fields, defaults written out."""
    return dataclasses.asdict(spec.build_method())


def summaries(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run: method, its fields, seed, data, preset, setting, where, and the numbers of ``Record.summary``."""
    rows = []
    for record in records:
        spec = record.spec
        frame = {"method": spec.method["name"], "seed": spec.seed, "preset": spec.made_for, "setting": spec.setting}
        found = {"where": where(record), "data": data_name(record)}
        rows.append({**frame, **found, **settings(record.spec), **record.summary()})
    return pd.DataFrame(rows)


def variant(spec: RunSpec) -> str:
    """The reading, and the fields in which the method differs from it and its paper's settings: "alpha=0.5;p=0.1".

    pFedGate's budgets are ``budgets`` if they are several; that a run is probed makes it no other one.
    """
    reading = spec.method.get("reading", "paper")
    plain = dataclasses.asdict(type(spec.build_method()).reading(reading)) | presets.own_fields(spec)
    parts = [] if reading == "paper" else [f"reading={reading}"]
    for name, value in settings(spec).items():
        if name == "keep_ratio" and isinstance(value, tuple):
            parts.append(f"budgets={' and '.join(map(str, value))}")
        elif value != plain[name] and name not in ("probe", "probe_whole"):
            parts.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}")
    return ";".join(parts)


def tidy(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run and metric, with the columns that ``paper.compare`` and the claims take.

    ``rounds`` are those done; ``partial`` says whether the run was stopped early, and then ``data`` says so as well.
    ``clients`` is their number, ``dirichlet`` the alpha of a Dirichlet split (else not a number), ``novel`` the
    share that never takes part. Metrics of the last round: those of ``Record.summary``; ``uplink_fraction``, what a
    client sends relative to the whole model; and where masks were kept, of the head's weights, ``iou_raw`` and
    ``iou_chance`` (chance-corrected; means over client pairs) and ``iou_contrast`` (chance-corrected, pairs with a
    common class minus pairs without). Of the whole run: ``train_images``, a client's, on average, and
    ``roughness``. And those of the functions that ``NUMBERS`` has for the run's paper.
    """
    rows = []
    for record in records:
        spec = record.spec
        base = {
            "paper": spec.paper,
            "dataset": dataset(spec),
            "setting": spec.setting,
            "clients": spec.clients,
            "dirichlet": spec.identity(written_out=True)["partition"].get("alpha", math.nan),
            "epochs": spec.train.epochs,
            "participation": spec.participation,
            "novel": spec.novel,
            "model": spec.model["name"],
            "method": spec.method["name"],
            "variant": variant(spec),
            "seed": spec.seed,
            "preset": spec.made_for,
            "data": data_name(record) + (f", {record.length} rounds" if record.partial else ""),
            "rounds": record.rounds,
            "partial": record.partial,
            "stale": record.stale,
        }
        numbers = record.summary()
        if "upload" in record.series:
            numbers["uplink_fraction"] = float(record.values("upload").iloc[-1].mean() / record.num_params)
        if "train" in record.clients:
            numbers["train_images"] = float(np.sum(record.clients["train"], axis=1).mean())
        numbers["roughness"] = roughness(record)
        for told in NUMBERS.get(spec.paper, ()):
            numbers |= told(record)
        if masks(record):
            found = overlap_contrast(record, head_weight(record))
            numbers |= {"iou_raw": found["iou_raw_mean"], "iou_chance": found["iou_chance_mean"]}
            numbers["iou_contrast"] = found["iou_chance_contrast"]
        rows += [{**base, "metric": metric, "value": value} for metric, value in numbers.items()]
    return pd.DataFrame(rows, columns=TIDY)


def roughness(record: Record) -> float:
    """Sample deviation (points) of the changes in ``acc_mean`` between scored rounds, from the middle of the run on.

    Not a number with fewer than two changes. Of runs that were scored equally often the smoother one has less.
    """
    curve = record.curve(trained=record.spec.build_method().reported == "after_local_update")["acc_mean"]
    return float(curve[curve.index >= record.rounds / 2].diff().std())


def curves(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run, round and metric: accuracies after aggregation and (``_trained``) after local training, shares."""
    frames = []
    for record in records:
        frame = record.curve().join(record.curve(trained=True), rsuffix="_trained")
        for metric in ("personal_share", "movable_share", "train_loss", "upload"):
            if metric in record.series:
                frame[metric] = record.values(metric).mean(axis=1)
        spec = record.spec
        tags = {"method": spec.method["name"], **settings(spec), "seed": spec.seed, "setting": spec.setting}
        tags["where"] = where(record)
        frames.append(_tagged(frame.reset_index().melt("round", var_name="metric"), tags))
    return pd.concat(frames, ignore_index=True)


def clients(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run and client: the accuracy (percent) of the last round."""
    frames = []
    for record in records:
        tags = {"method": record.spec.method["name"], **settings(record.spec), "seed": record.spec.seed}
        frames.append(_tagged(record.final().rename("accuracy").rename_axis("client").reset_index(), tags))
    return pd.concat(frames, ignore_index=True)


def _tagged(frame: pd.DataFrame, tags: dict[str, object]) -> pd.DataFrame:
    """``frame`` with a column for each tag; a tuple is one value."""
    return frame.assign(**{name: [value] * len(frame) for name, value in tags.items()})

"""The frame: a row per run, a column per field and metric. Notebooks, claims, comparisons and pages start from it.

Columns of a row:

- ``method`` and each of its fields by its own name (``alpha``); ``reading``; ``changed``: the names of the fields that
  differ from the study's settings;
- ``clients``, ``rounds`` (completed), ``participation``, ``novel``, ``eval_every``, ``seed``, ``device``, ``preset``,
  ``setting``, ``key``, and options of data, partition, model and training with a prefix (``partition_alpha``,
  ``train_lr``);
- ``dataset`` (as the tables count data sets), ``where`` (setting with that data set), ``data`` (what was read),
  ``differs`` (from the paper's setting), ``partial``, ``stale``;
- a column per metric. Scores are those of the last round, in percent: ``acc_mean``, ``acc_pooled``,
  ``acc_bottom_decile``, where the method reports them; with ``_best`` of the best round, with ``_merged`` after
  aggregation, with ``_trained`` after local training. See ``metrics_of`` for the others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pfl_core.runs import Record, RunSpec, Store
from pfl_core.study.conditions import failed, flat, inert, late_change, validation_change
from pfl_core.study.distance import differences
from pfl_core.study.labels import data_name, method_fields, published_set, setting_label
from pfl_core.study.mask_overlap import head_weight, masks, overlap_contrast
from pfl_core.study.settings import PARTS

if TYPE_CHECKING:
    from pfl_core.study.paper import Study

Row = dict[str, Any]

PROBES = ("probe", "probe_epochs", "probe_whole")  # fields that record more and change no result
PREFIXES = ("data_", "partition_", "model_", "train_")  # of options; not the column "data"
OF_RUN = ("clients", "participation", "novel", "sampling", "eval_every", "seed", "setting")


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """The rows as a data frame. A field or metric that a run does not have is missing (NaN)."""
    return pd.DataFrame([{name: _whole(value) for name, value in row.items()} for row in rows])


def _whole(value: Any) -> Any:
    """JSON data have lists where fields have tuples."""
    return tuple(map(_whole, value)) if isinstance(value, list) else value


def row_of(record: Record, study: Study | None) -> Row:
    """The row of one run, as JSON data. Without a study, fields are compared with the method's defaults."""
    spec = record.spec
    changed = changed_fields(spec, study.settings.fields_of(spec) if study else {})
    changed = study.renamed(spec, changed) if study else changed
    whole = spec.identity(written_out=True)
    row: Row = {
        "method": spec.method["name"],
        **method_fields(spec),
        **changed,
        "reading": spec.method.get("reading", "paper"),
        "changed": list(changed),
        **{name: getattr(spec, name) for name in OF_RUN},
        "rounds": record.rounds,
        "device": spec.device_kind,
        "preset": spec.preset_label,
        "key": record.key,
    }
    for part in (*PARTS, "train"):
        row |= {f"{part}_{name}": value for name, value in whole[part].items()}
    row |= {
        "dataset": published_set(record),
        "where": setting_label(record),
        "data": data_name(record) + (f", {record.length} rounds" if record.partial else ""),
        "differs": ", ".join(differences(spec, record.rounds, study.settings)) if study else "",
        "partial": record.partial,
        "stale": record.stale,
        "flat": flat(record),
    }
    row |= {name: float(value) for name, value in metrics_of(record).items()}
    for function in study.extra_metrics if study else ():
        row |= {name: float(value) for name, value in function(record).items()}
    return row


def changed_fields(spec: RunSpec, own: Mapping[str, Any]) -> dict[str, Any]:
    """The reading, if it is not the paper's, and the fields in which a run's method differs from ``own``.

    ``own``: the fields that the settings of the run's study give its method; others stand at the reading's values.
    """
    reading = spec.method.get("reading", "paper")
    method = spec.build_method()
    fields = dataclasses.fields(method)  # not an instance: a user's method may have fields without a valid default
    usual = {f.name: f.default for f in fields}
    usual |= {f.name: f.default_factory() for f in fields if f.default_factory is not dataclasses.MISSING}
    usual |= {**method.readings[reading], **own}
    changed: dict[str, Any] = {} if reading == "paper" else {"reading": reading}
    given = method_fields(spec).items()
    return changed | {name: value for name, value in given if value != usual[name] and name not in PROBES}


def variant(changed: Mapping[str, Any]) -> str:
    """The changed fields as text: "alpha=0.5;p=0.1"."""
    return ";".join(f"{name}={as_text(value)}" for name, value in changed.items())


def as_text(value: Any) -> str:
    """A number in short, anything else as it is written."""
    return f"{value:g}" if isinstance(value, float | int) and not isinstance(value, bool) else str(value)


def metrics_of(record: Record) -> dict[str, float]:
    """The metrics that every study has.

    Of the last round: those of ``Record.summary``; ``uplink_fraction``, the values that a client sends relative to the
    whole model; and, if masks were stored, the overlap of two clients' masks of the last layer: ``iou_raw`` and
    ``iou_chance`` (0 for random masks of the same sizes), means over pairs, and ``iou_contrast`` (of ``iou_chance``,
    pairs with a common class minus pairs without). Of the whole run: ``train_images`` (mean over clients), ``passes``
    (how often a client went through its images), ``roughness``, ``validation_change``, ``late_change``, ``failed`` and
    ``inert``, see ``study.conditions``.
    """
    numbers = record.summary()
    if "upload" in record.series:
        numbers["uplink_fraction"] = record.last_mean("upload") / record.num_params
    if "train" in record.clients:
        numbers["train_images"] = float(np.sum(record.clients["train"], axis=1).mean())
        numbers["passes"] = passes(record)
    numbers["roughness"] = roughness(record)
    numbers |= {"validation_change": validation_change(record), "late_change": late_change(record)}
    numbers |= {"inert": inert(record), "failed": failed(record)}
    if masks(record):
        contrasts = overlap_contrast(record, head_weight(record))
        numbers |= {"iou_raw": contrasts["iou_raw_mean"], "iou_chance": contrasts["iou_chance_mean"]}
        numbers["iou_contrast"] = contrasts["iou_chance_contrast"]
    return numbers


def passes(record: Record) -> float:
    """How often a training image was used in the run, mean over the images of all clients."""
    return record.samples_trained() / float(np.sum(record.clients["train"]))


def roughness(record: Record) -> float:
    """Sample standard deviation (points) of the changes of ``acc_mean`` between scored rounds, in the second half.

    NaN with fewer than two changes. Lower is smoother; comparable between runs with the same ``eval_every``.
    """
    scored = np.array(record.series[f"correct{record.reported_suffix}"][0])
    changes = np.diff(record.reported_scores()[scored >= record.rounds / 2, 0])
    return float(changes.std(ddof=1)) if len(changes) > 1 else math.nan


def fresh(rows: Sequence[Row]) -> list[Row]:
    """One of the runs that have the same settings, such as those of two devices: a fresh one, if there is one."""

    def settings(row: Row) -> tuple:
        names = ("method", "preset", "data", "rounds", *OF_RUN, *row["changed"])
        options = (name for name in row if name.startswith(PREFIXES))
        return tuple((name, str(row.get(name))) for name in (*names, *options))

    first: dict[tuple, Row] = {}
    for row in sorted(rows, key=lambda row: bool(row["stale"])):
        first.setdefault(settings(row), row)
    kept = {id(row) for row in first.values()}
    return [row for row in rows if id(row) in kept]


def rounds(runs: pd.DataFrame, metric: str, store: Store | None = None) -> pd.DataFrame:
    """Long form: the columns of ``runs``, and ``round`` and ``value``, a row per run and recorded round.

    ``metric``: a score (``acc_mean``, ``acc_pooled``, ``acc_bottom_decile``; where the method reports it, or with
    ``_merged`` or ``_trained``), or a series of the record, of which the mean over clients is taken. Runs that do not
    have the series are left out.
    """
    return _long(runs, "round", lambda record: _by_round(record, metric), store)


def clients(runs: pd.DataFrame, metric: str = "accuracy", store: Store | None = None) -> pd.DataFrame:
    """Long form: the columns of ``runs``, and ``client`` and ``value``, a row per run and client, in the last round.

    ``metric``: "accuracy" (percent, where the method reports it), or a series of the record.
    """
    return _long(runs, "client", lambda record: _by_client(record, metric), store)


def checks(runs: pd.DataFrame, store: Store | None = None) -> pd.DataFrame:
    """Long form: the columns of ``runs``, and ``check``, ``value``, ``bound``, ``acts``, a row per run and check of its
    method's mechanism. Runs of methods without checks are left out.
    """
    rows = [
        (key, *check)
        for key, record in zip(runs["key"], records(runs, store), strict=True)
        for check in record.mechanism
    ]
    return runs.merge(pd.DataFrame(rows, columns=["key", "check", "value", "bound", "acts", "otherwise"]), on="key")


def about(runs: pd.DataFrame) -> pd.DataFrame:
    """How many runs there are, of which seeds, and the settings that all of them have in common."""
    named = [
        name
        for name in runs
        if name in (*OF_RUN, "preset", "data") or name.startswith(PREFIXES) and name != "train_images"
    ]
    texts = runs[named].dropna(axis=1).astype(str)  # what some runs do not have is not common to them
    common = {name: texts[name].iloc[0] for name in texts if texts[name].nunique() == 1 and name != "seed"}
    if common.get("train_precision") == "float32":  # said where it is another
        del common["train_precision"]
    return pd.DataFrame({"setting": {"runs": str(len(runs)), "seeds": str(sorted(set(runs["seed"]))), **common}})


def records(runs: pd.DataFrame, store: Store | None = None) -> list[Record]:
    """The record of each run, in order. Raises FileNotFoundError if one is no longer stored."""
    store = store or Store()
    found = [store.get(key) for key in runs["key"]]
    if missing := [key for key, record in zip(runs["key"], found, strict=True) if record is None]:
        raise FileNotFoundError(f"{len(missing)} of these runs are no longer stored, such as {missing[0]}")
    return [record for record in found if record is not None]


def _by_round(record: Record, metric: str) -> pd.Series | None:
    name, _, point = metric.rpartition("_")
    if not metric.startswith("acc_"):
        return record.values(metric).mean(axis=1) if metric in record.series else None
    if point in ("merged", "trained"):
        return record.curve(trained=point == "trained")[name]
    return record.reported_curve()[metric]


def _by_client(record: Record, metric: str) -> pd.Series | None:
    if metric == "accuracy":
        correct, count = (record.values(name + record.reported_suffix).iloc[-1] for name in ("correct", "count"))
        return 100 * correct / count
    return record.values(metric).iloc[-1] if metric in record.series else None


def _long(
    runs: pd.DataFrame, level: str, values_of: Callable[[Record], pd.Series | None], store: Store | None
) -> pd.DataFrame:
    """The runs, a row for each entry of a run's values; their index becomes the column ``level``."""
    series = {record.key: values_of(record) for record in records(runs, store)}
    if all(values is None for values in series.values()):
        raise ValueError("no run has this metric by round or client")
    values = pd.concat(series, names=["key", level]).rename("value").reset_index()
    return runs.merge(values, on="key", validate="one_to_many")


METRICS = {  # metric -> its name in pictures and tables; others keep theirs, with spaces
    "acc_mean": "mean client accuracy",
    "acc_pooled": "pooled accuracy",
    "acc_bottom_decile": "worst tenth",
    "uplink_fraction": "share sent",
    "personal_share": "personal share",
    "roughness": "spread of changes",
    "rounds_to_95": "rounds to 95 %",
    "rounds_to_95_val": "rounds to 95 % in validation",
    "iou_raw": "overlap",
    "iou_chance": "overlap beyond chance",
    "iou_contrast": "overlap with minus without a common class",
}


def in_words(metric: str) -> str:
    """A metric as pictures and tables name it."""
    return METRICS.get(metric, metric.replace("_", " "))


def is_missing(value: Any) -> bool:
    """Whether a cell of the frame is empty."""
    return value is None or isinstance(value, float) and math.isnan(value)

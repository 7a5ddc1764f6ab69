"""Checks of a run that claims require: it trained, its training converged, and the method's mechanism acted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd

from pfl_core.runs import Record, RunSpec
from pfl_core.study.methods import NAMES
from pfl_core.study.names import plain

FLAT = 0.5  # converged: the validation accuracy changes by less than this over the last fifth of the rounds; points
LAST = 0.2  # fraction of the rounds
# A run failed if at least CONSTANT of its mixed clients end with the score of a constant answer. A client is mixed if
# none of its classes has more than MIXED of its test images; for others a constant answer can be a good one.
CONSTANT = 0.9
MIXED = 0.6


def validation_change(record: Record) -> float:
    """Change of the validation accuracy (pooled over clients) over the last fifth of the rounds, in percentage points.

    NaN without validation images, or with fewer than three scored rounds in the last fifth.
    """
    if "correct_val" not in record.series:
        return math.nan
    correct, count = (np.nansum(record.array(f"{name}_val"), axis=1) for name in ("correct", "count"))
    accuracy = 100 * correct / np.where(count > 0, count, np.nan)
    return _late_change(record.series["correct_val"][0], accuracy, record.rounds)


def late_change(record: Record) -> float:
    """``validation_change``; without validation images the same of the test accuracy, which selects nothing here."""
    change = validation_change(record)
    if not math.isnan(change):
        return change
    scored, mean = record.series[f"correct{record.reported_suffix}"][0], record.reported_scores()[:, 0]
    return _late_change(scored, mean, record.rounds)


def flat(record: Record) -> bool:
    """Whether the accuracy no longer changes, by less than FLAT. More rounds would not be expected to change it."""
    return round(abs(late_change(record)), 9) < FLAT  # 0.5 with an error of rounding is not less than 0.5


def _late_change(scored: Sequence[int], accuracy: np.ndarray, rounds: int) -> float:
    """Change over the last fifth of ``rounds``, from the least-squares line through the ``scored`` rounds."""
    span, at = LAST * rounds, np.asarray(scored)
    last = at > rounds - span
    if last.sum() < 3:
        return math.nan
    apart = at[last] - at[last].mean()
    return float(apart @ accuracy[last] / (apart @ apart) * span)


def failed(record: Record) -> bool:
    """Whether training failed, for example because it diverged: the models of the last round cannot classify.

    Either a client's test loss is not finite, or almost all models give one answer to all images (CONSTANT). Judged
    where the method reports its scores. Runs at preset ci are too short to train, and are not judged.
    """
    if record.spec.preset == "ci":
        return False
    names = [name + record.reported_suffix for name in ("correct", "count", "loss")]
    if not set(names) <= record.series.keys():
        return False
    correct, count, loss = map(record.last, names)
    if not np.isfinite(loss[count > 0]).all():
        return True
    images = np.array(record.clients.get("test", np.zeros((0, 0))))  # [clients, classes]
    if len(images) != len(correct):
        return False
    mixed = (count > 0) & (images.max(axis=1, initial=0) <= MIXED * count)
    constant = ((images == correct[:, None]) & (images > 0)).any(axis=1) | (correct == 0)
    return bool(mixed.any() and constant[mixed].mean() >= CONSTANT)


def inert(record: Record) -> float:
    """Number of the method's mechanism checks that failed; NaN for a method without checks."""
    checks = record.mechanism
    return float(sum(not check.acts for check in checks)) if checks else math.nan


def failed_line(records: Iterable[Record]) -> str:
    """The runs whose training failed, as lines for a notebook; "" if there are none."""
    lines = [f"   {_named(record.spec)}" for record in records if failed(record)]
    head = "did not train (diverged, or one answer to all images), so no fair rivals:"
    return "\n".join([head, *lines]) if lines else ""


def _named(spec: RunSpec) -> str:
    """ "Ditto (lam=2) on CIFAR-10, a setting, seed 0"."""
    data = spec.data["name"]
    fields = ", ".join(f"{name}={value}" for name, value in spec.method.items() if name != "name")
    where = plain(spec.setting if spec.setting.startswith(data) else f"{data}, {spec.setting}".removesuffix(", "))
    method = NAMES[spec.method["name"]]
    return f"{method}{f' ({fields})' if fields else ''} on {where}, seed {spec.seed}"


def mechanism(records: Iterable[Record], label: Callable[[Record], str]) -> pd.DataFrame:
    """A row per label and mechanism check: median over the runs, bound, and in how many runs the mechanism acted.

    Columns: run, check, median, bound, acted ("3 of 3"), otherwise. Methods without checks have no row.
    """
    rows = [(label(record), *check) for record in records for check in record.mechanism]
    frame = pd.DataFrame(rows, columns=["run", "check", "value", "bound", "acts", "otherwise"])
    grouped = frame.groupby(["run", "check", "bound", "otherwise"], sort=False)
    acted = ("acts", lambda acts: f"{acts.sum()} of {len(acts)}")
    table = grouped.agg(median=("value", "median"), acted=acted).reset_index()
    return table[["run", "check", "median", "bound", "acted", "otherwise"]]

"""What a run must show before it may decide anything: training that converged, and a mechanism that acted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from pfl_core.runs import Record

FLAT = 0.5  # points by which validation accuracy may move over the last fifth of the rounds
LAST = 0.2  # share of the rounds


def validation_change(record: Record) -> float:
    """By how many points the accuracy on validation images rises (falls: below 0) over the last fifth of the rounds.

    That of the least-squares line through the scored rounds of the last fifth, over all samples. Not a number without
    validation images, or with fewer than three scored rounds there.
    """
    if "correct_val" not in record.series:
        return math.nan
    correct, count = (record.values(f"{name}_val").sum(axis=1) for name in ("correct", "count"))
    span = LAST * record.rounds
    last = (100 * correct / count)[correct.index > record.rounds - span]
    if len(last) < 3:
        return math.nan
    return float(np.polyfit(last.index.to_numpy(float), last.to_numpy(), 1)[0] * span)


def inert(record: Record) -> float:
    """How many of the method's mechanism checks did not act; not a number for a method without any."""
    checks = record.mechanism
    return float(sum(not check.acts for check in checks)) if checks else math.nan


def mechanism(records: Iterable[Record], label: Callable[[Record], str]) -> pd.DataFrame:
    """A row per label and mechanism check: mean over its runs, bound, and of how many runs the mechanism acted.

    Columns: run, check, mean, bound, acted ("3 of 3"), otherwise. Methods without checks have no row.
    """
    rows = [(label(record), *check) for record in records for check in record.mechanism]
    found = pd.DataFrame(rows, columns=["run", "check", "value", "bound", "acts", "otherwise"])
    grouped = found.groupby(["run", "check", "bound", "otherwise"], sort=False)
    table = grouped.agg(mean=("value", "mean"), acted=("acts", "sum"), runs=("acts", "size")).reset_index()
    table["acted"] = [f"{acted} of {runs}" for acted, runs in zip(table["acted"], table["runs"], strict=True)]
    return table[["run", "check", "mean", "bound", "acted", "otherwise"]]


def first_line(records: Iterable[Record], label: Callable[[Record], str]) -> str:
    """The sentence that a study opens with: whether the mechanism acted in its runs; if not, in which, and why."""
    judged = [(label(record), record.mechanism) for record in records if record.mechanism]
    if not judged:
        return "None of these methods has a mechanism to check."
    failed = {(name, check.what): check for name, checks in judged for check in checks if not check.acts}
    if not failed:
        return f"The mechanism acted in all {len(judged)} runs that have one to check."
    lines = [
        f"{name}: {what} is {check.value:.3g} (bound {check.bound:g}); {check.otherwise}"
        for (name, what), check in failed.items()
    ]
    return "\n".join(["The mechanism did not act in all runs; those below decide nothing.", *lines])

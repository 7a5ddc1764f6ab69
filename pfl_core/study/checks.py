"""Checks of a run that claims require: its training converged, and the method's mechanism acted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from pfl_core.runs import Record

FLAT = 0.5  # converged: the validation accuracy changes by less than this over the last fifth of the rounds; points
LAST = 0.2  # fraction of the rounds


def validation_change(record: Record) -> float:
    """Change of the validation accuracy over the last fifth of the rounds, in percentage points.

    Slope of the least-squares line through the pooled accuracies of the scored rounds, times the number of rounds. NaN
    without validation images, or with fewer than three scored rounds in the last fifth.
    """
    if "correct_val" not in record.series:
        return math.nan
    correct, count = (record.values(f"{name}_val").sum(axis=1) for name in ("correct", "count"))
    span = LAST * record.rounds
    last = (100 * correct / count)[correct.index > record.rounds - span]  # percent, by scored round
    if len(last) < 3:
        return math.nan
    return float(np.polyfit(last.index.to_numpy(float), last.to_numpy(), 1)[0] * span)


def inert(record: Record) -> float:
    """Number of the method's mechanism checks that failed; NaN for a method without checks."""
    checks = record.mechanism
    return float(sum(not check.acts for check in checks)) if checks else math.nan


def mechanism(records: Iterable[Record], label: Callable[[Record], str]) -> pd.DataFrame:
    """A row per label and mechanism check: mean over the runs, bound, and in how many runs the mechanism acted.

    Columns: run, check, mean, bound, acted ("3 of 3"), otherwise. Methods without checks have no row.
    """
    rows = [(label(record), *check) for record in records for check in record.mechanism]
    frame = pd.DataFrame(rows, columns=["run", "check", "value", "bound", "acts", "otherwise"])
    grouped = frame.groupby(["run", "check", "bound", "otherwise"], sort=False)
    table = grouped.agg(mean=("value", "mean"), acted=("acts", "sum"), runs=("acts", "size")).reset_index()
    table["acted"] = [f"{acted} of {runs}" for acted, runs in zip(table["acted"], table["runs"], strict=True)]
    return table[["run", "check", "mean", "bound", "acted", "otherwise"]]


def first_line(records: Iterable[Record], label: Callable[[Record], str]) -> str:
    """The opening sentence of a study: whether the mechanism acted in its runs, and if not, in which runs and why."""
    checked = [(label(record), record.mechanism) for record in records if record.mechanism]
    if not checked:
        return "None of these methods has a mechanism to check."
    failed = {(name, check.what): check for name, checks in checked for check in checks if not check.acts}
    if not failed:
        return f"The mechanism acted in all {len(checked)} runs that have one to check."
    lines = [
        f"{name}: {what} is {check.value:.3g} (bound {check.bound:g}); {check.otherwise}"
        for (name, what), check in failed.items()
    ]
    return "\n".join(["The mechanism did not act in all runs. The runs below decide no claim:", *lines])

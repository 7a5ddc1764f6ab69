"""An invented run, and its comparison with a number of a paper, for the tests of every paper's comparison."""

from __future__ import annotations

import pandas as pd

from pfl_core.study.compare import Comparison, compare
from pfl_core.study.statistics import COLUMNS

RUN = dict(
    paper="fedselect", dataset="cifar10", method="fedselect", variant="alpha=0.3", metric="acc_mean", value=80.0,
    seed=0, preset="real", data="cifar10 (JPEG copy)", differs="network", stale=False,
)  # fmt: skip


def results(*runs: dict) -> pd.DataFrame:
    """RUN with some of its fields replaced."""
    return pd.DataFrame([RUN | run for run in runs], columns=[*COLUMNS, "differs"])


def cell(comparison: Comparison, stored: pd.DataFrame, **where: object) -> dict:
    """The one row of the comparison that fits."""
    found = [row for row in compare(comparison, stored) if where.items() <= row.items()]
    assert len(found) == 1
    return found[0]


def filled(comparison: Comparison, stored: pd.DataFrame) -> list[dict]:
    """The rows that have a number of this project."""
    return [row for row in compare(comparison, stored) if row["ours"] is not None]

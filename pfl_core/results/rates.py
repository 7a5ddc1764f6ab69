"""Runs that differ in the learning rate alone: which one validation data choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pandas as pd

from pfl_core.results.named import where
from pfl_core.runs import Record


def base_rate(record: Record) -> float:
    """The federation's."""
    return record.spec.train.lr


def by_rate(
    records: Iterable[Record], label: Callable[[Record], str], rate: Callable[[Record], float | str] = base_rate
) -> pd.DataFrame:
    """A row per setting (``where``), method and rate: percent, pooled, after aggregation.

    Columns: setting, label, lr, validation and test (means over seeds), std (the test's sample deviation, missing for
    one seed), and ``chosen``: whether the rate is the best one on validation data (of several that are, the first).
    What ran at one rate only or without validation data is left out, and so are seeds that lack one of the rates.
    """
    rows = []
    for record in records:
        if "correct_val" not in record.series:
            continue
        correct, count = (record.values(f"{name}_val").iloc[-1].sum() for name in ("correct", "count"))
        test = record.curve()["acc_pooled"].iloc[-1]
        rows.append((where(record), label(record), rate(record), record.spec.seed, 100 * correct / count, test))
    same = ["setting", "label"]
    found = pd.DataFrame(rows, columns=[*same, "lr", "seed", "validation", "test"])
    found = found.astype({"validation": float, "test": float})
    at_all = found.groupby([*same, "seed"])["lr"].transform("nunique") == found.groupby(same)["lr"].transform("nunique")
    found = found[at_all]
    groups = found.groupby([*same, "lr"], sort=False)
    found = groups.agg(validation=("validation", "mean"), test=("test", "mean"), std=("test", "std")).reset_index()
    found = found[found.groupby(same)["lr"].transform("size") > 1].sort_values([*same, "lr"], ignore_index=True)
    return found.assign(chosen=found.index.isin(found.groupby(same)["validation"].idxmax()))

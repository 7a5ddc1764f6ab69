"""Runs that differ in the learning rate alone: which one validation data choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pandas as pd

from pfl_core.runs import Record


def base_rate(record: Record) -> float:
    """The federation's."""
    return record.spec.train.lr


def by_rate(
    records: Iterable[Record], label: Callable[[Record], str], rate: Callable[[Record], float | str] = base_rate
) -> pd.DataFrame:
    """A row per setting, method and rate: percent, pooled, after aggregation, means over seeds.

    Columns: setting, label, lr, validation, test, and ``chosen``: whether the rate is the best one on validation data
    (of several that are, the first). What ran at one rate only or without validation data is left out.
    """
    rows = []
    for record in records:
        if "correct_val" not in record.series:
            continue
        correct, count = (record.values(f"{name}_val").iloc[-1].sum() for name in ("correct", "count"))
        test = record.curve()["acc_pooled"].iloc[-1]
        where = record.spec.setting.partition(", lr=")[0]
        rows.append((where, label(record), rate(record), 100 * correct / count, test))
    same = ["setting", "label"]
    found = pd.DataFrame(rows, columns=[*same, "lr", "validation", "test"]).astype({"validation": float, "test": float})
    found = found.groupby([*same, "lr"], sort=False).mean().reset_index()
    found = found[found.groupby(same)["lr"].transform("size") > 1].sort_values([*same, "lr"], ignore_index=True)
    return found.assign(chosen=found.index.isin(found.groupby(same)["validation"].idxmax()))

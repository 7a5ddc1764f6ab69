"""Runs that differ in the learning rate alone: which one validation data choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from pfl_core.runs import Record


def by_rate(
    records: Iterable[Record], tell: Callable[[Record], Sequence[str] | None], columns: Sequence[str] = ("label",)
) -> pd.DataFrame:
    """A row per setting, method and rate: percent, pooled, after aggregation, means over seeds.

    ``tell`` gives a run's entries in ``columns``, by which methods are told apart, or None for a run to be left out.
    Further columns: setting, lr, validation, test, and ``chosen``: whether the rate is the best one on validation data
    (of several that are, the smallest). What ran at one rate only or without validation data is left out.
    """
    rows = []
    for record in records:
        own = tell(record)
        if own is None or "correct_val" not in record.series:
            continue
        correct, count = (record.values(f"{name}_val").iloc[-1].sum() for name in ("correct", "count"))
        test = record.curve()["acc_pooled"].iloc[-1]
        rows.append(
            (record.spec.setting.partition(", lr=")[0], *own, record.spec.train.lr, 100 * correct / count, test)
        )
    same = ["setting", *columns]
    found = pd.DataFrame(rows, columns=[*same, "lr", "validation", "test"]).astype({"validation": float, "test": float})
    found = found.groupby([*same, "lr"], sort=False).mean().reset_index()
    found = found[found.groupby(same)["lr"].transform("size") > 1].sort_values([*same, "lr"], ignore_index=True)
    return found.assign(chosen=found.index.isin(found.groupby(same)["validation"].idxmax()))

"""Intervals over seeds, paired leads, and agreement of clients' scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

LEAST_SEEDS = 3  # of an interval that is drawn, or that decides
LEVEL = 0.05  # significance level of tests; intervals are 95 % intervals
ALIKE = 1e-9  # numbers closer than this are equal up to rounding


@dataclass(frozen=True)
class Interval:
    """Mean over seeds with its two-sided 95 % t-interval. The bounds are NaN for one seed, or for two equal values.

    Accuracies are counts divided by the number of samples, so two seeds can be exactly equal by chance. Their interval
    would have width 0.
    """

    mean: float
    low: float
    high: float
    seeds: int
    p: float = 1.0  # two-sided p-value of Student's t-test that the mean is the bound; 1 without an interval

    @classmethod
    def of(cls, numbers: Sequence[float] | pd.Series, bound: float = 0.0) -> Interval:
        """Student's t-interval of the mean of one number per seed [n], and the p-value that the mean is ``bound``."""
        from scipy.special import stdtr, stdtrit  # t distribution, its quantile; importing scipy.stats takes a second

        values = pd.Series(numbers, dtype=float)
        n, mean = len(values), float(values.mean())
        if n < 2 or n == 2 and np.ptp(values) < ALIKE:
            return cls(mean, math.nan, math.nan, n)
        error = float(values.std(ddof=1)) / math.sqrt(n)  # standard error of the mean
        half = float(stdtrit(n - 1, 1 - LEVEL / 2)) * error
        gap = abs(float((values - bound).mean()))
        p = 2 * float(stdtr(n - 1, -gap / error)) if error > ALIKE else float(gap < ALIKE)
        return cls(mean, mean - half, mean + half, n, p)

    def __str__(self) -> str:
        """ "+2.82 [+2.10, +3.54]"."""
        if self.seeds < 2:
            return f"{self.mean:+.2f} (1 seed, no interval)"
        if math.isnan(self.low):
            return f"{self.mean:+.2f} (2 equal seeds, no interval)"
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


interval = Interval.of


def holm(p: Sequence[float]) -> list[bool]:
    """Which of several tests are significant at LEVEL by Holm's method.

    In ascending order, the k-th p-value of m (from 0) is compared with LEVEL / (m - k); from the first that is larger
    on, none is significant.
    """
    kept = [False] * len(p)
    for k, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        if not p[i] <= LEVEL / (len(p) - k):
            break
        kept[i] = True
    return kept


def paired(
    runs: pd.DataFrame,
    leader: str,
    value: str = "acc_mean",
    *,
    label: str = "label",
    by: Sequence[str] = (),
    paper: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """The lead of the label ``leader`` over every other one, paired by seed, within each group of the columns ``by``.

    A row for each group and other label with a common seed: lead (mean), low, high (95 % interval), seeds; with
    ``paper``, printed numbers in the same columns, also ``paper``: the printed lead. Runs whose training failed have no
    score. Raises ValueError if a group has two rows of one label and seed.
    """
    scores = runs.assign(**{value: runs[value].mask(runs["failed"] == 1)}) if "failed" in runs else runs
    keys = [*by, "seed", label]
    if scores.duplicated(keys).any():
        twice = scores.loc[scores.duplicated(keys), keys].iloc[0].to_dict()
        raise ValueError(f"several rows for {twice}; group by one more column, or select one setting")
    wide = scores.pivot(index=[*by, "seed"], columns=label, values=value)
    rest = [name for name in dict.fromkeys(scores[label]) if name != leader]
    gaps = wide[rest].rsub(wide.get(leader, math.nan), axis=0)
    rows = []
    for group, part in gaps.groupby(list(by), sort=False) if by else [((), gaps)]:
        for name in rest:
            found = interval(part[name].dropna())
            rows.append((*group, name, found.mean, found.low, found.high, found.seeds))
    numbers = {"lead": float, "low": float, "high": float, "seeds": int}
    table = pd.DataFrame(rows, columns=[*by, label, *numbers]).astype(numbers).query("seeds > 0")
    if paper is None:
        return table.reset_index(drop=True)
    printed = paired(paper.assign(seed=0), leader, value, label=label, by=by)
    return table.merge(printed.rename(columns={"lead": "paper"})[[*by, label, "paper"]], "left", [*by, label])


def agreement(clients: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Agreement of the clients' accuracies under each label with those under ``reference``, e.g. "Local".

    Columns of ``clients``: label, seed, client, accuracy (percent). A row for each other label: correlation of the
    accuracies over seeds and clients, mean difference, mean absolute difference, and the number of common pairs. A
    method that agrees with Local client by client has personalized by local training alone.
    """
    labels = [label for label in dict.fromkeys(clients["label"]) if label != reference]
    wide = clients.pivot(index=["seed", "client"], columns="label", values="accuracy")
    own, others = (wide.reindex(columns=[reference, *labels])[part] for part in (reference, labels))
    gap = others.sub(own, axis=0)
    columns = {
        "correlation": others.corrwith(own),
        "mean difference": gap.mean(),
        "mean size of it": gap.abs().mean(),
        "scores": gap.count(),
    }
    return pd.DataFrame(columns).rename_axis(None).query("scores > 0")

"""Results of ours as the claims need them: one preset, one column per varied field, differences over seeds.

A results frame has a row for each run and metric, with COLUMNS. `variant` names the fields that a sweep varies
("alpha=0.3;p=0.05"); a field may have a column of its own as well or instead. With a column `rounds`, runs of different
length are never mixed. Metrics, all of the last round:

    acc_mean, acc_pooled, acc_bottom_decile   percent
    personal_share     0 to 1, mean over clients
    uplink_fraction    numbers that a client sends, over those of FedAvg; mean over clients
    iou_raw            overlap of two clients' masks of the last layer, mean over pairs
    iou_contrast       the same corrected for chance, pairs with a common class minus pairs without
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pfl_core.paper.tables import parse_variant

COLUMNS = ["paper", "dataset", "method", "variant", "metric", "value", "seed", "preset", "data", "stale"]
NEEDED = ["dataset", "method", "metric", "value", "seed"]
PRESETS = ("paper", "real", "quick", "ci")  # best first
# Settings of a paper's main results, and our values where it is silent; any other value is an experiment of its own.
DEFAULTS = {
    "fedselect": {"alpha": 0.30, "p": 0.05, "reading": "paper", "finetune_epochs": 3.0},
    "fedpews": {"base": "fedavg", "lr_server": 1.0},
    "pfedgate": {"B": 5.0, "alpha": 0.4, "step": 1.0, "finetune_epochs": 1.0},
    "star_pfl": {},
}


class Missing(LookupError):
    """What a claim needs is not among the results; the text says what."""


@dataclass(frozen=True)
class Interval:
    """Mean over seeds and its two-sided 95 % t-interval; NaN bounds for fewer than two seeds."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def status(self) -> str:
        """Of the claim 'above 0'."""
        return "holds" if self.low > 0 else "does not hold" if self.high < 0 else "undecided"

    def __str__(self) -> str:
        if self.seeds < 2:
            return f"{self.mean:+.2f} (1 seed, no interval)"
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def interval(values: pd.Series) -> Interval:
    """Student's t-interval of the mean of one number per seed [n]."""
    from scipy.special import stdtrit  # the quantile of Student's t; scipy.stats takes a second to import

    n, mean = len(values), float(values.mean())
    if n < 2:
        return Interval(mean, math.nan, math.nan, n)
    half = float(stdtrit(n - 1, 0.975)) * float(values.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def paired(results: pd.DataFrame, a: dict, b: dict, metric: str = "acc_mean") -> Interval:
    """The mean of a - b over the seeds that both have; `a` and `b` name rows by column, e.g. {"method": "local"}.

    Raises Missing if no seed has both, ValueError if a seed has several rows for one of them.
    """
    difference = (by_seed(results, a, metric) - by_seed(results, b, metric)).dropna()
    if difference.empty:
        raise Missing(f"no seed has both {named(a)} and {named(b)}")
    return interval(difference)


def by_seed(results: pd.DataFrame, where: dict, metric: str) -> pd.Series:
    """The metric's value for each seed, of the rows named by `where`; numbers match to rounding."""
    here = results["metric"] == metric
    for column, value in where.items():
        if column not in results.columns:
            raise Missing(f"{named(where)} is not stored")
        is_number = isinstance(value, float)
        here &= np.isclose(results[column].astype(float), value) if is_number else results[column] == value
    found = results[here].dropna(subset="value").set_index("seed")["value"].astype(float)
    if found.empty:
        raise Missing(f"{metric} of {named(where)} is not stored")
    if found.index.has_duplicates:
        seed = found.index[found.index.duplicated()][0]
        raise ValueError(f"several results: {metric} of {named(where)}, seed {seed}; give rows of one setting only")
    return found


def settings(results: pd.DataFrame, method: str, field: str) -> list[float]:
    """The values of a varied field that are stored for a method, ascending."""
    if field not in results.columns:
        return []
    return sorted(results.loc[results["method"] == method, field].dropna().astype(float).unique())


def tidy(results: pd.DataFrame, paper: str, varied: tuple[str, ...] = ("alpha",)) -> pd.DataFrame:
    """The best preset's rows, with a column for each field of `variant`, where fields outside `varied` stand still.

    A field that a row does not name has its default (DEFAULTS). Where a method was run with several values of a field
    outside `varied`, the default's rows are kept; where it has one value, that one.
    Raises ValueError for missing columns.
    """
    require(results, NEEDED)
    frame = results[results["paper"] == paper] if "paper" in results.columns else results
    frame = fresh_first(best_preset(frame)).copy()
    parsed = variants(frame)
    fields = {name for variant in parsed for name in variant}
    for name in sorted(fields - set(results.columns)):
        frame[name] = [variant.get(name) for variant in parsed]
    for name in sorted(fields | DEFAULTS[paper].keys()):
        default = DEFAULTS[paper].get(name, "not named")
        value = frame.get(name, pd.Series(default, frame.index)).astype(object)
        frame[name] = value.where(value.notna(), default)
        if name not in varied:
            one = frame.groupby("method")[name].transform("nunique") == 1
            frame = frame[one | (frame[name] == default)].copy()
    return frame


def variants(results: pd.DataFrame) -> list[dict[str, float | str]]:
    """The fields that each row's `variant` names; none where it is empty, or where there is no such column."""
    texts = results["variant"] if "variant" in results.columns else [""] * len(results)
    return [parse_variant(text) if isinstance(text, str) else {} for text in texts]


def require(results: pd.DataFrame, columns: list[str]) -> None:
    """Raises ValueError if a column is missing."""
    lacking = [name for name in columns if name not in results.columns]
    if lacking:
        raise ValueError(f"results lack {', '.join(lacking)}; expected a tidy frame with {', '.join(columns)}")


def fresh_first(results: pd.DataFrame) -> pd.DataFrame:
    """Where a stale and a fresh run tell the same, the fresh one."""
    if not set(COLUMNS) <= set(results.columns):
        return results
    rest = [name for name in results.columns if name not in ("value", "stale")]
    return results.sort_values("stale", kind="stable").drop_duplicates(rest)


def best_preset(results: pd.DataFrame) -> pd.DataFrame:
    """The rows of the most faithful preset stored: paper, then real, quick, ci; of each data set the longest runs."""
    if "preset" in results.columns:
        stored = [preset for preset in PRESETS if (results["preset"] == preset).any()]
        results = results[results["preset"] == stored[0]] if stored else results.iloc[:0]
    if "rounds" in results.columns:
        results = results[results["rounds"] == results.groupby("dataset")["rounds"].transform("max")]
    return results


def each_dataset(results: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Label and rows of each data set; the label names the data really used, and the preset."""
    by = [name for name in ("dataset", "data") if name in results.columns]
    for names, rows in results.groupby(by, sort=False):
        preset = [rows["preset"].iloc[0]] if "preset" in rows.columns else []
        yield ", ".join([str(names[-1]), *preset]), rows


def named(where: dict) -> str:
    """{"method": "fedselect", "alpha": 0.3} -> 'fedselect alpha=0.3'."""
    rest = [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in where.items()]
    return " ".join(rest).removeprefix("method=")

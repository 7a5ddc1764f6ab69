"""Results of ours as the claims need them: one preset, one column per varied field, differences over seeds.

A results frame has a row for each run and metric, with COLUMNS. `variant` names the fields that a sweep varies
("alpha=0.3;p=0.05"); a field may have a column of its own as well or instead. With a column `rounds`, runs of different
length are never mixed; `setting` names the experiment of the paper's settings that a run belongs to, `model` its
network, `clients` their number and `dirichlet` the alpha of their split. Metrics, of the last round where no other is
named:

    acc_mean, acc_pooled, acc_bottom_decile   percent
    personal_share     0 to 1, mean over clients
    uplink_fraction    numbers that a client sends, over those of FedAvg; mean over clients
    iou_raw            overlap of two clients' masks of the last layer, mean over pairs
    iou_chance         the same corrected for chance: 0 as random masks of that size would have, 1 for equal masks
    iou_contrast       corrected for chance, pairs with a common class minus pairs without
    roughness          spread of acc_mean's changes from one scored round to the next, over the second half; points
    rounds_to_95       first round with 95 % of the run's own last accuracy
    train_images       of a client, mean over clients
    validation_change  rise of the accuracy on validation images over the last fifth of the rounds; points
    inert              number of the method's mechanism checks that did not act
    a paper's own      see the functions in its ``Paper.extra_metrics``
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Self

import numpy as np
import pandas as pd

from pfl_core.study.comparison import Comparison
from pfl_core.study.presets import PRESETS
from pfl_core.study.published import parse_variant

COLUMNS = ["paper", "dataset", "method", "variant", "metric", "value", "seed", "preset", "data", "stale"]
NEEDED = ["dataset", "method", "metric", "value", "seed"]
BEST_FIRST = PRESETS[::-1]
LEVEL = 0.05  # of tests; intervals have 95 %
ALIKE = 1e-9  # numbers closer than this are the same but for rounding


class Missing(LookupError):
    """What a claim needs is not among the results; the text says what."""


@dataclass(frozen=True)
class Interval:
    """Mean over seeds and its two-sided 95 % t-interval; NaN bounds for one seed, or for two that agree.

    (Accuracies are counts: two seeds may well agree to the last sample, and would then seem to leave no doubt.)
    """

    mean: float
    low: float
    high: float
    seeds: int
    p: float = 1.0  # of Student's test that the mean is 0, two-sided; 1 where there is no interval

    @property
    def status(self) -> str:
        """Of the claim 'above 0'."""
        return "holds" if self.low > 0 else "does not hold" if self.high < 0 else "undecided"

    def __str__(self) -> str:
        if self.seeds < 2:
            return f"{self.mean:+.2f} (1 seed, no interval)"
        if math.isnan(self.low):
            return f"{self.mean:+.2f} (2 seeds alike, no interval)"
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


@dataclass
class Reading:
    """What a check read while it judged: its runs, the metrics, and the differences over seeds, a number each."""

    keys: dict[str, None] = field(default_factory=dict)  # in order
    metrics: set[str] = field(default_factory=set)
    differences: list[pd.Series] = field(default_factory=list)

    @property
    def points(self) -> bool:
        """Whether all that it read are accuracies, and so its differences points."""
        return all(name.startswith("acc_") for name in self.metrics)


_READING: ContextVar[Reading | None] = ContextVar("reading", default=None)


@contextmanager
def reading() -> Iterator[Reading]:
    """While it is open, ``by_seed`` and ``interval`` note what they read."""
    token = _READING.set(made := Reading())
    try:
        yield made
    finally:
        _READING.reset(token)


def interval(values: pd.Series) -> Interval:
    """Student's t-interval of the mean of one number per seed [n]."""
    from scipy.special import stdtr, stdtrit  # Student's t and its quantile; scipy.stats takes a second to import

    if (reading := _READING.get()) is not None:
        reading.differences.append(values)
    n, mean = len(values), float(values.mean())
    if n < 2 or n == 2 and np.ptp(values) < ALIKE:
        return Interval(mean, math.nan, math.nan, n)
    error = float(values.std(ddof=1)) / math.sqrt(n)
    half = float(stdtrit(n - 1, 1 - LEVEL / 2)) * error
    p = 2 * float(stdtr(n - 1, -abs(mean) / error)) if error > ALIKE else float(abs(mean) < ALIKE)
    return Interval(mean, mean - half, mean + half, n, p)


def slopes(values: pd.DataFrame) -> pd.Series:
    """The least-squares slope of each row over the columns, which are numbers."""
    return pd.Series(np.polyfit(values.columns.to_numpy(float), values.to_numpy().T, 1)[0], index=values.index)


def paired(results: pd.DataFrame, a: dict, b: dict, metric: str = "acc_mean") -> Interval:
    """The mean of a - b over the seeds that both have; `a` and `b` name rows by column, e.g. {"method": "local"}.

    Raises Missing if no seed has both, ValueError if a seed has several rows for one of them.
    """
    difference = (by_seed(results, a, metric) - by_seed(results, b, metric)).dropna()
    if difference.empty:
        raise Missing(f"no seed has both {named(a)} and {named(b)}")
    return interval(difference)


def leads(table: pd.DataFrame, own: str, value: str = "acc_mean") -> pd.DataFrame:
    """How far ``own`` is ahead of each other label, paired over seeds. Columns: label, seed and ``value``.

    A row for each label: its mean, the mean lead, the 95 % interval of the lead, and the seeds that both have. No rows
    where ``own`` is not in the table.
    """
    if table.duplicated(["seed", "label"]).any():
        twice = table[table.duplicated(["seed", "label"])].iloc[0]
        raise ValueError(f"several rows for {twice['label']!r}, seed {twice['seed']}; give rows of one setting only")
    wide = table.pivot(index="seed", columns="label", values=value)
    rows = {}
    for label in dict.fromkeys(table["label"]):
        if label != own and own in wide.columns:
            lead = interval((wide[own] - wide[label]).dropna())
            rows[label] = (wide[label].mean(), lead.mean, lead.low, lead.high, lead.seeds)
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", f"{own} leads by", "from", "to", "seeds"])


def agreement(clients: pd.DataFrame, reference: str) -> pd.DataFrame:
    """How nearly each label's clients score what the same clients score under ``reference`` ("Local", say).

    Columns of ``clients``: label, seed, client, accuracy (percent). A row for each other label: the correlation of the
    scores over seeds and clients, their mean difference, the mean of its size, and how many scores both have. A method
    that agrees with Local client by client has personalized by training alone.
    """
    wide = clients.pivot(index=["seed", "client"], columns="label", values="accuracy")
    rows = {}
    for label in dict.fromkeys(clients["label"]):
        if label != reference and reference in wide.columns:
            both = wide[[label, reference]].dropna()
            gap = both[label] - both[reference]
            rows[label] = (both[label].corr(both[reference]), gap.mean(), gap.abs().mean(), len(both))
    columns = ["correlation", "mean difference", "mean size of it", "scores"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def by_seed(
    results: pd.DataFrame, selector: Mapping[str, float | str], metric: str, *, unknown: bool = False
) -> pd.Series:
    """The metric's value for each seed, of the rows named by `selector`; numbers match to rounding.

    Values that are not numbers count as not stored, unless `unknown`.
    """
    here = (results["metric"] == metric).to_numpy(copy=True)
    for column, value in selector.items():
        if column not in results.columns:
            raise Missing(f"{named(selector)} is not stored")
        known = results[column]
        if isinstance(value, int | float) and not isinstance(value, bool):
            here &= np.isclose(pd.to_numeric(known, errors="coerce"), value)
        else:
            here &= (known == value).to_numpy()
    if (reading := _READING.get()) is not None:
        reading.metrics.add(metric)
        reading.keys |= dict.fromkeys(results["key"].to_numpy()[here] if "key" in results.columns else ())
    seeds = pd.Index(results["seed"].to_numpy()[here], name="seed")
    found = pd.Series(results["value"].to_numpy(float)[here], seeds, name="value")
    found = found if unknown else found.dropna()
    if found.empty:
        raise Missing(f"{metric} of {named(selector)} is not stored")
    if found.index.has_duplicates:
        seed = found.index[found.index.duplicated()][0]
        raise ValueError(f"several results: {metric} of {named(selector)}, seed {seed}; give rows of one setting only")
    return found


def settings(results: pd.DataFrame, method: str, field: str) -> list[float]:
    """The values of a varied field that are stored for a method, ascending."""
    if field not in results.columns:
        return []
    return sorted(results.loc[results["method"] == method, field].dropna().astype(float).unique())


def claim_rows(
    results: pd.DataFrame, comparison: Comparison, settings: tuple[str, ...] = (), varied: tuple[str, ...] = ()
) -> pd.DataFrame:
    """The best preset's rows, with a column for each field of `variant`.

    Fields outside ``comparison.varied`` and ``varied`` stand still: where a method was run with several values of such
    a field (in one setting), the default's rows are kept; where it has one value, that one. A field that a row does not
    name has its method's default. With `settings`, only their rows. Raises ValueError for missing columns.
    """
    require(results, [*NEEDED, "setting", "rounds"] if settings else NEEDED)
    frame = results[results["paper"] == comparison.paper] if "paper" in results.columns else results
    frame = frame[frame["setting"].isin(settings)] if settings else frame
    frame = fresh_first(best_preset(frame)).copy()
    parsed = variants(frame)
    fields = {name for variant in parsed for name in variant}
    for name in sorted(fields - set(results.columns)):
        frame[name] = [variant.get(name) for variant in parsed]
    groups = [name for name in ("setting", "method") if name in frame.columns]
    for name in sorted(fields | comparison.defaults.keys()):
        default = frame["method"].map(lambda method, name=name: comparison.defaults_of(method).get(name, "not named"))
        value = frame.get(name, default).astype(object)
        frame[name] = value.where(value.notna(), default)
        if name not in comparison.varied + varied:
            one = frame.groupby(groups)[name].transform("nunique") == 1
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
    rest = [name for name in results.columns if name not in ("value", "stale", "key")]
    return results.sort_values("stale", kind="stable").drop_duplicates(rest)


def best_preset(results: pd.DataFrame) -> pd.DataFrame:
    """The rows of the most faithful preset stored: paper, then real, quick, ci; if none is, of the first changed one.

    Of each data set (and setting, if there is such a column) the longest runs.
    """
    if "preset" in results.columns:
        found = list(dict.fromkeys(results["preset"]))
        stored = [preset for preset in BEST_FIRST if preset in found] or [name for name in found if "changed" in name]
        results = results[results["preset"] == stored[0]] if stored else results.iloc[:0]
    if "rounds" in results.columns:
        groups = [name for name in ("setting", "dataset") if name in results.columns]
        results = results[results["rounds"] == results.groupby(groups)["rounds"].transform("max")]
    return results


def each_dataset(results: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Label and rows of each data set; the label names it, the data really used, and the preset."""
    by = [name for name in ("dataset", "data") if name in results.columns]
    for names, rows in results.groupby(by, sort=False):
        preset = [rows["preset"].iloc[0]] if "preset" in rows.columns else []
        yield ", ".join([data_label(names[0], names[-1]), *preset]), rows


def data_label(dataset: str, data: str) -> str:
    """The data set's name and its own text, if that does not name it."""
    return data if dataset in data else f"{dataset} ({data})"


class Selector(dict):
    """Rows by column; ``usual`` are values that messages leave out."""

    usual: ClassVar[Mapping[str, float | str]] = MappingProxyType({})

    def __or__(self, other: Mapping[str, float | str]) -> Self:
        return type(self)({**self, **other})


def named(selector: Mapping[str, float | str]) -> str:
    """{"method": "fedselect", "alpha": 0.3} -> 'fedselect alpha=0.3'; of a Selector what is not usual."""
    usual = selector.usual if isinstance(selector, Selector) else {}
    shown = {name: value for name, value in selector.items() if name not in usual or usual[name] != value}
    rest = [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in shown.items()]
    return " ".join(rest).removeprefix("method=")

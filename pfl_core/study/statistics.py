"""Prepares stored results for the claim checks, and computes differences over seeds with confidence intervals.

A results frame has a row for each run and metric, with COLUMNS. ``variant`` names the fields that a sweep varies
("alpha=0.3;p=0.05"); a field may also have its own column. If there is a column ``rounds``, runs of different length
are not mixed. ``setting`` is the name of the paper's setting, ``model`` the network, ``clients`` the number of clients,
``dirichlet`` the alpha of a Dirichlet partition. Metrics are those of the last round unless stated otherwise:

    acc_mean, acc_pooled, acc_bottom_decile   percent
    personal_share     0 to 1, mean over clients
    uplink_fraction    number of values that a client sends, relative to FedAvg; mean over clients
    iou_raw            IoU of two clients' masks of the last layer, mean over pairs
    iou_chance         the same, corrected for chance: 0 for random masks of the same size, 1 for equal masks
    iou_contrast       the same: mean over pairs with a common class minus mean over pairs without
    roughness          standard deviation of the changes of acc_mean between scored rounds, second half; points
    rounds_to_95       first round that reaches 95 % of the run's last accuracy
    train_images       training images of a client, mean over clients
    validation_change  change of the validation accuracy over the last fifth of the rounds; points
    failed             1 if training failed, e.g. diverged, else 0
    inert              number of the method's mechanism checks that failed
    others             see the functions in the paper's ``Paper.extra_metrics``
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from pfl_core.study.comparison import Comparison
from pfl_core.study.presets import PRESETS
from pfl_core.study.published import parse_variant

COLUMNS = ["paper", "dataset", "method", "variant", "metric", "value", "seed", "preset", "data", "stale"]
NEEDED = ["dataset", "method", "metric", "value", "seed"]
BEST_FIRST = PRESETS[::-1]
LEVEL = 0.05  # significance level of tests; intervals are 95 % intervals
ALIKE = 1e-9  # numbers closer than this are equal up to rounding


class Missing(LookupError):
    """Results that a claim needs are not stored; the message names them. A ``reading`` keeps the message."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        if (reading := _READING.get()) is not None:
            reading.missing.append(message)


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
    p: float = 1.0  # two-sided p-value of Student's t-test that the mean is 0; 1 without an interval
    read: Reading | None = field(default=None, compare=False, repr=False)  # the runs behind it, if ``paired`` made it

    @property
    def status(self) -> str:
        """Status of the claim that the mean is above 0."""
        return "holds" if self.low > 0 else "does not hold" if self.high < 0 else "undecided"

    def __str__(self) -> str:
        return self.text(digits=2)

    def text(self, digits: int) -> str:
        """ "+2.82 [+2.10, +3.54]" for two digits after the point."""
        mean, low, high = (f"{value:+.{digits}f}" for value in (self.mean, self.low, self.high))
        if self.seeds < 2:
            return f"{mean} (1 seed, no interval)"
        return f"{mean} (2 equal seeds, no interval)" if math.isnan(self.low) else f"{mean} [{low}, {high}]"


@dataclass
class Reading:
    """The data that a check used: keys of the runs, metrics, and differences."""

    keys: dict[str, None] = field(default_factory=dict)  # an ordered set
    metrics: set[str] = field(default_factory=set)
    differences: list[pd.Series] = field(default_factory=list)  # each with a number per seed
    points: list[pd.Series] = field(default_factory=list)  # those of accuracies, in percentage points
    missing: list[str] = field(default_factory=list)  # messages of all ``Missing``, also of those that the check caught
    refutations: dict[str, Reading] = field(default_factory=dict)  # parts that refute the claim alone, by their numbers

    def add_difference(self, values: pd.Series) -> None:
        """Add a number per seed. It is in percentage points if all metrics read so far are accuracies."""
        self.differences.append(values)
        if all(name.startswith("acc_") for name in self.metrics):
            self.points.append(values)

    def add(self, part: Reading) -> None:
        """Add the data of a part. Its refutations are left out: the whole claim need not fail with a part."""
        self.keys |= part.keys
        self.metrics |= part.metrics
        self.differences += part.differences
        self.points += part.points
        self.missing += part.missing


_READING: ContextVar[Reading | None] = ContextVar("reading", default=None)


@contextmanager
def reading() -> Iterator[Reading]:
    """Context manager in which ``by_seed`` and ``interval`` record the data that they use; outer ones record it too."""
    outer, used = _READING.get(), Reading()
    token = _READING.set(used)
    try:
        yield used
    finally:
        _READING.reset(token)
        if outer is not None:
            outer.add(used)


@contextmanager
def aside() -> Iterator[None]:
    """Context manager in which nothing is recorded: for numbers that a text shows and its verdict does not use."""
    token = _READING.set(None)
    try:
        yield
    finally:
        _READING.reset(token)


def refuted_by(parts: Mapping[str, Reading]) -> None:
    """Record parts of a claim, by their numbers, each of which refutes it without the others."""
    if (reading := _READING.get()) is not None:
        reading.refutations |= parts


def interval(values: pd.Series) -> Interval:
    """Student's t-interval of the mean of one number per seed [n]."""
    from scipy.special import stdtr, stdtrit  # t distribution and its quantile; importing scipy.stats takes a second

    if (reading := _READING.get()) is not None:
        reading.add_difference(values)
    n, mean = len(values), float(values.mean())
    if n < 2 or n == 2 and np.ptp(values) < ALIKE:
        return Interval(mean, math.nan, math.nan, n)
    error = float(values.std(ddof=1)) / math.sqrt(n)  # standard error of the mean
    half = float(stdtrit(n - 1, 1 - LEVEL / 2)) * error
    p = 2 * float(stdtr(n - 1, -abs(mean) / error)) if error > ALIKE else float(abs(mean) < ALIKE)
    return Interval(mean, mean - half, mean + half, n, p)


def slopes(values: pd.DataFrame) -> pd.Series:
    """The least-squares slope of each row over the columns, whose labels are numbers."""
    return pd.Series(np.polyfit(values.columns.to_numpy(float), values.to_numpy().T, 1)[0], index=values.index)


def paired(results: pd.DataFrame, a: dict, b: dict, metric: str = "acc_mean") -> Interval:
    """Interval of the difference a - b over the seeds that both have.

    ``a`` and ``b`` select rows by column, e.g. {"method": "local"}. Raises Missing if no seed has both, ValueError if a
    seed has several rows for one of them.
    """
    with reading() as read:
        difference = (by_seed(results, a, metric) - by_seed(results, b, metric)).dropna()
        if difference.empty:
            raise Missing(f"no seed has both {named(a)} and {named(b)}")
        return replace(interval(difference), read=read)


def leads(table: pd.DataFrame, leader: str, value: str = "acc_mean") -> pd.DataFrame:
    """The lead of the label ``leader`` over every other label, paired by seed. Columns: label, seed and ``value``.

    A row for each other label: its mean and the mean lead over the common seeds, the 95 % interval of the lead, and the
    number of common seeds.
    Empty if ``leader`` is not in the table. With a column ``failed``, runs whose training failed have no score.
    """
    if "failed" in table.columns:
        table = table.assign(**{value: table[value].where(~table["failed"].astype(bool))})
    if table.duplicated(["seed", "label"]).any():
        duplicate = table[table.duplicated(["seed", "label"])].iloc[0]
        raise ValueError(
            f"several rows for {duplicate['label']!r}, seed {duplicate['seed']}; give rows of one setting only"
        )
    wide = table.pivot(index="seed", columns="label", values=value)  # [seeds, labels]
    rows = {}
    for label in dict.fromkeys(table["label"]):
        if label != leader and leader in wide.columns:
            gaps = (wide[leader] - wide[label]).dropna()
            lead = interval(gaps)
            rows[label] = (wide.loc[gaps.index, label].mean(), lead.mean, lead.low, lead.high, lead.seeds)
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", f"{leader} leads by", "from", "to", "seeds"])


def lead_cells(table: pd.DataFrame, leader: str, by: str, value: str = "acc_mean") -> pd.DataFrame:
    """``leads`` for each value of the column ``by``, as ``plots.lead_dots`` draws them. Columns: label, color, seed.

    A row for each other label that has a seed in common with the leader: ``by``, label, color, lead, low, high, seeds.
    """
    parts = []
    for name, runs in table.groupby(by, sort=False):
        found = leads(runs, leader, value).drop(columns="mean").set_axis(["lead", "low", "high", "seeds"], axis=1)
        parts.append(found.rename_axis("label").reset_index().assign(**{by: name}))
    cells = pd.concat(parts, ignore_index=True).query("seeds > 0")
    colors = table.drop_duplicates("label").set_index("label")["color"]
    return cells.assign(color=cells["label"].map(colors))[[by, "label", "color", "lead", "low", "high", "seeds"]]


def agreement(clients: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Agreement of the clients' accuracies under each label with those under ``reference``, e.g. "Local".

    Columns of ``clients``: label, seed, client, accuracy (percent). A row for each other label: correlation of the
    accuracies over seeds and clients, mean difference, mean absolute difference, and the number of common pairs. A
    method that agrees with Local client by client has personalized by local training alone.
    """
    wide = clients.pivot(index=["seed", "client"], columns="label", values="accuracy")
    rows = {}
    for label in dict.fromkeys(clients["label"]):
        if label != reference and reference in wide.columns:
            pair = wide[[label, reference]].dropna()
            difference = pair[label] - pair[reference]
            rows[label] = (
                pair[label].corr(pair[reference]),
                difference.mean(),
                difference.abs().mean(),
                len(pair),
            )
    columns = ["correlation", "mean difference", "mean size of it", "scores"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def by_seed(
    results: pd.DataFrame, selector: Mapping[str, float | str], metric: str, *, unknown: bool = False
) -> pd.Series:
    """The metric's value for each seed, from the rows that ``selector`` (column -> value) matches.

    Numbers are compared up to rounding. NaN values count as not stored unless ``unknown`` is true. Raises Missing if no
    value is stored, ValueError if a seed has several.
    """
    # boolean mask of the matching rows
    matches = (results["metric"] == metric).to_numpy(copy=True)
    for column, value in selector.items():
        if column not in results.columns:
            raise Missing(f"{named(selector)} is not stored")
        known = results[column]
        if isinstance(value, int | float) and not isinstance(value, bool):
            matches &= np.isclose(pd.to_numeric(known, errors="coerce"), value)
        else:
            matches &= (known == value).to_numpy()
    if (reading := _READING.get()) is not None:
        reading.metrics.add(metric)
        reading.keys |= dict.fromkeys(results["key"].to_numpy()[matches] if "key" in results.columns else ())
    seeds = pd.Index(results["seed"].to_numpy()[matches], name="seed")
    values = pd.Series(results["value"].to_numpy(float)[matches], seeds, name="value")
    values = values if unknown else values.dropna()
    if values.empty:
        raise Missing(f"{metric} of {named(selector)} is not stored")
    if values.index.has_duplicates:
        seed = values.index[values.index.duplicated()][0]
        raise ValueError(f"several results: {metric} of {named(selector)}, seed {seed}; give rows of one setting only")
    return values


def settings(results: pd.DataFrame, method: str, field: str) -> list[float]:
    """The stored values of a varied field of a method, in ascending order."""
    if field not in results.columns:
        return []
    return sorted(results.loc[results["method"] == method, field].dropna().astype(float).unique())


def claim_rows(
    results: pd.DataFrame, comparison: Comparison, settings: tuple[str, ...] = (), varied: tuple[str, ...] = ()
) -> pd.DataFrame:
    """The rows of the best preset, with a column for each field of ``variant``.

    A field that a row does not name has the method's default. Fields other than ``comparison.varied`` and ``varied``
    are fixed: if a method was run with several values of such a field in a setting, only the rows with the default are
    kept. With ``settings``, only rows of these settings are used. Raises ValueError for missing columns.
    """
    require(results, [*NEEDED, "setting", "rounds"] if settings else NEEDED)
    frame = results[results["paper"] == comparison.paper] if "paper" in results.columns else results
    frame = frame[frame["setting"].isin(settings)] if settings else frame
    frame = fresh_first(best_preset(frame)).copy()
    parsed = variants(frame)
    fields = {name for variant in parsed for name in variant}
    # a column for each field that has none
    for name in sorted(fields - set(results.columns)):
        frame[name] = [variant.get(name) for variant in parsed]
    groups = [name for name in ("setting", "method") if name in frame.columns]
    # fill in defaults, and keep only the default of fixed fields with several values
    for name in sorted(fields | comparison.defaults.keys()):
        default = frame["method"].map(lambda method, name=name: comparison.defaults_of(method).get(name, "not named"))
        value = frame.get(name, default).astype(object)
        frame[name] = value.where(value.notna(), default)
        if name not in comparison.varied + varied:
            has_one_value = frame.groupby(groups)[name].transform("nunique") == 1
            frame = frame[has_one_value | (frame[name] == default)].copy()
    return frame


def variants(results: pd.DataFrame) -> list[dict[str, float | str]]:
    """The fields in each row's ``variant``; empty for an empty text, and if there is no such column."""
    texts = results["variant"] if "variant" in results.columns else [""] * len(results)
    return [parse_variant(text) if isinstance(text, str) else {} for text in texts]


def require(results: pd.DataFrame, columns: list[str]) -> None:
    """Raise ValueError if a column is missing."""
    missing = [name for name in columns if name not in results.columns]
    if missing:
        raise ValueError(f"results lack {', '.join(missing)}; expected a tidy frame with {', '.join(columns)}")


def fresh_first(results: pd.DataFrame) -> pd.DataFrame:
    """Of rows that differ only in value, stale and key, keep one; fresh runs before stale ones."""
    if not set(COLUMNS) <= set(results.columns):
        return results
    rest = [name for name in results.columns if name not in ("value", "stale", "key")]
    return results.sort_values("stale", kind="stable").drop_duplicates(rest)


def best_preset(results: pd.DataFrame) -> pd.DataFrame:
    """The rows of the best stored preset: paper, then real, quick, ci; if there is none, the first changed preset.

    Only the longest runs of each data set (and setting, if there is such a column) are kept.
    """
    if "preset" in results.columns:
        names = list(dict.fromkeys(results["preset"]))
        stored = [preset for preset in BEST_FIRST if preset in names] or [name for name in names if "changed" in name]
        results = results[results["preset"] == stored[0]] if stored else results.iloc[:0]
    if "rounds" in results.columns:
        # the longest runs of each group
        groups = [name for name in ("setting", "dataset") if name in results.columns]
        results = results[results["rounds"] == results.groupby(groups)["rounds"].transform("max")]
    return results


def each_dataset(results: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Label and rows of each data set. The label has the data set, the data that were used, and the preset."""
    by = [name for name in ("dataset", "data") if name in results.columns]
    for names, rows in results.groupby(by, sort=False):
        preset = [rows["preset"].iloc[0]] if "preset" in rows.columns else []
        yield ", ".join([data_label(names[0], names[-1]), *preset]), rows


def data_label(dataset: str, data: str) -> str:
    """The description of the data, preceded by the data set's name if the description does not contain it."""
    return data if dataset in data else f"{dataset} ({data})"


class Selector(dict[str, Any]):
    """A dictionary that selects rows by column. Messages leave out ``usual`` values and use ``renamed`` names."""

    usual: ClassVar[Mapping[str, float | str]] = MappingProxyType({})
    renamed: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def __or__(self, other: Mapping[str, float | str]) -> Self:  # type: ignore[override]  # keeps the class
        return type(self)({**self, **other})


def named(selector: Mapping[str, float | str]) -> str:
    """{"method": "fedselect", "alpha": 0.3} -> 'fedselect alpha=0.3'. For a Selector, see there."""
    if isinstance(selector, Selector):
        usual, renamed = selector.usual, selector.renamed
        changed = {name: value for name, value in selector.items() if name not in usual or usual[name] != value}
        shown = {renamed.get(name, name): value for name, value in changed.items()}
    else:
        shown = dict(selector)
    rest = [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in shown.items()]
    return " ".join(rest).removeprefix("method=")

"""Claims as inequalities, and what the runs say about each.

A claim is a function that yields its effects. An effect is an inequality on numbers with one value per seed:

    @claim(12, "Table 3", on=("cifar10",), printed=(3, 2))
    def most_changed_beat_least_changed(r):
        '''FedSelect is more accurate if the parameters that change most are personal, not those that change least.'''
        for alpha in MAIN:
            yield r(alpha=alpha) - r(alpha=alpha, ranking="least_change") > 0

The same function runs on the stored runs and on the paper's own tables, so no printed effect is typed twice. The
questions are those of the replication literature: is the effect there, and does the interval here contain the printed
one (Open Science Collaboration 2015; Simonsohn 2015)?
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import pandas as pd

from pfl_core.options import choices
from pfl_core.study.conditions import FLAT
from pfl_core.study.frame import Row, fresh, in_words, is_missing
from pfl_core.study.presets import DECIDING
from pfl_core.study.published import ANY
from pfl_core.study.settings import searched_values
from pfl_core.study.statistics import ALIKE, LEAST_SEEDS, LEVEL, Interval, holm

if TYPE_CHECKING:
    from pfl_core.study.paper import Study

REPRODUCED, NOT_FOUND, REVERSED, OPEN, NOT_RUN = OUTCOMES = ("reproduced", "not found", "reversed", "open", "not run")
SHOWN = "shown"  # runs at presets quick and ci, or with changed settings, decide nothing
MOST_SEEDS = 100
# Metrics that depend on where training ends: accuracies and their differences, rounds to a target.
LATE = ("acc_", "rounds_to", "roughness", "client_spread", "local_gain", "order_range", "sorted_change")
FAR = 1e6  # rounds, more than any run has
PRINTED = "printed"  # in place of a seed

Seed = int | str
Function = Callable[..., Iterable["Effect"]]  # of a claim


# ---- numbers by seed ------------------------------------------------------------------------------------------------


def _operator(function: Callable[..., float], text: str, swapped: bool = False) -> Callable[..., Values]:
    """A method of ``Values`` that combines its operands seed by seed."""
    return lambda *parts: combined(function, text, *(parts[::-1] if swapped else parts))


@dataclass(frozen=True, eq=False)
class Values:
    """A number per seed, with the runs behind it. Without a seed, runs are missing, and it counts as false."""

    by_seed: Mapping[Seed, float]
    runs: Mapping[str, Row] = field(default_factory=dict)  # key -> row of the frame
    text: str = ""
    metrics: frozenset[str] = frozenset()
    counted: bool = False
    is_named: bool = False  # the text stands alone, without the metric in front
    censored: frozenset[int] = frozenset()  # the true numbers can be larger (1) or smaller (-1): a target was missed

    def __bool__(self) -> bool:
        return bool(self.by_seed)

    @property
    def mean(self) -> float:
        return fmean(self.by_seed.values()) if self.by_seed else math.nan

    @property
    def exact(self) -> Values:
        """The same numbers as counts, identities or bytes: one seed is enough, and there is no interval."""
        return replace(self, counted=True)

    def named(self, text: str) -> Values:
        """The same numbers under another name, which stands alone."""
        return replace(self, text=text, is_named=True)

    __add__ = _operator(operator.add, "{} + {}")
    __sub__ = _operator(operator.sub, "{} − {}")
    __mul__ = _operator(operator.mul, "{} × {}")
    __truediv__ = _operator(lambda a, b: a / b if b else math.nan, "{} / {}")
    __radd__ = _operator(operator.add, "{} + {}", swapped=True)
    __rsub__ = _operator(operator.sub, "{} − {}", swapped=True)
    __rmul__ = _operator(operator.mul, "{} × {}", swapped=True)
    __abs__ = _operator(abs, "|{}|")

    def __gt__(self, bound: float) -> Effect:
        return Effect(self, 1, bound)

    def __lt__(self, bound: float) -> Effect:
        return Effect(self, -1, bound)

    def __ge__(self, bound: float) -> Effect:
        return Effect(self, 1, bound, strict=False)

    def __le__(self, bound: float) -> Effect:
        return Effect(self, -1, bound, strict=False)


def combined(function: Callable[..., float], text: str, *parts: Values | float) -> Values:
    """``function`` of the parts, seed by seed, over the seeds that all of them have. NaN is a missing number."""
    values = [part for part in parts if isinstance(part, Values)]

    def at(seed: Seed, moved: Values | None = None, by: float = 0.0) -> float:
        return function(*(p.by_seed[seed] + by * (p is moved) if isinstance(p, Values) else p for p in parts))

    every = {s: at(s) for s in values[0].by_seed if all(s in v.by_seed for v in values)}
    found = {s: number for s, number in every.items() if not math.isnan(number)}
    ends = [(at(s, v, side * FAR), number) for s, number in found.items() for v in values for side in v.censored]
    return Values(
        found,
        {key: row for v in values for key, row in v.runs.items() if row["seed"] in found or key in found},
        text.format(*(_name(part, first=not i) for i, part in enumerate(parts))),
        frozenset().union(*(v.metrics for v in values)),
        any(v.counted for v in values),
        any(v.is_named for v in values),
        frozenset(1 if end > number else -1 for end, number in ends if end != number),
    )


def _name(part: Values | float, first: bool) -> str:
    """The name of a part of an expression: a sum or difference stands in brackets unless it is the first part."""
    if not isinstance(part, Values):
        return f"{part:g}"
    return part.text if first or not any(sign in part.text for sign in (" − ", " + ")) else f"({part.text})"


def mean(values: Sequence[Values], text: str = "") -> Values:
    """The mean of several numbers, seed by seed."""
    return replace(combined(lambda *n: fmean(n), "{}", *values), text=text or f"mean of {_few(values)}")


def best(values: Sequence[Values], lowest: bool = False) -> Values:
    """The one with the largest (or lowest) mean over the seeds that all of them have; empty if there are none."""
    name = "lowest" if lowest else "best"
    seeds = set.intersection(*(set(v.by_seed) for v in values))
    if not seeds:
        return replace(values[0], by_seed={}, runs={}, text=f"{name} of {_few(values)}")
    chosen = (min if lowest else max)(values, key=lambda v: fmean(v.by_seed[seed] for seed in seeds))
    return replace(chosen, text=f"{name} ({chosen.text})")


def _few(values: Sequence[Values]) -> str:
    more = f" and {len(values) - 3} more" if len(values) > 3 else ""
    return ", ".join(v.text for v in values[:3]) + more


def rank(own: Values, others: Sequence[Values]) -> Values:
    """The rank of ``own`` among all, seed by seed; 1 has the largest number."""
    ranked = combined(lambda first, *rest: 1.0 + sum(other > first for other in rest), "{}", own, *others)
    return replace(ranked, text=f"rank of {own.text}")


def share(values: Sequence[Values], text: str) -> Values:
    """The share of the numbers that are above 0, seed by seed."""
    return combined(lambda *n: fmean(x > 0 for x in n), "{}", *values).named(text)


def count(values: Sequence[Values], text: str) -> Values:
    """How many of the numbers are above 0, seed by seed."""
    return combined(lambda *n: float(sum(x > 0 for x in n)), "{}", *values).named(text)


def slope(points: Mapping[float, Values], over: str) -> Values:
    """The least-squares slope of the numbers over the points, seed by seed."""
    import numpy as np

    fitted = combined(lambda *y: float(np.polyfit(list(points), y, 1)[0]), "{}", *points.values())
    return replace(fitted, text=f"slope over {over}")


def within(values: Values, margin: float) -> Iterator[Effect]:
    """The two inequalities of "equal within a margin"."""
    yield values > -margin
    yield values < margin


# ---- effects and claims ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Effect:
    """An inequality: ``values`` are above (side 1) or below (-1) the bound, in their mean."""

    values: Values
    side: int
    bound: float
    strict: bool = True  # of counts: whether the bound itself is on the other side

    def holds(self, number: float) -> bool:
        """Whether one number is on the claimed side."""
        return self.side * (number - self.bound) > (ALIKE if self.strict else -ALIKE)

    def __bool__(self) -> bool:
        raise TypeError("an effect has no truth value; yield it. For -m < x < m write `yield from within(x, m)`")

    def text(self, score: str) -> str:
        """The inequality; metrics other than ``score`` are named in front."""
        metrics = [] if self.values.is_named else sorted(self.values.metrics - {score})
        front = f"{', '.join(in_words(name) for name in metrics)}: " if metrics else ""
        signs = "<>" if self.strict else "≤≥"
        return f"{front}{self.values.text} {signs[self.side > 0]} {self.bound:g}"


@dataclass(frozen=True)
class Claim:
    """A claim of a paper. ``effects`` is called with a ``Pick``, and with an option if there are options.

    Holm's method counts the effects of a claim: splitting one claim into two makes each less strict.
    """

    number: int
    source: str  # "Table 3"; one that begins with "not in the paper" is counted apart from the paper's claims
    text: str
    effects: Callable[..., Iterable[Effect]]
    on: tuple[str, ...] = ("",)  # settings; the effects are asked in each
    printed: tuple[int | str, ...] = ()  # tables with its printed numbers; the first that has one counts
    option: tuple[Any, ...] = ()  # one whole option suffices
    margin: float | None = 1.0  # without printed value an effect so close to the bound is not found; None: never
    margins: Mapping[str, float] = field(default_factory=dict)  # metric -> margin, if it has another unit
    mechanism: bool = False  # about what a mechanism does: runs in which it did not act decide nothing
    follows: bool = False  # from the algorithm: it checks this project


class Claims(dict[int, Claim]):
    """The claims of a paper by number. Calling it gives the decorator that adds one."""

    def __call__(self, number: int, source: str, **form: Any) -> Callable[[Function], Function]:
        """``form``: see ``Claim``; the function's docstring is the claim's text.

        A number that another function has raises ValueError; a cell of a notebook can be executed again.
        """

        def add(function: Function) -> Function:
            known = self[number].effects if number in self else function
            if (known.__module__, known.__qualname__) != (function.__module__, function.__qualname__):
                raise ValueError(f"there are two claims with number {number}")
            self[number] = Claim(number, source, " ".join((function.__doc__ or "").split()), function, **form)
            return function

        return add


# ---- where the numbers come from ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Runs of one standing, or the paper's own numbers, as rows of the frame."""

    preset: str
    rows: Callable[[str, str], Iterable[Row]]  # of a setting and a method
    decides: bool = True
    all_rows: Sequence[Row] = ()  # also those of other standings that decide
    columns: frozenset[str] = frozenset()  # of the frame

    def find(self, setting: str, method: str, metric: str, fields: Mapping[str, Any]) -> Values:
        """The metric of the rows with these fields; a field that is not named stands at the paper's default.

        A target that is not reached ("rounds_to...") counts as one round after the last. Of printed tables the first
        that has a number counts. Raises ValueError for two rows with one seed.
        """
        late = False
        values: dict[Seed, float] = {}
        rows: dict[Seed, Row] = {}
        for row in self.rows(setting, method):
            value = row.get(metric)
            unreached = is_missing(value) and metric in row and metric.startswith("rounds_to")
            value = row["rounds"] + 1.0 if unreached else value
            if value is None or is_missing(value) or not matches(row, fields):
                continue
            late = late or unreached
            first = rows.setdefault(row["seed"], row)
            if first is row:
                values[row["seed"]] = float(value)
            elif first["key"] != row["key"] and first.get("table") == row.get("table"):
                keys = f"{first['key']} and {row['key']}"
                what = f"two runs of {method} with {dict(fields)} and seed {row['seed']}"
                raise ValueError(f"{setting!r}: {what}: {keys}; name what differs")
        return Values(values, {row["key"]: row for row in rows.values()}, censored=frozenset([1] * late))

    def every(self, metric: str) -> Values:
        """The metric of every run that decides, by key."""
        having = {row["key"]: row for row in self.all_rows if not is_missing(row.get(metric))}
        return Values({key: float(row[metric]) for key, row in having.items()}, having)


def matches(row: Row, fields: Mapping[str, Any]) -> bool:
    """Whether a run has these fields, and no other changed ones."""
    named = all(same(row.get(name), value) for name, value in fields.items())
    return named and all(name in fields for name in row["changed"])


def same(a: Any, b: Any) -> bool:
    """Equality of two field values; numbers up to rounding, a bool is no number, and NaN is None (in a column)."""
    if a is ANY:
        return True
    if is_missing(a) or is_missing(b):
        return is_missing(a) and is_missing(b)
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, float | int) and isinstance(b, float | int):
        return math.isclose(a, b)
    return bool(a == b)


def by_standing(paper: Study, runs: pd.DataFrame) -> list[Source]:
    """The runs by standing, the best first. Those of the paper's setting that were stopped early count as ``real``."""
    standings: dict[str, list[Row]] = {"paper": [], "paper, stopped": [], "real": []}
    rows = fresh(runs.to_dict("records"))
    deciding = [row for row in rows if row["preset"] in DECIDING]
    for row in rows:
        stopped = row["preset"] in DECIDING and row["partial"]
        standings.setdefault(f"{row['preset']}, stopped" if stopped else row["preset"], []).append(row)
    standings.pop("real, stopped", None)
    sources = []
    for name, own in standings.items():
        decides = name in ("paper", "paper, stopped", "real")
        for suffix in paper.searched_first if name == "real" else ("",):
            every = deciding if decides and own else own
            sources.append(Source(name, _longest(own, suffix), decides, every, frozenset(runs.columns)))
    return sources


def _longest(rows: Sequence[Row], suffix: str) -> Callable[[str, str], Sequence[Row]]:
    """The rows of a setting, with the suffix to its name, and a method; only the method's runs with most rounds."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: -row["rounds"]):
        group = groups.setdefault((row["setting"], row["method"]), [row])
        if row is not group[0] and row["rounds"] == group[0]["rounds"]:
            group.append(row)
    return lambda setting, method: groups.get((setting + suffix, method), ())


def printed(paper: Study, tables: Sequence[int | str], base: str = "", instead: str = "") -> Source:
    """The paper's own numbers, under the seed PRINTED. Those of the setting ``instead`` stand for those of ``base``."""

    def rows(setting: str, method: str) -> Iterator[Row]:
        first, comma, rest = setting.partition(", ")
        place = (instead if first == base else first) + comma + rest
        for number in tables:
            name = str(number) if str(number).startswith("figure") else f"table{number}"
            for cell in paper.printed_cells.get((name, place, method), ()):
                if not math.isnan(cell["value"]):
                    usual, fields = paper.usual_fields(method), cell["fields"]
                    changed = [field for field in fields if not same(fields[field], usual.get(field))]
                    known = {"table": name, "seed": PRINTED, "key": f"{name}: {cell['value']}", "changed": changed}
                    yield {**usual, **fields, **known, **dict.fromkeys(cell["metrics"], cell["value"])}

    return Source(PRINTED, rows)


@dataclass(frozen=True)
class Pick:
    """What a claim calls ``r``: picks runs by field and gives their scores by seed."""

    paper: Study
    source: Source
    setting: str

    def __call__(self, method: str | None = None, /, metric: str | None = None, **fields: Any) -> Values:
        """The metric (default: the paper's score) of a method (default: the paper's own) by seed.

        A field that is not named stands at the paper's default. Raises ValueError for an unknown method or field.
        """
        method, metric = method or self.paper.name, metric or self.paper.score
        self.paper.check_names(method, fields, self.source.columns)
        values = self.source.find(self.setting, method, metric, fields)
        return replace(values, text=self.paper.label(method, fields), metrics=frozenset({metric}))

    def at(self, setting: str) -> Pick:
        """The same in another setting."""
        return replace(self, setting=setting)

    def every(self, metric: str) -> Values:
        """The metric of every run, whatever its setting, by run and not by seed. For bounds and identities."""
        values = self.source.every(metric)
        return replace(values, text=in_words(metric), metrics=frozenset({metric}), counted=True, is_named=True)


# ---- outcomes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What the runs say about one effect. Numbers are NaN where there is none."""

    effect: str
    setting: str
    option: Any
    side: int
    bound: float
    exact: bool
    printed: tuple[float, ...] = ()  # several on a stand-in: those of all data sets for which it stands
    misses: bool = False  # whether the paper's own numbers miss the bound
    outcome: str = NOT_RUN
    reason: str = ""  # why it is open, or which metric no run has
    blocked: str = ""  # the condition that its runs do not meet, also if it is open for another reason
    size: str = ""  # "smaller" or "larger" than printed, of an effect that is reproduced
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = 1.0  # two-sided, at the bound
    seeds: int = 0
    preset: str = ""
    data: str = ""
    keys: tuple[str, ...] = ()

    @property
    def theirs(self) -> list[float]:
        """The printed numbers that meet the bound."""
        return [number for number in self.printed if self.side * (number - self.bound) > 0]

    @property
    def why(self) -> str:
        """Why it is not decided: the condition that its runs do not meet, else the reason."""
        return self.blocked or self.reason


@dataclass(frozen=True)
class Judged:
    """A claim with its effects and its word."""

    paper: str
    claim: Claim
    effects: tuple[Found, ...]

    @property
    def nearest(self) -> Any:
        """Of several options the one that is closest to being met, else None."""
        options = dict.fromkeys(found.option for found in self.effects)
        return min(options, key=lambda option: CLOSEST.index(self._word_of(option)))

    @property
    def word(self) -> str:
        """The outcome; of several options that of the nearest."""
        return self._word_of(self.nearest)

    def _word_of(self, option: Any) -> str:
        return _word(found for found in self.effects if found.option == option)

    def size(self, found: Found) -> str:
        """ "smaller" or "larger" than printed; "" for one of two bounds on the same number, which has both sizes."""
        same = (other for other in self.effects if (other.keys, other.mean) == (found.keys, found.mean))
        return "" if any(other.side != found.side for other in same) else found.size

    @property
    def counts(self) -> str:
        """How many effects have which outcome: "reversed 5, not found 2"."""
        counted = Counter(found.outcome for found in self.effects)
        return ", ".join(f"{outcome} {counted[outcome]}" for outcome in (*OUTCOMES, SHOWN) if counted[outcome])

    @property
    def decided(self) -> bool:
        return self.word in (REPRODUCED, NOT_FOUND, REVERSED)

    def to_json(self) -> dict[str, Any]:
        """The claim as plain data; a number that is missing is None."""
        of_claim = {"paper": self.paper, "claim": self.claim.number, "text": self.claim.text}
        of_claim |= {"source": self.claim.source, "follows": self.claim.follows}
        effects = [{k: None if is_missing(v) else v for k, v in vars(found).items()} for found in self.effects]
        return {**of_claim, "word": self.word, "counts": self.counts, "effects": effects}


CLOSEST = (REPRODUCED, OPEN, SHOWN, NOT_RUN, NOT_FOUND, REVERSED)


def _word(effects: Iterable[Found]) -> str:
    """The word of effects that must all be there. Those that are not run do not enter it."""
    outcomes = {found.outcome for found in effects} - {NOT_RUN}
    order = (REVERSED, NOT_FOUND, OPEN, SHOWN, REPRODUCED)
    return next((word for word in order if word in outcomes), NOT_RUN)


def judge(paper: Study, runs: pd.DataFrame, numbers: Iterable[int] | None = None) -> list[Judged]:
    """The claims of the paper (with these numbers), judged by the runs of a frame."""
    sources, chosen = by_standing(paper, runs), list(paper.claims if numbers is None else numbers)
    if unknown := [number for number in chosen if number not in paper.claims]:
        raise ValueError(f"{paper.name} has no claim {unknown[0]}{choices(str(unknown[0]), map(str, paper.claims))}")
    return [judge_claim(paper, paper.claims[number], sources) for number in chosen]


def judge_claim(paper: Study, claim: Claim, ours: Sequence[Source]) -> Judged:
    """One claim, judged by the runs of these sources, the best first."""
    effects: list[Found] = []
    for option in claim.option or (None,):
        found = []
        for setting in claim.on:
            base = setting.partition(", ")[0]
            theirs = [printed(paper, claim.printed, base, name) for name in paper.stands_for.get(base, (base,))]
            picks = [Pick(paper, source, setting) for source in (*ours, *theirs)]
            columns = [list(claim.effects(r) if option is None else claim.effects(r, option)) for r in picks]
            if len(set(map(len, columns))) != 1:
                raise ValueError(f"{paper.name}, claim {claim.number}: the number of effects depends on the runs")
            for row in zip(*columns, strict=True):
                which, effect = _chosen(paper, ours, row[: len(ours)])
                numbers = [number for e in row[len(ours) :] for number in e.values.by_seed.values()]
                misses = not all(map(effect.holds, numbers))
                text, exact = effect.text(paper.score), effect.values.counted
                unknown = " or ".join(sorted(effect.values.metrics - which.columns)) if which.columns else ""
                blank = Found(text, setting, option, effect.side, effect.bound, exact, tuple(numbers), misses)
                blank = replace(blank, reason=f"no run has {unknown}" if unknown else "")
                found.append(_found(paper, claim, blank, which, effect) if effect.values else blank)
        effects += _after_holm(found)
    return Judged(paper.name, claim, tuple(effects))


def _chosen(paper: Study, sources: Sequence[Source], effects: Sequence[Effect]) -> tuple[Source, Effect]:
    """The first source with enough seeds for the effect, else the one with the most; those that can decide first.

    Of several with enough seeds one whose rates were searched, where that is asked.
    """

    def worth(pair: tuple[Source, Effect]) -> tuple[bool, bool, int, bool]:
        source, values = pair[0], pair[1].values
        seeds = len(values.by_seed)
        decides = source.decides and seeds > 0
        enough = min(seeds, 1 if values.counted else LEAST_SEEDS)
        return decides, decides and not _unequal(values), enough, values.counted or not _unsearched(paper, values)

    return max(zip(sources, effects, strict=True), key=worth)


def _found(paper: Study, claim: Claim, blank: Found, which: Source, effect: Effect) -> Found:
    """The blank with outcome and numbers. Printed numbers that miss the bound do not count."""
    values, side, bound = effect.values, blank.side, blank.bound
    numbers = list(values.by_seed.values())
    obstacle = _obstacle(paper, claim, values) if which.decides else ""
    if values.counted:
        word, size, reason = REPRODUCED if all(map(effect.holds, numbers)) else REVERSED, "", ""
    else:
        margin = next((claim.margins[name] for name in values.metrics if name in claim.margins), claim.margin)
        word, size, reason = outcome(numbers, side, bound, blank.theirs, margin)
        if (-side if word == REPRODUCED else side) in values.censored and word != OPEN:
            word, size, reason = OPEN, "", "not reached"
        size = "" if values.censored else size
    if not which.decides:
        word, size, reason = SHOWN, "", ""
    elif obstacle and word != OPEN:
        word, size, reason = OPEN, "", obstacle
    spread = Interval.of(numbers, bound)
    described, sets = ({str(row.get(name)): None for row in values.runs.values()} for name in ("data", "dataset"))
    if len(sets) == 1:  # of a joined set only some parts are described: "cifar10: CIFAR-10 (JPEG copy)"
        described = {re.sub(r"^\w+: .*", rf"{next(iter(sets))} (\g<0>)", text): None for text in described}
    data = " and ".join(sets if len(described) == 1 < len(sets) else described)
    known: dict[str, Any] = {"mean": spread.mean, "seeds": len(numbers), "preset": which.preset, "data": data}
    known |= {} if values.counted else {"low": spread.low, "high": spread.high, "p": spread.p}
    known |= {"reason": reason, "size": size, "blocked": obstacle}
    return replace(blank, outcome=word, keys=tuple(values.runs), **known)


def outcome(
    numbers: Sequence[float], side: int, bound: float, printed: Sequence[float], margin: float | None
) -> tuple[str, str, str]:
    """Outcome, size beside the printed effects, and reason of an open one.

    Args:
        numbers: one per seed.
        side, bound: the effect says that their mean is above (side 1) or below (-1) the bound.
        printed: the paper's own numbers, all on the claimed side; several if the data stand in for several sets.
        margin: for an effect without a printed number.
    """
    if len(numbers) < LEAST_SEEDS:
        return OPEN, "", "one seed" if len(numbers) == 1 else "two seeds"
    spread = Interval.of(numbers, bound)
    # from here on as if the effect said that the mean is above 0
    low, high = sorted((side * (spread.low - bound), side * (spread.high - bound)))
    theirs = [side * (number - bound) for number in printed]
    if low > 0:
        size = "smaller" if theirs and min(theirs) > high else "larger" if theirs and max(theirs) < low else ""
        return REPRODUCED, size, ""
    if high < 0:
        return REVERSED, "", ""
    if high < min(theirs) if theirs else margin is not None and max(-low, high) < margin:
        return NOT_FOUND, "", ""
    center = side * (spread.mean - bound)
    to_not_found = min(theirs) - center if theirs else (margin or 0.0) - abs(center)
    return OPEN, "", _too_wide(numbers, max(abs(center), to_not_found))


def _too_wide(numbers: Sequence[float], distance: float) -> str:
    """ "too wide: about 12 seeds": the least number whose interval would have at most this half-width."""
    from scipy.special import stdtrit

    deviation = stdev(numbers)
    for n in range(len(numbers) + 1, MOST_SEEDS + 1):
        if stdtrit(n - 1, 1 - LEVEL / 2) * deviation / math.sqrt(n) < distance:
            return f"too wide: about {n} seeds"
    return f"too wide: over {MOST_SEEDS} seeds"


def _obstacle(paper: Study, claim: Claim, values: Values) -> str:
    """Why these runs cannot decide, or "". Counts need runs that did not fail; else see rule.md."""
    rows = list(values.runs.values())
    if any(row.get("failed", 0) > 0 for row in rows):
        return "training failed"
    if values.counted:
        return ""
    if _unequal(values):
        return "unequal rounds"
    if claim.mechanism and any(row.get("inert", 0) > 0 and not paper.removed(row) for row in rows):
        return "mechanism inert"
    if _unsearched(paper, values):
        return "rates not searched"
    if any(name.startswith(LATE) for name in values.metrics):
        return _still_improving(_real(values))
    return ""


def _real(values: Values) -> list[Row]:
    """The runs whose rates and rounds are not the paper's protocol: at preset real, or stopped early."""
    return [row for row in values.runs.values() if row["preset"] == "real" or row["partial"]]


def _unsearched(paper: Study, values: Values) -> bool:
    """Whether methods are compared at rates that neither the paper nor a search chose."""
    compared = len({row["method"] for row in values.runs.values()}) > 1
    of = [(row["preset"], row["setting"], row["method"]) for row in _real(values)] if compared else []
    return not all(searched_values(paper.settings.searched, *known) for known in of)


def _unequal(values: Values) -> bool:
    """Whether runs in one setting were compared after different numbers of rounds."""
    lengths = {(row["setting"], row["rounds"]) for row in values.runs.values()}
    return not values.counted and len(lengths) > len({setting for setting, _ in lengths})


def _still_improving(rows: Sequence[Row]) -> str:
    """Whether the accuracy of a configuration still rises, in the mean over seeds: by FLAT and by 2 standard errors."""
    changes: dict[tuple, list[float]] = {}
    for row in rows:
        names = ("setting", "method", "partition_alpha", *row["changed"])
        changes.setdefault(tuple((name, str(row.get(name))) for name in names), []).append(row["late_change"])
    for found in changes.values():
        if any(map(math.isnan, found)):
            return "too few scored rounds"
        error = stdev(found) / math.sqrt(len(found)) if len(found) > 1 else 0.0
        if fmean(found) >= FLAT and fmean(found) > 2 * error:
            return "still improving"
    return ""


def _after_holm(effects: Sequence[Found]) -> list[Found]:
    """The effects of a claim, without the reversed ones that Holm's method, over intervals of enough seeds, loses.

    These fall short of a printed effect, so they are not found; without a printed one they are open.
    """
    enough = [f.outcome != SHOWN and f.seeds >= LEAST_SEEDS and not math.isnan(f.low) for f in effects]
    tested = [i for i, counts in enumerate(enough) if counts]
    kept = {i for i, significant in zip(tested, holm([effects[i].p for i in tested]), strict=True) if significant}
    lost = [found.outcome == REVERSED and not found.exact and i not in kept for i, found in enumerate(effects)]
    words = (NOT_FOUND if found.theirs else OPEN for found in effects)
    made = zip(effects, words, lost, strict=True)
    return [replace(found, outcome=word, reason="after Holm") if gone else found for found, word, gone in made]


def table(judged: Iterable[Judged]) -> pd.DataFrame:
    """The claims as a table to read: a row per effect that was run, or one for a claim without runs."""
    rows = []
    for claim in judged:
        for found in [found for found in claim.effects if found.outcome != NOT_RUN] or claim.effects[:1]:
            option = "" if found.option is None else f"(option {found.option})"
            row = {"claim": claim.claim.number, "word": claim.word, "on": f"{found.setting} {option}".strip()}
            row |= {"effect": found.effect, "paper": span(found.printed, ".4g")}
            row |= {"here": found.mean, "from": found.low, "to": found.high, "seeds": found.seeds}
            row |= {"preset": found.preset, "outcome": claim.size(found) or found.outcome, "why": found.why}
            rows.append(row)
    return pd.DataFrame(rows).set_index(["claim", "word", "on", "effect"])


def span(numbers: Sequence[float], form: str) -> str:
    """The smallest and the largest of some numbers: "0.5 to 2"; once if they look the same, "" without numbers."""
    return " to ".join(dict.fromkeys(f"{end(numbers):{form}}" for end in (min, max))) if numbers else ""

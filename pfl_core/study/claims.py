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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import pandas as pd

from pfl_core.study.frame import Row, fresh, in_words, is_missing
from pfl_core.study.published import ANY
from pfl_core.study.settings import searched_values
from pfl_core.study.statistics import ALIKE, LEVEL, Interval, holm

if TYPE_CHECKING:
    from pfl_core.study.paper import Study

REPRODUCED, NOT_FOUND, REVERSED, OPEN, NOT_RUN = OUTCOMES = ("reproduced", "not found", "reversed", "open", "not run")
SHOWN = "shown"  # runs at presets quick and ci, or with changed settings, decide nothing
LEAST_SEEDS, MOST_SEEDS = 3, 100
FLAT = 0.5  # points over the last fifth of the rounds
LATE = ("acc_", "rounds_to", "roughness")  # metrics that depend on where training ends
PRINTED = "printed"  # in place of a seed

Seed = int | str


# ---- numbers by seed ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Values:
    """A number per seed, with the runs behind it. Without a seed, runs are missing, and it counts as false."""

    by_seed: Mapping[Seed, float]
    runs: Mapping[str, Row] = field(default_factory=dict)  # key -> row of the frame
    text: str = ""
    metrics: frozenset[str] = frozenset()
    counted: bool = False
    is_named: bool = False  # the text stands alone, without the metric in front

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

    def __sub__(self, other: Values | float) -> Values:
        return combined(lambda a, b: a - b, "{} − {}", self, other)

    def __add__(self, other: Values | float) -> Values:
        return combined(lambda a, b: a + b, "{} + {}", self, other)

    def __mul__(self, other: Values | float) -> Values:
        return combined(lambda a, b: a * b, "{} × {}", self, other)

    def __truediv__(self, other: Values | float) -> Values:
        return combined(lambda a, b: a / b, "{} / {}", self, other)

    def __rsub__(self, other: float) -> Values:
        return combined(lambda a, b: a - b, "{} − {}", other, self)

    def __rmul__(self, other: float) -> Values:
        return combined(lambda a, b: a * b, "{} × {}", other, self)

    def __abs__(self) -> Values:
        return combined(abs, "|{}|", self)

    def __gt__(self, bound: float) -> Effect:
        return Effect(self, 1, bound)

    def __lt__(self, bound: float) -> Effect:
        return Effect(self, -1, bound)

    __ge__, __le__ = __gt__, __lt__  # bounds of counts include equality


def combined(function: Callable[..., float], text: str, *parts: Values | float) -> Values:
    """``function`` of the parts, seed by seed, over the seeds that all of them have."""
    values = [part for part in parts if isinstance(part, Values)]
    seeds = [s for s in values[0].by_seed if all(s in v.by_seed for v in values)]
    found = {s: function(*(p.by_seed[s] if isinstance(p, Values) else p for p in parts)) for s in seeds}
    return Values(
        found,
        {key: row for v in values for key, row in v.runs.items() if row["seed"] in found or key in found},
        text.format(*(p.text if isinstance(p, Values) else f"{p:g}" for p in _bracketed(parts))),
        frozenset().union(*(v.metrics for v in values)),
        any(v.counted for v in values),
        any(v.is_named for v in values),
    )


def _bracketed(parts: Sequence[Values | float]) -> Iterator[Values | float]:
    """The parts; from the second on, sums and differences are named in brackets."""
    for i, part in enumerate(parts):
        if i and isinstance(part, Values) and (" − " in part.text or " + " in part.text):
            part = replace(part, text=f"({part.text})")
        yield part


def mean(values: Sequence[Values], text: str = "") -> Values:
    """The mean of several numbers, seed by seed."""
    return replace(combined(lambda *n: fmean(n), "{}", *values), text=text or f"mean of {_few(values)}")


def best(values: Sequence[Values], lowest: bool = False) -> Values:
    """The one with the largest (or lowest) mean over its seeds; empty if one of them is."""
    name = "lowest" if lowest else "best"
    if not all(values):
        return replace(values[0], by_seed={}, runs={}, text=f"{name} of {_few(values)}")
    chosen = (min if lowest else max)(values, key=lambda v: v.mean)
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

    def __bool__(self) -> bool:
        raise TypeError("an effect has no truth value; yield it. For -m < x < m write `yield from within(x, m)`")

    def text(self, score: str) -> str:
        """The inequality; metrics other than ``score`` are named in front."""
        metrics = [] if self.values.is_named else sorted(self.values.metrics - {score})
        front = f"{', '.join(in_words(name) for name in metrics)}: " if metrics else ""
        signs = "≤≥" if self.values.counted else "<>"
        return f"{front}{self.values.text} {signs[self.side > 0]} {self.bound:g}"


@dataclass(frozen=True)
class Claim:
    """A claim of a paper. ``effects`` is called with a ``Pick``, and with an option if there are options.

    Holm's method counts the effects of a claim: splitting one claim into two makes each less strict.
    """

    number: int
    text: str
    source: str
    effects: Callable[..., Iterable[Effect]]
    on: tuple[str, ...]  # settings; the effects are asked in each
    printed: tuple[int | str, ...]  # tables with its printed numbers; the first that has one counts
    options: tuple[Any, ...]  # one whole option suffices
    margin: float | None  # an effect without printed value this close to the bound is not found; None: it cannot be
    mechanism: bool  # about what a mechanism does: runs in which it did not act decide nothing
    follows: bool  # from the algorithm: it checks this project


class Claims(dict[int, Claim]):
    """The claims of a paper by number. Calling it gives the decorator that adds one."""

    def __call__(
        self,
        number: int,
        source: str,
        *,
        on: Sequence[str] = ("",),
        printed: Sequence[int | str] = (),
        option: Sequence[Any] = (),
        margin: float | None = 1.0,
        mechanism: bool = False,
        follows: bool = False,
    ) -> Callable[[Callable[..., Iterable[Effect]]], Callable[..., Iterable[Effect]]]:
        """See ``Claim``; the function's docstring is the claim's text. Raises ValueError for a number that is taken."""
        if number in self:
            raise ValueError(f"there are two claims with number {number}")

        def add(function: Callable[..., Iterable[Effect]]) -> Callable[..., Iterable[Effect]]:
            text = " ".join((function.__doc__ or "").split())
            parts = tuple(on), tuple(printed), tuple(option)
            self[number] = Claim(number, text, source, function, *parts, margin, mechanism, follows)
            return function

        return add


# ---- where the numbers come from ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """Runs of one standing, by (setting, method)."""

    preset: str
    suffix: str  # of the settings' names: ", with validation"
    rows: Mapping[tuple[str, str], Sequence[Row]]
    decides: bool
    all_rows: Sequence[Row] = ()  # also those of other standings that decide

    def find(self, paper: Study, setting: str, method: str, metric: str, fields: Mapping[str, Any]) -> Values:
        """The metric of the runs with these fields; a field that is not named stands at the paper's default.

        A target that is not reached ("rounds_to...") counts as one round after the last. Raises ValueError for two runs
        with one seed.
        """
        values: dict[Seed, float] = {}
        runs: dict[Seed, Row] = {}
        for row in self.rows.get((setting + self.suffix, method), ()):
            value = row.get(metric)
            if is_missing(value) and metric in row and metric.startswith("rounds_to"):
                value = row["rounds"] + 1.0
            if value is None or is_missing(value) or not matches(row, fields):
                continue
            seed = row["seed"]
            if seed in values:
                keys = f"{runs[seed]['key']} and {row['key']}"
                raise ValueError(
                    f"{setting!r}: two runs of {method} with {dict(fields)} and seed {seed}: {keys}; name what differs"
                )
            values[seed], runs[seed] = float(value), row
        return Values(values, {row["key"]: row for row in runs.values()})

    def every(self, metric: str, method: str | None) -> Values:
        """The metric of every run (of a method) that decides, by key."""
        rows = (row for row in self.all_rows if method in (None, row["method"]))
        having = {row["key"]: row for row in rows if not is_missing(row.get(metric))}
        return Values({key: float(row[metric]) for key, row in having.items()}, having)


def matches(row: Row, fields: Mapping[str, Any]) -> bool:
    """Whether a run has these fields, and no other changed ones."""
    named = all(same(row.get(name), value) for name, value in fields.items())
    return named and all(name in fields for name in row["changed"])


def same(a: Any, b: Any) -> bool:
    """Equality of two field values; numbers up to rounding, a bool is no number, and NaN is None (in a column)."""
    if is_missing(a) or is_missing(b):
        return is_missing(a) and is_missing(b)
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, float | int) and isinstance(b, float | int):
        return math.isclose(a, b)
    return bool(a == b)


@dataclass(frozen=True)
class PrintedNumbers:
    """The paper's own tables, for the effects that it prints."""

    tables: tuple[int | str, ...]
    base: str  # the setting that is judged ...
    instead: str  # ... and the paper's setting for which it stands in

    def find(self, paper: Study, setting: str, method: str, metric: str, fields: Mapping[str, Any]) -> Values:
        """The printed number, under the seed PRINTED; empty if no table has it. Raises ValueError for two numbers."""
        first, comma, rest = setting.partition(", ")
        place = (self.instead if first == self.base else first) + comma + rest
        usual = paper.usual_fields(method) if self.tables else {}

        def fits(theirs: Mapping[str, Any]) -> bool:
            pairs = [(theirs.get(n, usual.get(n)), fields.get(n, usual.get(n))) for n in fields.keys() | theirs.keys()]
            return all(a is ANY or same(a, b) for a, b in pairs)

        for table in self.tables:
            name = str(table) if str(table).startswith("figure") else f"table{table}"
            rows = paper.printed_cells.get((name, place, method), ())
            found = {row["value"] for row in rows if metric in row["metrics"] and fits(row["fields"])}
            numbers = {value for value in found if not math.isnan(value)}
            if len(numbers) > 1:
                raise ValueError(f"{paper.name}, {name}: {method} {dict(fields)} in {place!r} has {numbers}")
            if numbers:
                return Values({PRINTED: numbers.pop()})
        return Values({})

    def every(self, metric: str, method: str | None) -> Values:
        return Values({})


@dataclass(frozen=True)
class Pick:
    """What a claim calls ``r``: picks runs by field and gives their scores by seed."""

    paper: Study
    source: Candidate | PrintedNumbers
    setting: str

    def __call__(self, method: str | None = None, /, metric: str | None = None, **fields: Any) -> Values:
        """The metric (default: the paper's score) of a method (default: the paper's own) by seed.

        A field that is not named stands at the paper's default.
        """
        method, metric = method or self.paper.name, metric or self.paper.score
        values = self.source.find(self.paper, self.setting, method, metric, fields)
        return replace(values, text=self.paper.label(method, fields), metrics=frozenset({metric}))

    def at(self, setting: str) -> Pick:
        """The same in another setting."""
        return replace(self, setting=setting)

    def every(self, metric: str, method: str | None = None) -> Values:
        """The metric of every run, whatever its setting, by run and not by seed. For bounds and identities."""
        values = self.source.every(metric, method)
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
    reason: str = ""  # why it is open
    size: str = ""  # "smaller" or "larger" than printed, of an effect that is reproduced
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = 1.0  # two-sided, at the bound
    seeds: int = 0
    preset: str = ""
    data: str = ""
    keys: tuple[str, ...] = ()


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


def judge(
    paper: Study, runs: pd.DataFrame, numbers: Iterable[int] | None = None, conditions: bool = True
) -> list[Judged]:
    """The claims of the paper (with these numbers), judged by the runs of a frame.

    ``conditions``: False leaves out the conditions on runs, so that the numbers alone decide.
    """
    found, chosen = candidates(paper, runs), paper.claims if numbers is None else numbers
    return [_judge_claim(paper, paper.claims[number], found, conditions) for number in chosen]


def candidates(paper: Study, runs: pd.DataFrame) -> list[Candidate]:
    """The runs by standing, the best first. Those of the paper's setting that were stopped early count as ``real``."""
    rows = fresh(runs.to_dict("records"))

    def of(name: str, label: str, partial: bool = False, suffix: str = "", decides: bool = True) -> Candidate:
        own = [row for row in rows if row["preset"] == name and (not decides or row["partial"] == partial)]
        deciding = [row for row in rows if row["preset"] in ("paper", "real")] if own else []
        return Candidate(label, suffix, _by_method(own), decides, deciding if decides else own)

    known = dict.fromkeys(row["preset"] for row in rows)
    return [
        of("paper", "paper"),
        of("paper", "paper, stopped", partial=True),
        *(of("real", "real", suffix=suffix) for suffix in paper.searched_first),
        *(of(name, name, decides=False) for name in known if name not in ("paper", "real")),
    ]


def _by_method(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows by setting and method; of a setting only the runs with most rounds."""
    longest: dict[str, float] = {}
    for row in rows:
        longest[row["setting"]] = max(row["rounds"], longest.get(row["setting"], 0))
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["rounds"] == longest[row["setting"]]:
            groups.setdefault((row["setting"], row["method"]), []).append(row)
    return groups


def _judge_claim(paper: Study, claim: Claim, found: Sequence[Candidate], conditions: bool) -> Judged:
    effects: list[Found] = []
    for option in claim.options or (None,):
        of_option: list[Found] = []
        for setting in claim.on:
            base = setting.partition(", ")[0]
            printed = [PrintedNumbers(claim.printed, base, name) for name in paper.stands_for.get(base, (base,))]
            given = () if option is None else (option,)
            sources: list[Candidate | PrintedNumbers] = [*found, *printed]
            columns = [list(claim.effects(Pick(paper, source, setting), *given)) for source in sources]
            if len(set(map(len, columns))) != 1:
                raise ValueError(f"{paper.name}, claim {claim.number}: the number of effects depends on the runs")
            for row in zip(*columns, strict=True):
                which, effect = _chosen(found, row[: len(found)])
                theirs = tuple(e.values.by_seed[PRINTED] for e in row[len(found) :] if e.values)
                blank = Found(
                    effect.text(paper.score), setting, option, effect.side, effect.bound, effect.values.counted, theirs
                )
                of_option.append(_found(paper, claim, blank, which, effect, conditions))
        effects += _after_holm(of_option)
    return Judged(paper.name, claim, tuple(effects))


def _chosen(found: Sequence[Candidate], effects: Sequence[Effect]) -> tuple[Candidate, Effect]:
    """The first candidate with enough seeds for the effect, else the one with the most; those that decide first."""
    seeds = [len(effect.values.by_seed) for effect in effects]
    if any(n for n, candidate in zip(seeds, found, strict=True) if candidate.decides):
        seeds = [n if candidate.decides else 0 for n, candidate in zip(seeds, found, strict=True)]
    enough = (i for i, n in enumerate(seeds) if n >= (1 if effects[i].values.counted else LEAST_SEEDS))
    i = next(enough, seeds.index(max(seeds)))
    return found[i], effects[i]


def _found(paper: Study, claim: Claim, blank: Found, which: Candidate, effect: Effect, conditions: bool) -> Found:
    """The blank with outcome and numbers."""
    values, numbers = effect.values, list(effect.values.by_seed.values())
    theirs = [number for number in blank.printed if effect.side * (number - effect.bound) > 0]
    blank = replace(blank, misses=len(theirs) < len(blank.printed))
    if not numbers:
        return blank
    word, size, reason = outcome(numbers, effect.side, effect.bound, theirs, claim.margin, values.counted)
    if not which.decides:
        word, size, reason = SHOWN, "", ""
    elif conditions and word != OPEN and not values.counted and (obstacle := _obstacle(paper, claim, values)):
        word, size, reason = OPEN, "", obstacle
    spread = Interval.of(numbers, effect.bound)
    if not values.counted:
        blank = replace(blank, low=spread.low, high=spread.high, p=spread.p)
    return replace(
        blank,
        outcome=word,
        reason=reason,
        size=size,
        mean=spread.mean,
        seeds=len(numbers),
        preset=which.preset,
        data=" and ".join(dict.fromkeys(str(row["data"]) for row in values.runs.values())),
        keys=tuple(values.runs),
    )


def outcome(
    numbers: Sequence[float],
    side: int,
    bound: float,
    printed: Sequence[float],
    margin: float | None,
    counted: bool = False,
) -> tuple[str, str, str]:
    """Outcome, size beside the printed effects, and reason of an open one.

    Args:
        numbers: one per seed.
        side, bound: the effect says that their mean is above (side 1) or below (-1) the bound.
        printed: the paper's own numbers, all on the claimed side; several if the data stand in for several sets.
        margin: for an effect without a printed number.
        counted: whether the numbers are counts, of which each must be on the claimed side or on the bound.
    """
    if counted:
        return (REPRODUCED if all(side * (n - bound) >= -ALIKE for n in numbers) else REVERSED), "", ""
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
    """Why these runs cannot decide, or "". At the paper's own setting its rates and rounds are the protocol."""
    rows = list(values.runs.values())
    if any(row.get("failed", 0) > 0 for row in rows):
        return "training failed"
    if claim.mechanism and any(row.get("inert", 0) > 0 and not paper.removed(row) for row in rows):
        return "mechanism inert"
    real = [row for row in rows if row["preset"] == "real"]
    searched = [searched_values(paper.settings.searched, "real", row["setting"], row["method"]) for row in real]
    if len({row["method"] for row in rows}) > 1 and not all(searched):
        return "rates not searched"
    if any(name.startswith(LATE) for name in values.metrics):
        return _still_improving([row for row in rows if row["preset"] == "real" or row["partial"]])
    return ""


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
    """The effects of a claim; a reversed one that Holm's method over those with an interval does not keep is open."""
    tested = [i for i, found in enumerate(effects) if found.outcome != SHOWN and not math.isnan(found.low)]
    kept = {i for i, significant in zip(tested, holm([effects[i].p for i in tested]), strict=True) if significant}
    lost = [found.outcome == REVERSED and not found.exact and i not in kept for i, found in enumerate(effects)]
    return [replace(f, outcome=OPEN, reason="after Holm") if gone else f for f, gone in zip(effects, lost, strict=True)]


def table(judged: Iterable[Judged]) -> pd.DataFrame:
    """The claims as a table to read: a row per effect that was run, or one for a claim without runs."""
    rows = []
    for claim in judged:
        run = [found for found in claim.effects if found.outcome != NOT_RUN]
        for found in run or claim.effects[:1]:
            on = " ".join(filter(None, (found.setting, "" if found.option is None else f"(option {found.option})")))
            printed = (
                " to ".join(dict.fromkeys(f"{n:.4g}" for n in (min(found.printed), max(found.printed))))
                if found.printed
                else ""
            )
            numbers = {"paper": printed, "here": found.mean, "from": found.low, "to": found.high, "seeds": found.seeds}
            names = {"claim": claim.claim.number, "word": claim.word, "on": on, "effect": found.effect}
            rows.append(
                {
                    **names,
                    **numbers,
                    "preset": found.preset,
                    "outcome": found.size or found.outcome,
                    "why": found.reason,
                }
            )
    return pd.DataFrame(rows).set_index(["claim", "word", "on", "effect"])

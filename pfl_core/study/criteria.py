"""The conditions that runs must meet to decide a claim, and the claims that need fewer conditions.

A claim that one method is better than another is decided only by runs at preset real or paper, if

- they trained, and their training converged,
- their mechanism acted,
- their learning rates and regularization strengths were chosen by the same search on validation images,
- there are as many seeds as are needed to detect a difference of 2 percentage points.

If a condition is not met, the claim is undecided, and the reason is given. Runs at presets quick and ci decide nothing.
A claim with several parts (rivals, data sets) fails if one part fails in runs that meet all conditions. The runs of the
other parts need not meet them then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from pfl_core.study.checks import FLAT
from pfl_core.study.names import NAMES
from pfl_core.study.settings import Searched, searched_values
from pfl_core.study.statistics import Reading, interval
from pfl_core.study.verdicts import UNDECIDED, Verdict

CONVERGENCE, MECHANISM, SEARCH, SEEDS = CONDITIONS = ("convergence", "mechanism", "search", "seeds")
SHOWN_ONLY = "shown"  # status of a claim whose runs are too small to decide it
SMALL_PRESETS = ("quick", "ci")
LEAST_SEEDS, MOST_SEEDS = 3, 10
DIFFERENCE = 2.0  # percentage points that the seeds must be able to distinguish from 0
OPEN_INTERVAL = "a 95 % interval contains both answers"
RUNS_MISSING = "runs are missing"
OF_A_RUN = ("seed", "key", "stale", "flat", "metric", "value")  # columns in which the runs of one configuration differ
MAX_NAMED = 3  # methods that are listed in a reason


class Judgement(NamedTuple):
    """A claim's verdict after the conditions were checked."""

    status: str  # holds | does not hold | undecided | shown
    numbers: str  # the numbers behind the status, or the reasons against deciding
    runs: tuple[str, ...]  # keys of the runs behind it
    reasons: tuple[str, ...] = ()  # those against deciding


class Waiver(NamedTuple):
    """The conditions that a claim does not need, and the reason."""

    conditions: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Criteria:
    """A paper's waivers (by number of the claim), and the results of its searches."""

    waived: Mapping[int, Waiver] = field(default_factory=dict)
    searched: Searched = field(default_factory=dict)  # the chosen values
    open_ends: Searched = field(default_factory=dict)  # those that may lie beyond their grid, see ``search.open_ends``

    def judge(self, number: int, verdict: Verdict, reading: Reading, rows: pd.DataFrame) -> Judgement:
        """Apply the conditions to the verdict of claim ``number``.

        Args:
            verdict: the result of the claim's check.
            reading: the runs and differences that the check used.
            rows: the results that the check received, with columns ``preset``, ``setting`` and ``key``, and the metrics
                of ``study.checks`` for each run.
        """
        if verdict.status == UNDECIDED and not reading.keys:
            return Judgement(*verdict, ())  # no run was found
        used = rows[rows["key"].isin(reading.keys)] if reading.keys else rows
        keys = tuple(dict.fromkeys(used["key"])) if "key" in used.columns else ()  # measured times have no key
        if all(is_small(preset) for preset in used["preset"].unique()):
            return Judgement(UNDECIDED if verdict.status == UNDECIDED else SHOWN_ONLY, verdict.numbers, keys)
        waived = self.waived[number].conditions if number in self.waived else ()
        required = [name for name in CONDITIONS if name not in waived]
        reasons = [*why_open(verdict, reading), *self._unmet(required, used, reading)]
        if not reasons:
            return Judgement(*verdict, keys)
        if verdict.status == "does not hold":
            for numbers, part in reading.refutations.items():
                of_part = rows[rows["key"].isin(part.keys)] if part.keys else used
                if not any(self._unmet(required, of_part, part)):
                    return Judgement(verdict.status, f"one part is enough: {numbers}", tuple(part.keys))
        alone = f"By the numbers alone: {verdict.status}, {verdict.numbers}"
        text = f"{'; '.join(reasons)}. {f'Numbers: {verdict.numbers}' if verdict.status == UNDECIDED else alone}"
        return Judgement(UNDECIDED, text, keys, tuple(reasons))

    def _unmet(self, conditions: Iterable[str], used: pd.DataFrame, reading: Reading) -> Iterable[str]:
        """The reasons why the runs do not meet the conditions; empty if they do."""
        for condition in conditions:
            yield from self._unmet_by(condition, used, reading)

    def _unmet_by(self, condition: str, used: pd.DataFrame, reading: Reading) -> Iterable[str]:
        if condition == CONVERGENCE:
            diverged = of_metric(used, "failed")
            yield from named("training failed", diverged[diverged["value"] > 0])
            yield from not_converged(used)
        elif condition == MECHANISM:
            inert = of_metric(used, "inert")
            yield from named("a check of the mechanism failed", inert[inert["value"] > 0])
        elif condition == SEARCH:
            runs = used.drop_duplicates("key")
            triples = list(zip(runs["preset"], runs["setting"], runs["method"], strict=True))
            searched = [bool(searched_values(self.searched, *triple)) for triple in triples]
            yield from named("no search for rates and strengths", runs[~np.array(searched, dtype=bool)])
            open_ends = [bool(searched_values(self.open_ends, *triple)) for triple in triples]
            yield from named("the best value may lie beyond the searched grid", runs[np.array(open_ends, dtype=bool)])
        else:
            num_seeds = min(map(len, reading.differences), default=used["seed"].nunique())
            deviations = [values.sort_index()[:LEAST_SEEDS].std() for values in reading.points]
            needed = max(map(seeds_needed, deviations), default=LEAST_SEEDS)
            if num_seeds < needed:
                yield f"{num_seeds} of {needed} seeds"


def is_small(preset: str) -> bool:
    """Whether runs with this ``RunSpec.preset_label`` only show: "quick", also with other fields ("quick, changed")."""
    return preset.partition(",")[0] in SMALL_PRESETS


def why_open(verdict: Verdict, reading: Reading) -> Iterable[str]:
    """The reason why the numbers alone do not decide; empty if they do."""
    if verdict.status != UNDECIDED:
        return
    if any(message in verdict.numbers for message in reading.missing):
        yield RUNS_MISSING
    elif any(len(values) < 2 for values in reading.differences):
        yield "one seed gives no interval"
    elif any(math.isnan(interval(values).low) for values in reading.differences):
        yield "two equal seeds give no interval"
    elif reading.differences:
        yield OPEN_INTERVAL


def not_converged(used: pd.DataFrame) -> Iterable[str]:
    """Reasons: methods whose validation accuracy still changes, and methods without validation images.

    The change is averaged over seeds. Runs that differ in anything else (e.g. partition or network) are checked
    separately, so that a rise in one configuration does not hide a fall in another.
    """
    configuration = [name for name in used.columns if name not in OF_A_RUN]
    change = of_metric(used, "validation_change").groupby(configuration, dropna=False)["value"].mean().reset_index()
    measured = set(of_metric(used, "validation_change").dropna(subset="value")["key"])
    yield from named(
        "no validation images, or too few scored rounds, to show whether training converged",
        used[~used["key"].isin(measured)],
    )
    changing = change[change["value"].abs() >= FLAT]
    text = f"validation accuracy changes by {FLAT} points or more over the last fifth of the rounds"
    yield from named(text, changing)


def of_metric(used: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rows of one metric."""
    return used[used["metric"] == metric]


def named(text: str, rows: pd.DataFrame) -> Iterable[str]:
    """The text followed by the methods of the rows, at most MAX_NAMED by name; nothing if there are no rows.

    A method is followed by the variants among the rows, unless its plain form is one of them.
    """
    methods = []
    for method, variants in rows.groupby("method", sort=False)["variant"]:
        names = list(dict.fromkeys(variants))
        name = NAMES.get(method, method)
        methods.append(name if "" in names else f"{name} {' and '.join(names[:MAX_NAMED])}")
    if methods:
        more = f" and {len(methods) - MAX_NAMED} more" if len(methods) > MAX_NAMED else ""
        yield f"{text} ({', '.join(methods[:MAX_NAMED])}{more})"


def seeds_needed(deviation: float) -> int:
    """The smallest number of seeds for which the 95 % t-interval of a mean has a half-width of at most DIFFERENCE.

    ``deviation``: standard deviation of the paired differences of the first three seeds, in points. The result is
    between LEAST_SEEDS and MOST_SEEDS; LEAST_SEEDS if the deviation is NaN.
    """
    from scipy.special import stdtrit

    for n in range(LEAST_SEEDS, MOST_SEEDS):
        # `not >` instead of `<=`: true for NaN
        if not stdtrit(n - 1, 0.975) * deviation / math.sqrt(n) > DIFFERENCE:
            return n
    return MOST_SEEDS

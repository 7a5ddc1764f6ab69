"""What may decide a claim: the conditions that its runs must meet, and which claims need fewer of them.

A claim that a method is better than another is decided only by runs at preset real or paper whose training converged,
whose mechanism acted, whose rates and strengths came from the same search on validation images, and which are as many
as a difference of 2 points needs. Where a condition is not met the claim is undecided, with the reason. What runs at
presets quick and ci show decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from pfl_core.study.checks import FLAT
from pfl_core.study.settings import Searched, searched_values
from pfl_core.study.statistics import Reading
from pfl_core.study.verdicts import UNDECIDED, Verdict

CONVERGENCE, MECHANISM, SEARCH, SEEDS = CONDITIONS = ("convergence", "mechanism", "search", "seeds")
SHOWN_ONLY = "shown"  # of runs that are too small to decide
SMALL_PRESETS = ("quick", "ci")
LEAST_SEEDS, MOST_SEEDS = 3, 10
DIFFERENCE = 2.0  # points that the seeds must be able to tell from 0
OF_A_RUN = ("seed", "key", "stale", "metric", "value")  # columns in which the runs of one configuration differ
NAMED = 3  # methods that one reason names


class Judgement(NamedTuple):
    """status: holds | does not hold | undecided | shown; numbers: what says so; runs: the keys of those behind it."""

    status: str
    numbers: str
    runs: tuple[str, ...]


class Waiver(NamedTuple):
    """The conditions that a claim does not need, and why."""

    conditions: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Criteria:
    """A paper's: which claims need fewer conditions, and where a search chose each method's rates and strengths."""

    waived: Mapping[int, Waiver] = field(default_factory=dict)
    searched: Searched = field(default_factory=dict)

    def judge(self, number: int, verdict: Verdict, reading: Reading, rows: pd.DataFrame) -> Judgement:
        """What the check of claim ``number`` found, as far as the runs that it read may decide it.

        rows: the results that the check was given; columns ``preset``, ``setting`` and ``key`` are needed, and of each
        run the metrics of ``study.checks``.
        """
        used = rows[rows["key"].isin(reading.keys)] if reading.keys else rows
        keys = tuple(dict.fromkeys(used["key"])) if "key" in used.columns else ()  # measured steps are no runs
        if verdict.status == UNDECIDED:
            return Judgement(*verdict, keys)
        if set(used["preset"]) <= set(SMALL_PRESETS):
            return Judgement(SHOWN_ONLY, verdict.numbers, keys)
        waived = self.waived[number].conditions if number in self.waived else ()
        reasons = [why for name in CONDITIONS if name not in waived for why in self._lacking(name, used, reading)]
        if not reasons:
            return Judgement(*verdict, keys)
        text = f"{'; '.join(reasons)}. By the numbers alone: {verdict.status}, {verdict.numbers}"
        return Judgement(UNDECIDED, text, keys)

    def _lacking(self, condition: str, used: pd.DataFrame, reading: Reading) -> Iterable[str]:
        """Why the runs do not meet a condition; nothing where they do."""
        if condition == CONVERGENCE:
            yield from not_converged(used)
        elif condition == MECHANISM:
            inert = of_metric(used, "inert")
            yield from named("the mechanism did not act", inert[inert["value"] > 0])
        elif condition == SEARCH:
            runs = used.drop_duplicates("key")
            places = zip(runs["preset"], runs["setting"], runs["method"], strict=True)
            found = [bool(searched_values(self.searched, *place)) for place in places]
            yield from named("no search for rates and strengths", runs[~np.array(found, dtype=bool)])
        else:
            has = min(map(len, reading.differences), default=used["seed"].nunique())
            deviations = [values.sort_index()[:LEAST_SEEDS].std() for values in reading.differences if reading.points]
            needs = max(map(seeds_needed, deviations), default=LEAST_SEEDS)
            if has < needs:
                yield f"{has} of {needs} seeds"


def not_converged(used: pd.DataFrame) -> Iterable[str]:
    """Which methods' validation accuracy still moves, and which have none; the mean over seeds counts.

    Runs that differ in anything else (the alpha of their split, their network) are judged apart: a rise in one must not
    hide a fall in another.
    """
    by = [name for name in used.columns if name not in OF_A_RUN]
    change = of_metric(used, "validation_change").groupby(by, dropna=False)["value"].mean().reset_index()
    yield from named("no validation images show whether training converged", change[change["value"].isna()])
    moving = change[change["value"].abs() >= FLAT]
    yield from named(f"validation accuracy moves by {FLAT} points or more over the last fifth of the rounds", moving)


def of_metric(used: pd.DataFrame, metric: str) -> pd.DataFrame:
    return used[used["metric"] == metric]


def named(text: str, rows: pd.DataFrame) -> Iterable[str]:
    """The text with the methods of the rows, few of them by name; nothing for no rows."""
    methods = list(dict.fromkeys(rows["method"]))
    if methods:
        more = f" and {len(methods) - NAMED} more" * (len(methods) > NAMED)
        yield f"{text} ({', '.join(methods[:NAMED])}{more})"


def seeds_needed(deviation: float) -> int:
    """The least number of seeds whose 95 % interval of a mean reaches at most DIFFERENCE to each side.

    ``deviation``: of the paired differences of the first three seeds, points. From LEAST_SEEDS to MOST_SEEDS; the least
    where the deviation is not known.
    """
    from scipy.special import stdtrit

    for n in range(LEAST_SEEDS, MOST_SEEDS):
        if not stdtrit(n - 1, 0.975) * deviation / math.sqrt(n) > DIFFERENCE:
            return n
    return MOST_SEEDS

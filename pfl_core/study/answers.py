"""The hand-written answers of the papers, with numbers from the frame.

``papers/<paper>/answer.md`` is a template. In it ``paper(setting)``, ``stopped(setting)`` and ``real(setting)`` pick
runs as ``r`` does in a claim: at the paper's setting, of runs of it that were stopped early, and at preset real.
``printed(tables, setting)`` picks the paper's own numbers. Filters turn them into text, and refuse a word that the runs
no longer bear out:

- ``mean`` (the mean, without sign), ``signed`` (with sign), ``span`` (the interval), ``seeds`` (their number);
- ``ahead``, ``behind``, ``near``: the mean without sign, after a check that the interval lies above 0, below 0, or
  contains 0. Of one seed the sign is checked; it is never ``near``. What a claim leaves open is only ``near``;
- ``after_holm``, ``improving``: the mean without sign, after a check that a claim leaves it open for this reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from pfl_core.study.claims import Judged, Pick, Values, by_standing, printed
from pfl_core.study.statistics import Interval

if TYPE_CHECKING:
    from pfl_core.study.paper import Study


REASONS = {"after_holm": "after Holm", "improving": "still improving"}  # filter -> why an effect is open


def answered(study: Study, runs: pd.DataFrame, judged: Sequence[Judged] = ()) -> list[str]:
    """The paragraphs of the study's answer. Raises ValueError where a number is missing or a word does not fit it.

    ``judged``: the claims, judged by the same runs.
    """
    from jinja2 import Environment, StrictUndefined

    known = {
        source.preset: source for source in by_standing(study, runs)
    }  # the last at real: settings by their own names
    environment = Environment(undefined=StrictUndefined)
    for name, preset in {"paper": "paper", "stopped": "paper, stopped", "real": "real"}.items():
        environment.globals[name] = partial(Pick, study, known[preset])
    environment.globals["printed"] = lambda tables, setting: Pick(study, printed(study, tables), setting)
    environment.filters |= {"mean": mean, "signed": signed, "span": span, "seeds": seeds}
    environment.filters |= {word: partial(checked, judged, word) for word in ("ahead", "behind", "near", *REASONS)}
    template = Path(__file__).parent.parent / "papers" / study.name / "answer.md"
    text = environment.from_string(template.read_text(encoding="utf-8")).render()
    return [" ".join(part.split()) if not part.startswith("|") else part for part in text.strip().split("\n\n")]


def mean(values: Values, digits: int = 1) -> str:
    return f"{abs(_spread(values).mean):.{digits}f}"


def signed(values: Values, digits: int = 1) -> str:
    return f"{round(_spread(values).mean, digits) + 0.0:+.{digits}f}".replace("-", "−")


def span(values: Values, digits: int = 1) -> str:
    """ "0.5 to 3.5"; "one seed" without an interval."""
    found = _spread(values)
    if math.isnan(found.low) or found.seeds < 2:
        return "one seed"
    ends = (f"{round(end, digits) + 0.0:.{digits}f}" for end in (found.low, found.high))  # no "-0.0"
    return " to ".join(ends).replace("-", "−")


def seeds(values: Values) -> int:
    return _spread(values).seeds


def _spread(values: Values) -> Interval:
    if not values:
        raise ValueError(f"answer: no run of {values.text}")
    return Interval.of(list(values.by_seed.values()))


def checked(judged: Sequence[Judged], word: str, values: Values, digits: int = 1) -> str:
    """The mean without sign. Raises ValueError if the interval or the claims do not bear out the word."""
    found, reasons = _spread(values), reasons_open(judged, values)
    low, high = (found.mean, found.mean) if found.seeds < 2 else (found.low, found.high)
    fits = {"ahead": low > 0 and not reasons, "behind": high < 0 and not reasons}
    fits |= {"near": found.seeds > 1 and low <= 0 <= high}
    fits |= {name: reason in reasons for name, reason in REASONS.items()}
    if not fits[word]:
        raise ValueError(f"answer: {values.text} is no longer {word}: {found} {', '.join(reasons)}".rstrip())
    return mean(values, digits)


def reasons_open(judged: Sequence[Judged], values: Values) -> set[str]:
    """Why claims do not decide a difference from 0; they are found by its runs and its number, up to the sign."""
    effects = [found for claim in judged for found in claim.effects if found.reason and found.bound == 0]
    same = [found for found in effects if {*found.keys} == {*values.runs}]
    return {found.reason for found in same if math.isclose(abs(found.mean), abs(values.mean), abs_tol=1e-9)}

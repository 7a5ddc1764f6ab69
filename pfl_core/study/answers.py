"""The hand-written answers of the papers, with numbers from the frame.

``papers/<paper>/answer.md`` is a template. In it ``paper(setting)``, ``stopped(setting)`` and ``real(setting)`` pick
runs as ``r`` does in a claim: at the paper's setting, of runs of it that were stopped early, and at preset real.
``printed(tables, setting)`` picks the paper's own numbers. Filters turn them into text, and refuse a word that the runs
no longer bear out:

- ``mean`` (the mean, without sign), ``signed`` (with sign), ``span`` (the interval), ``seeds`` (their number);
- ``ahead``, ``behind``, ``near``: the mean without sign, after a check that the interval lies above 0, below 0, or
  contains 0. Of one seed the sign is checked; it is never ``near``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from pfl_core.study.claims import Candidate, Pick, PrintedNumbers, Values, candidates
from pfl_core.study.statistics import Interval

if TYPE_CHECKING:
    from pfl_core.study.paper import Study


def answered(study: Study, runs: pd.DataFrame) -> list[str]:
    """The paragraphs of the study's answer. Raises ValueError where a number is missing or a word does not fit it."""
    from jinja2 import Environment, StrictUndefined

    known: dict[str, Candidate] = {found.preset: found for found in candidates(study, runs) if not found.suffix}

    def picker(preset: str) -> Callable[[str], Pick]:
        return lambda setting: Pick(study, known[preset], setting)

    def printed(tables: tuple[int | str, ...], setting: str) -> Pick:
        base = setting.partition(", ")[0]
        return Pick(study, PrintedNumbers(tables, base, base), setting)

    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=False)
    environment.globals |= {"paper": picker("paper"), "stopped": picker("paper, stopped"), "real": picker("real")}
    environment.globals |= {"printed": printed}
    environment.filters |= {"mean": mean, "signed": signed, "span": span, "seeds": seeds}
    environment.filters |= {
        "ahead": _checked("ahead", 1),
        "behind": _checked("behind", -1),
        "near": _checked("near", 0),
    }
    text = environment.from_string(answer_file(study.name).read_text(encoding="utf-8")).render()
    return [" ".join(part.split()) if not part.startswith("|") else part for part in text.strip().split("\n\n")]


def mean(values: Values, digits: int = 1) -> str:
    return f"{abs(_spread(values).mean):.{digits}f}"


def signed(values: Values, digits: int = 1) -> str:
    return f"{_spread(values).mean:+.{digits}f}".replace("-", "−")


def span(values: Values, digits: int = 1) -> str:
    """ "0.5 to 3.5"; "one seed" without an interval."""
    found = _spread(values)
    if math.isnan(found.low) or found.seeds < 2:
        return "one seed"
    return f"{found.low:.{digits}f} to {found.high:.{digits}f}".replace("-", "−")


def seeds(values: Values) -> int:
    return _spread(values).seeds


def _spread(values: Values) -> Interval:
    if not values:
        raise ValueError(f"answer: no run of {values.text}")
    return Interval.of(list(values.by_seed.values()))


def _checked(word: str, side: int) -> Callable[..., str]:
    def check(values: Values, digits: int = 1) -> str:
        found = _spread(values)
        low, high = (found.mean, found.mean) if found.seeds < 2 else (found.low, found.high)
        fits = {1: low > 0, -1: high < 0, 0: found.seeds > 1 and low <= 0 <= high}[side]
        if not fits:
            raise ValueError(f"answer: {values.text} is no longer {word}: {found}")
        return mean(values, digits)

    return check


def answer_file(folder: str) -> Path:
    """``answer.md`` of a study's folder."""
    return Path(__file__).parent.parent / "papers" / folder / "answer.md"

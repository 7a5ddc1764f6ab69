"""Verdicts on claims, and how those of several parts make one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from typing import NamedTuple, TypeVar

import pandas as pd

from pfl_core.study.statistics import LEVEL, Interval, Missing, each_dataset


class Verdict(NamedTuple):
    """status: holds | does not hold | undecided; numbers: what says so, in one line."""

    status: str
    numbers: str


UNDECIDED = "undecided"

Check = Callable[[pd.DataFrame], Verdict]
Rival = TypeVar("Rival")


def all_of(statuses: list[str]) -> str:
    """All must hold; one failure is enough to fail."""
    if "does not hold" in statuses:
        return "does not hold"
    return "holds" if statuses and set(statuses) == {"holds"} else "undecided"


def any_of(statuses: list[str]) -> str:
    """One that holds is enough; fails only if all fail."""
    if "holds" in statuses:
        return "holds"
    return "does not hold" if statuses and set(statuses) == {"does not hold"} else "undecided"


def holm(leads: Mapping[Rival, Interval]) -> dict[Rival, str]:
    """The statuses of the leads over several rivals, with Holm's correction for their number.

    From the smallest p-value on, the k-th of m (from 0) is held against 5 % / (m - k); after the first that fails, all
    are undecided.
    """
    found, m = dict.fromkeys(leads, UNDECIDED), len(leads)
    for k, rival in enumerate(sorted(leads, key=lambda rival: leads[rival].p)):
        if not leads[rival].p <= LEVEL / (m - k):
            break
        found[rival] = leads[rival].status
    return found


def above(lead: Interval, bound: float) -> str:
    """Whether the interval lies above the bound; NaN bounds decide nothing."""
    return "holds" if lead.low > bound else "does not hold" if lead.high < bound else "undecided"


def below(lead: Interval, bound: float) -> str:
    """Whether the interval lies below the bound."""
    return "holds" if lead.high < bound else "does not hold" if lead.low > bound else "undecided"


def telling(leads: Mapping[Rival, Interval], bound: float = 0.0) -> tuple[Rival, str]:
    """Whose lead to show, and what it is called: one clearly below the bound decides alone; else the smallest mean."""
    lost = {rival: lead for rival, lead in leads.items() if below(lead, bound) == "holds"}
    if lost:
        return min(lost, key=lambda rival: lost[rival].high), "clearest loss"
    return min(leads, key=lambda rival: leads[rival].mean), "least lead"


def on_each_dataset(check: Check) -> Check:
    """The check on the rows of each data set; it must hold on all that are stored."""

    @wraps(check)
    def judge(results: pd.DataFrame) -> Verdict:
        parts = [(label, partial(check, rows)) for label, rows in each_dataset(results)]
        if not parts:
            raise Missing("no data set of this claim is stored")
        return all_hold(parts)

    return judge


def on_stored_datasets(check: Check) -> Check:
    """As ``on_each_dataset``, but a data set that lacks the claim's runs is left out, and named; one must be left.

    For claims that do not say on which data sets they hold. The check may raise Missing only where nothing refutes it.
    """

    @wraps(check)
    def judge(results: pd.DataFrame) -> Verdict:
        found, left_out = [], []
        for label, rows in each_dataset(results):
            try:
                status, numbers = check(rows)
                found.append((status, f"{label}: {numbers}"))
            except Missing as missing:
                left_out.append(f"{label}: {missing}")
        if not found:
            raise Missing("; ".join(left_out) or "no data set of this claim is stored")
        statuses, texts = zip(*found, strict=True)
        return Verdict(all_of(list(statuses)), "; left out, ".join(["; ".join(texts), *left_out]))

    return judge


def all_hold(parts: Iterable[tuple[str, Callable[[], Verdict]]]) -> Verdict:
    """A claim of several parts, (label, verdict) each: what one lacks leaves that one undecided."""
    verdicts = []
    for label, part in parts:
        try:
            status, numbers = part()
        except Missing as missing:
            status, numbers = "undecided", str(missing)
        verdicts.append((status, f"{label}: {numbers}"))
    statuses, texts = zip(*verdicts, strict=True)
    return Verdict(all_of(list(statuses)), "; ".join(texts))

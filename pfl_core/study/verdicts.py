"""Verdicts on claims, and how verdicts on several parts are combined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from itertools import product
from typing import NamedTuple, TypeVar

import pandas as pd

from pfl_core.study.statistics import LEVEL, Interval, Missing, Reading, each_dataset, reading, refuted_by


class Verdict(NamedTuple):
    """The result of a claim's check."""

    status: str  # holds | does not hold | undecided
    numbers: str  # the numbers behind it, in one line


UNDECIDED = "undecided"

Check = Callable[[pd.DataFrame], Verdict]
Rival = TypeVar("Rival")


def all_of(statuses: list[str]) -> str:
    """Combined status: "does not hold" if one part does not, "holds" if all hold, else "undecided"."""
    if "does not hold" in statuses:
        return "does not hold"
    return "holds" if statuses and set(statuses) == {"holds"} else "undecided"


def any_of(statuses: list[str]) -> str:
    """Combined status: "holds" if one part holds, "does not hold" if no part holds, else "undecided"."""
    if "holds" in statuses:
        return "holds"
    return "does not hold" if statuses and set(statuses) == {"does not hold"} else "undecided"


def holm(leads: Mapping[Rival, Interval], planned: int = 0) -> dict[Rival, str]:
    """The statuses of the leads over several rivals, with Holm's correction for multiple tests.

    In ascending order, the k-th p-value of m (from 0) is compared with LEVEL / (m - k). From the first that is larger
    on, all statuses are undecided. m is the number of leads, or ``planned`` if that is larger, so that a status does
    not change back when the other comparisons arrive.
    """
    statuses, m = dict.fromkeys(leads, UNDECIDED), max(len(leads), planned)
    for k, rival in enumerate(sorted(leads, key=lambda rival: leads[rival].p)):
        if not leads[rival].p <= LEVEL / (m - k):
            break
        statuses[rival] = leads[rival].status
    return statuses


def ahead_of_all(leads: Mapping[Rival, Interval], label: Callable[[Rival], str] = str) -> str:
    """The status of the claim that all leads are above 0, by ``holm``. One loss, of ``paired``, refutes it alone.

    ``label`` names a rival.
    """
    statuses = holm(leads)
    for rival, lead in leads.items():
        if statuses[rival] == "does not hold" and lead.read is not None:
            refuted_by({f"{lead} over {label(rival)}": lead.read})
    return all_of(list(statuses.values()))


def above(lead: Interval, bound: float) -> str:
    """Whether the interval lies above the bound; undecided for NaN."""
    return "holds" if lead.low > bound else "does not hold" if lead.high < bound else "undecided"


def below(lead: Interval, bound: float) -> str:
    """Whether the interval lies below the bound; undecided for NaN."""
    return "holds" if lead.high < bound else "does not hold" if lead.low > bound else "undecided"


def telling(leads: Mapping[Rival, Interval], bound: float = 0.0) -> tuple[Rival, str]:
    """The rival whose lead is shown, and a name for that lead.

    This is the lead that is most clearly below the bound; if there is none, the smallest mean lead.
    """
    lost = {rival: lead for rival, lead in leads.items() if below(lead, bound) == "holds"}
    if lost:
        return min(lost, key=lambda rival: lost[rival].high), "clearest loss"
    return min(leads, key=lambda rival: leads[rival].mean), "least lead"


def on_each_dataset(check: Check) -> Check:
    """Apply the check to the rows of each stored data set. The claim must hold on all of them."""

    @wraps(check)
    def judge(results: pd.DataFrame) -> Verdict:
        parts = [(label, partial(check, rows)) for label, rows in each_dataset(results)]
        if not parts:
            raise Missing("no data set of this claim is stored")
        return all_hold(parts)

    return judge


def on_stored_datasets(check: Check) -> Check:
    """As ``on_each_dataset``, but data sets without the claim's runs are left out and listed; at least one must remain.

    For claims that do not state their data sets. The check may raise Missing only if no stored result refutes it.
    """

    @wraps(check)
    def judge(results: pd.DataFrame) -> Verdict:
        judged, left_out = [], []
        for label, rows in each_dataset(results):
            with reading() as read:
                try:
                    judged.append((label, check(rows), read))
                except Missing as missing:
                    left_out.append(f"{label}: {missing}")
                    read.missing.clear()  # the verdict on the others does not lack these runs
        if not judged:
            raise Missing("; ".join(left_out) or "no data set of this claim is stored")
        verdict = _all_hold(judged)
        return verdict._replace(numbers="; left out, ".join([verdict.numbers, *left_out]))

    return judge


def lacking(text: str, what: str) -> Verdict:
    """Undecided for want of results: ``text`` tells what is stored, ``what`` ("without conv2") what is not."""
    return Verdict(UNDECIDED, f"{text}; {Missing(what)}")  # a reading keeps the message, also of one not raised


def all_hold(parts: Iterable[tuple[str, Callable[[], Verdict]]]) -> Verdict:
    """The verdict on a claim with several parts (label, check). A part with missing results is undecided."""
    return _all_hold([(label, *_judged(part)) for label, part in parts])


def _all_hold(judged: list[tuple[str, Verdict, Reading]]) -> Verdict:
    """``all_hold`` from the label, verdict and data of each part. A part that does not hold refutes the claim alone."""
    for label, verdict, read in judged:
        if verdict.status == "does not hold":
            refuted_by({f"{label}: {numbers}": alone for numbers, alone in _refutations(verdict, read).items()})
    return _combined(all_of, judged)


def any_holds(parts: Iterable[tuple[str, Callable[[], Verdict]]]) -> Verdict:
    """The verdict on a claim that holds if one of several parts (label, check) holds, and fails if all of them fail."""
    judged = [(label, *_judged(part)) for label, part in parts]
    combined = _combined(any_of, judged)
    if combined.status == "does not hold":
        # refuted by any choice of one refutation for each part
        each = [
            [(f"{label}: {numbers}", alone) for numbers, alone in _refutations(verdict, read).items()]
            for label, verdict, read in judged
        ]
        for choice in product(*each):
            together = Reading()
            for _, alone in choice:
                together.add(alone)
            refuted_by({"; ".join(numbers for numbers, _ in choice): together})
    return combined


def _judged(part: Callable[[], Verdict]) -> tuple[Verdict, Reading]:
    """The verdict on a part of a claim, and what it used. With missing results it is undecided."""
    with reading() as read:
        try:
            return part(), read
        except Missing as missing:
            return Verdict(UNDECIDED, str(missing)), read


def _combined(rule: Callable[[list[str]], str], judged: list[tuple[str, Verdict, Reading]]) -> Verdict:
    return Verdict(
        rule([verdict.status for _, verdict, _ in judged]),
        "; ".join(f"{label}: {verdict.numbers}" for label, verdict, _ in judged),
    )


def _refutations(verdict: Verdict, read: Reading) -> dict[str, Reading]:
    """What refutes a part that does not hold: each of its own parts that does so alone, or all that it used."""
    return read.refutations or {verdict.numbers: read}

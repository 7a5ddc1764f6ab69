"""A paper's claims, with verdicts from the paper's own tables and from stored results."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial, wraps

import pandas as pd

from pfl_core.study.comparison import Comparison
from pfl_core.study.criteria import OPEN_INTERVAL, RUNS_MISSING, Criteria, Judgement
from pfl_core.study.names import with_methods
from pfl_core.study.published import facts
from pfl_core.study.statistics import Missing, claim_rows, reading
from pfl_core.study.verdicts import Check, Verdict

FOLLOWS = "it follows from the algorithm"


@dataclass(frozen=True)
class ClaimCheck:
    """The check of one claim: a function from results to a verdict. Missing results leave the claim undecided."""

    check: Check
    comparison: Comparison
    settings: tuple[str, ...] = ()  # the settings (column `setting`) that the claim is about; empty: all of the paper
    varied: tuple[str, ...] = ()  # fields that it compares, in addition to `Comparison.varied`

    def __call__(self, results: pd.DataFrame) -> Verdict:
        """The verdict by the numbers alone, without the conditions of ``Criteria``."""
        return self.verdict(claim_rows(results, self.comparison, self.settings, self.varied))

    def verdict(self, rows: pd.DataFrame) -> Verdict:
        """The verdict from prepared rows. Claims about the same settings share one table."""
        try:
            return self.check(rows) if len(rows) else Verdict("undecided", "nothing is stored")
        except Missing as missing:
            return Verdict("undecided", str(missing))


@dataclass(frozen=True)
class ClaimChecks:
    """The checks of one paper's claims. Calling it gives the decorator that adds a check."""

    comparison: Comparison
    criteria: Criteria = field(default_factory=Criteria)
    checks: dict[int, ClaimCheck] = field(default_factory=dict)

    def __call__(
        self,
        number: int,
        settings: Sequence[str] = (),
        *,
        varied: Sequence[str] = (),
        rows: Callable[[pd.DataFrame], pd.DataFrame] | None = None,
    ) -> Callable[[Check], ClaimCheck]:
        """Add the check of claim ``number``. ``rows`` selects the rows that are passed to it."""

        def add(check: Check) -> ClaimCheck:
            selected = _selected(rows, check) if rows else check
            self.checks[number] = ClaimCheck(selected, self.comparison, tuple(settings), tuple(varied))
            return self.checks[number]

        return add


def _selected(select: Callable[[pd.DataFrame], pd.DataFrame], check: Check) -> Check:
    @wraps(check)
    def judge(results: pd.DataFrame) -> Verdict:
        rows = select(results)
        return check(rows) if len(rows) else Verdict("undecided", "nothing is stored")

    return judge


@dataclass(frozen=True)
class Claim:
    """One claim of a paper, in this project's words."""

    paper: str
    number: int  # within the paper, as on its method page
    text: str
    source: str  # table, figure or section
    supported: str  # by the paper's own tables: yes | partly | no | no table
    published: str  # the numbers behind `supported`
    check: ClaimCheck
    criteria: Criteria
    follows: bool = False  # from the algorithm's definition: any right code makes it hold

    @property
    def in_tables(self) -> str:
        """``supported``, and FOLLOWS if the claim follows from the algorithm."""
        return f"{self.supported}; {FOLLOWS}" if self.follows else self.supported

    def judge(self, rows: pd.DataFrame) -> Judgement:
        """The judgement from prepared rows; undecided, with reasons, if they do not meet the criteria."""
        with reading() as used:
            verdict = self.check.verdict(rows)
        return self.criteria.judge(self.number, verdict, used, rows)


def claims(checks: ClaimChecks) -> list[Claim]:
    """All claims of a paper, in order. Raises ValueError for a claim without a check."""
    paper = checks.comparison.paper
    entries = facts(paper).get("claim", [])
    for entry in entries:
        if entry["number"] not in checks.checks:
            raise ValueError(f"{paper}: claim {entry['number']} has no check; add one to papers/{paper}/claims")
    return [Claim(paper, **entry, check=checks.checks[entry["number"]], criteria=checks.criteria) for entry in entries]


def parts(numbers: str) -> list[str]:
    """The numbers or reasons behind a verdict, one by one; ``numbers`` is that column of ``claims_table``."""
    return re.split(r"; (?![^\[\]]*\])|(?<=\)): |(?<=\.) (?=By the numbers|Numbers: )", numbers)


def in_short(numbers: str) -> str:
    """The first number or reason behind a verdict; for an open interval or missing runs, also the first number."""
    first, *others = parts(numbers)
    shown = first.startswith((OPEN_INTERVAL, RUNS_MISSING))
    values = [part for part in others if shown and part.startswith("Numbers: ")]
    return ". ".join(part.removesuffix(".") for part in (first, *values))


def claims_table(checks: ClaimChecks, results: pd.DataFrame, numbers: list[int] | None = None) -> pd.DataFrame:
    """A row for each claim, or for those with the given numbers, with both verdicts. Partial runs are left out."""
    if "partial" in results.columns:
        results = results[~results["partial"].eq(True)]
    rows, prepared = [], cache(partial(claim_rows, results, checks.comparison))
    for claim in claims(checks):
        if numbers is None or claim.number in numbers:
            judgement = claim.judge(prepared(claim.check.settings, claim.check.varied))
            ours = (judgement.status, with_methods(judgement.numbers), judgement.runs)
            rows.append((claim.number, claim.text, claim.source, claim.in_tables, claim.published, *ours))
    columns = ["claim", "text", "source", "in the paper's tables", "published", "ours", "numbers", "runs"]
    return pd.DataFrame(rows, columns=columns).set_index("claim")

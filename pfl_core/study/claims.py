"""A paper's claims: what they say, what the paper's own tables say to it, and what stored results say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial, wraps

import pandas as pd

from pfl_core.study.comparison import Comparison
from pfl_core.study.criteria import Criteria, Judgement
from pfl_core.study.published import facts
from pfl_core.study.statistics import Missing, claim_rows, reading
from pfl_core.study.verdicts import Check, Verdict


@dataclass(frozen=True)
class ClaimCheck:
    """The check of one claim: prepared results in, a verdict out; results that are missing leave it undecided."""

    check: Check
    comparison: Comparison
    settings: tuple[str, ...] = ()  # the experiments (column `setting`) that the claim is about; none: all of the paper
    varied: tuple[str, ...] = ()  # fields that it compares beside those that all of the paper's claims do

    def __call__(self, results: pd.DataFrame) -> Verdict:
        """By the numbers alone."""
        return self.found(claim_rows(results, self.comparison, self.settings, self.varied))

    def found(self, rows: pd.DataFrame) -> Verdict:
        """By rows that are prepared already: one table serves all claims about the same experiments."""
        try:
            return self.check(rows) if len(rows) else Verdict("undecided", "nothing is stored")
        except Missing as missing:
            return Verdict("undecided", str(missing))


@dataclass(frozen=True)
class ClaimChecks:
    """The checks of one paper's claims; called, it is the decorator that adds one."""

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
        """Adds the check of claim ``number``; ``rows`` selects the rows that it gets."""

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
    """One claim in this project's words. `supported` by the paper's own tables: yes | partly | no | no table."""

    paper: str
    number: int  # within the paper, as on its method page
    text: str
    source: str  # table, figure or section
    supported: str
    published: str  # the numbers behind `supported`
    check: ClaimCheck
    criteria: Criteria

    def judge(self, rows: pd.DataFrame) -> Judgement:
        """By prepared rows; undecided, with the reason, where they may not decide it (see `study.criteria`)."""
        with reading() as read:
            verdict = self.check.found(rows)
        return self.criteria.judge(self.number, verdict, read, rows)


def claims(checks: ClaimChecks) -> list[Claim]:
    """All claims of a paper, in order. Raises ValueError for one without a check."""
    paper = checks.comparison.paper
    stated = facts(paper).get("claim", [])
    for claim in stated:
        if claim["number"] not in checks.checks:
            raise ValueError(f"{paper}: claim {claim['number']} has no check; add one to papers/{paper}/claims")
    return [Claim(paper, **claim, check=checks.checks[claim["number"]], criteria=checks.criteria) for claim in stated]


def claims_table(checks: ClaimChecks, results: pd.DataFrame, numbers: list[int] | None = None) -> pd.DataFrame:
    """Claims (all, or those named) beside both verdicts, one row each, for the end of a notebook.

    Runs that were stopped early decide nothing.
    """
    if "partial" in results.columns:
        results = results[~results["partial"].eq(True)]
    rows, prepared = [], cache(partial(claim_rows, results, checks.comparison))
    for claim in claims(checks):
        if numbers is None or claim.number in numbers:
            judged = claim.judge(prepared(claim.check.settings, claim.check.varied))
            rows.append((claim.number, claim.text, claim.source, claim.supported, claim.published, *judged))
    columns = ["claim", "text", "source", "in the paper's tables", "published", "ours", "numbers", "runs"]
    return pd.DataFrame(rows, columns=columns).set_index("claim")

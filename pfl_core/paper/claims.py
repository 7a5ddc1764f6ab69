"""The papers' claims: what they say, what their own tables say to it, and what stored results say."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

import pandas as pd

from pfl_core.paper import (  # noqa: F401  (they register the checks)
    checks_fedpews,
    checks_fedpews_grids,
    checks_fedpews_parts,
    checks_fedselect,
    checks_fedselect_masks,
    checks_fedselect_methods,
    checks_fedselect_workshop,
    checks_pfedgate,
    checks_pfedgate_parts,
    checks_pfedgate_studies,
    checks_star_pfl,
    checks_star_pfl_tables,
)
from pfl_core.paper.results import tidy
from pfl_core.paper.tables import facts
from pfl_core.paper.verdicts import CHECKS, Decision, Verdict


@dataclass(frozen=True)
class Claim:
    """One claim in our words. `supported` by the paper's own tables: yes | partly | no | no table."""

    paper: str
    number: int  # within the paper, as on its method page
    text: str
    source: str  # table, figure or section
    supported: str
    published: str  # the numbers behind `supported`
    needs: str = ""  # what a verdict would take, where there is no check yet
    check: Decision | None = None

    def verdict(self, results: pd.DataFrame) -> Verdict:
        """Decided by our results (see `paper.results`); undecided, with the reason, where nothing decides it."""
        if self.check is None:
            return Verdict("undecided", f"not checked yet: needs {self.needs}")
        return self.check(results)


def claims(paper: str) -> list[Claim]:
    """All claims of a paper, in order. Raises ValueError for an unknown paper."""
    return [Claim(paper, **claim, check=CHECKS.get((paper, claim["number"]))) for claim in facts(paper)["claim"]]


def claims_table(paper: str, results: pd.DataFrame, numbers: list[int] | None = None) -> pd.DataFrame:
    """Claims (all, or those named) beside both verdicts, one row each, for the end of a notebook.

    Runs that were stopped early decide nothing.
    """
    if "partial" in results.columns:
        results = results[~results["partial"].eq(True)]
    rows, tidied = [], cache(partial(tidy, results, paper))
    for claim in claims(paper):
        if numbers is None or claim.number in numbers:
            check = claim.check
            verdict = check.judge(tidied(check.settings, check.varied)) if check else claim.verdict(results)
            rows.append((claim.number, claim.text, claim.source, claim.supported, claim.published, *verdict))
    columns = ["claim", "text", "source", "in the paper's tables", "published", "ours", "numbers"]
    return pd.DataFrame(rows, columns=columns).set_index("claim")

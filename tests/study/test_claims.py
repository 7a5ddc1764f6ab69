"""Every paper's claims are complete, and without results all of them are undecided."""

from pfl_core import papers
from pfl_core.papers import PAPERS
from pfl_core.study.claims import claims


def test_claims_are_complete_and_numbered():
    for paper in PAPERS:
        checks = papers.paper(paper).claims
        found = claims(checks)
        assert [claim.number for claim in found] == list(range(1, len(found) + 1)), paper
        assert checks.checks.keys() == set(range(1, len(found) + 1)), f"{paper}: a check of no claim"
        for claim in found:
            assert claim.text and claim.source and claim.published, (paper, claim.number)
            assert claim.supported in ("yes", "partly", "no", "no table"), (paper, claim.number)

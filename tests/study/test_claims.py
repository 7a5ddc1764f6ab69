"""Every paper's claims are complete, and nothing stored decides none of them."""

from pfl_core import papers
from pfl_core.papers import PAPERS
from pfl_core.study.claims import claims

COUNTS = {"fedselect": 22, "fedpews": 16, "pfedgate": 23, "star_pfl": 12}


def test_claims_are_complete_and_numbered():
    assert COUNTS.keys() == PAPERS.keys()
    for paper, count in COUNTS.items():
        checks = papers.paper(paper).claims
        found = claims(checks)
        assert [claim.number for claim in found] == list(range(1, count + 1)), paper
        assert checks.checks.keys() <= set(range(1, count + 1)), f"{paper}: a check of no claim"
        for claim in found:
            assert claim.text and claim.source and claim.published, (paper, claim.number)
            assert claim.supported in ("yes", "partly", "no", "no table"), (paper, claim.number)
            assert bool(claim.needs) != bool(claim.check), f"{paper}, {claim.number}: has neither a check nor its needs"

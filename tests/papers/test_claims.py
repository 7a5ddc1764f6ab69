"""The words of all claims on invented runs: the cases of each paper, and laws of every claim.

The cases of a claim are (word, score, options of ``invented_runs.word``), in ``CASES`` of the paper's own tests.
"""

from __future__ import annotations

from importlib import import_module

import pytest

from pfl_core import papers
from pfl_core.study.claims import NOT_FOUND, NOT_RUN, OPEN, REPRODUCED, REVERSED, SHOWN
from tests.papers.invented_runs import judged, word

CASES = {
    (name, number): cases
    for name in papers.PAPERS
    for number, cases in import_module(f"tests.papers.{name}.test_claims").CASES.items()
}
ALL_CLAIMS = [(name, number) for name in papers.PAPERS for number in papers.paper(name).claims]
ROWS = [(*claim, *case) for claim, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("name", "number", "expected", "score", "options"), ROWS)
def test_the_word_of_a_claim(name, number, expected, score, options):
    assert word(papers.paper(name), number, score, **options) == expected


def reproduced(name, number):
    """The first case of this claim that is reproduced: its score and its options."""
    return next((score, options) for expected, score, options in CASES[name, number] if expected == REPRODUCED)


def exact(name, number):
    """Whether all effects of the claim are counts or identities, which one seed decides."""
    score, options = reproduced(name, number)
    return all(effect.exact for effect in judged(papers.paper(name), number, score, **options).effects)


@pytest.mark.parametrize(("name", "number"), ALL_CLAIMS)
def test_each_claim_can_be_reproduced_and_can_fail(name, number):
    """What is exact is neither open nor not found; without a margin it cannot be not found."""
    claim = papers.paper(name).claims[number]
    words = {expected for expected, *_ in CASES[name, number]} - {NOT_RUN}
    if exact(name, number):
        assert words == {REPRODUCED, REVERSED}
    else:
        assert not claim.follows
        assert words - {OPEN} == {REPRODUCED, REVERSED} | ({NOT_FOUND} if claim.margin is not None else set())


ACTING = {"fedselect": {12, 13, 14, 15, 16, 23}, "star_pfl": {9, 10}}  # claims about a mechanism
NOISY = {("star_pfl", 1), ("star_pfl", 5), ("star_pfl", 12)}  # noise gives other words, in rows of their own
INEXACT = [claim for claim in ALL_CLAIMS if claim[0] != "pfedgate" and not exact(*claim)]  # its cases have both


@pytest.mark.parametrize(("name", "number"), INEXACT)
def test_noise_and_an_idle_mechanism_leave_a_claim_open(name, number):
    paper = papers.paper(name)
    score, options = reproduced(name, number)
    if (name, number) not in NOISY:
        assert word(paper, number, score, **options | {"spread": 1000 * options.get("spread", 0.1)}) == OPEN
    acting = number in ACTING.get(name, ())
    assert word(paper, number, score, **options | {"inert": 1.0}) == (OPEN if acting else REPRODUCED)


@pytest.mark.parametrize(("name", "number"), ALL_CLAIMS)
def test_few_seeds_missing_runs_and_small_runs_decide_nothing(name, number):
    paper = papers.paper(name)
    score, options = reproduced(name, number)
    few = word(paper, number, score, **options | {"seeds": 2})
    assert few == (REPRODUCED if exact(name, number) else OPEN)
    assert word(paper, number, lambda *pick: None) == NOT_RUN
    assert word(paper, number, score, **options | {"preset": "quick"}) == SHOWN

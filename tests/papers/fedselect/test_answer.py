"""The answer of FedSelect's results page, from synthetic runs."""

from __future__ import annotations

import pytest

from pfl_core.papers.fedselect.answer import answer
from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.study.report import Evidence
from tests.papers.fedselect.invented import rows
from tests.study.invented import frame


def first_sentence(*runs):
    """Of the answer from runs of seed 0 at the paper's setting; a run is (method, accuracy, completed rounds)."""
    made = Evidence(PAPER, {}, {})
    stored = [rows(method, (value,), preset="paper", rounds=rounds) for method, value, rounds in runs]
    other = rows("fedselect", (50.0,), "alpha=0.5", preset="paper", rounds=7)
    made.__dict__["frames"] = {"real": frame(), "paper": frame(*stored, other)}
    return answer(made)[0]


@pytest.mark.parametrize(("of_local", "text"), [(60, "after 60 of 200"), (200, "after 60 to 200 of 200")])
def test_completed_rounds_are_those_of_the_records_and_planned_ones_those_of_the_preset(of_local, text):
    sentence = first_sentence(("fedselect", 77.9, 60), ("local", 76.8, of_local), ("fedper", 79.6, 60))
    assert f"{text} rounds, FedSelect scores 77.9 %, training alone 76.8 % (+1.1 points, 1 seed)" in sentence


def test_an_answer_without_runs_says_so():
    assert "after 0 of 200 rounds, FedSelect scores (not stored)" in first_sentence()

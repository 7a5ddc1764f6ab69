"""The answer of pFedGate's results page, from synthetic runs."""

from __future__ import annotations

from pfl_core.papers.pfedgate.answer import answer
from pfl_core.papers.pfedgate.paper import PAPER
from pfl_core.study.report import Evidence
from tests.papers.pfedgate.invented import rows
from tests.study.invented import SEEDS, frame

CONTROLS = {  # options -> accuracy and seeds
    "": (90.3, SEEDS),
    ";mask=small_blocks": (90.1, SEEDS),
    ";mask=random": (90.0, SEEDS),
    ";gate_override=1": (89.9, SEEDS),
    ";mask=random;gate_override=1": (89.4, SEEDS),
    ";mask=small_blocks;gate_override=1": (86.8, SEEDS[:2]),
}


def stored(method, value, variant="", seeds=SEEDS):
    """A run's accuracy for each seed, in the terms that the page uses."""
    return [
        row
        for metric in ("acc_pooled", "acc_mean")
        for row in rows(method, (value,) * len(seeds), variant, metric, seeds=seeds, setting="fashion_mnist")
    ]


def sentences(*runs):
    made = Evidence(PAPER, {}, {})
    made.__dict__["frames"] = {"real": frame(*runs), "paper": frame()}
    return answer(made)


def test_the_lead_over_fedrep_is_told_at_two_budgets():
    runs = stored("pfedgate", 90.7), stored("pfedgate", 90.3, "keep_ratio=0.3"), stored("fedrep", 91.6)
    assert (
        "FedRep is -0.9 [-0.9, -0.9] points at s = 0.5 and -1.3 [-1.3, -1.3] points at s = 0.3;" in sentences(*runs)[3]
    )


def test_masks_and_scales_are_compared_with_controls_and_fewer_seeds_are_told():
    controls = [
        stored("pfedgate", value, f"block_layout=balanced{options}", seeds)
        for options, (value, seeds) in CONTROLS.items()
    ]
    _, short, *_, found = sentences(stored("pfedgate", 90.7), *controls)
    assert "learned masks and scales score 90.3 %, learned scales with random masks 90.0 %, learned masks" in short
    assert short.endswith("with scales of 1 89.9 %, and random masks with scales of 1 89.4 %.")
    assert "a lead of +0.3 [0.3, 0.3] points over random ones and of +0.2 [0.2, 0.2] points over fixed" in found
    assert "learned scales have +0.4 [0.4, 0.4] points over scales of 1." in found
    assert found.endswith("Fixed masks score 90.1 %, and 86.8 % (2 seeds) with scales of 1.")


def test_an_answer_without_runs_says_so():
    assert all("(not stored)" in sentence or "not yet compared" in sentence for sentence in sentences())

"""The answer of Star-PFL's results page, from synthetic runs."""

from __future__ import annotations

from pfl_core.papers.star_pfl.answer import answer
from pfl_core.papers.star_pfl.paper import PAPER
from pfl_core.study.report import Evidence
from tests.study.invented import frame


def run(method, metric, value, alpha=0.01, variant="", seed=0):
    """The row of one run, as a list."""
    fields = dict(preset="real", setting="axial", rounds=15, dirichlet=alpha, variant=variant, seed=seed)
    return [fields | dict(method=method, metric=metric, value=value)]


def evidence(*runs):
    made = Evidence(PAPER, {}, {})
    made.__dict__["frames"] = {"real": frame(*runs), "paper": frame()}
    return made


def test_all_methods_are_scored_at_the_same_two_points_and_at_one_alpha():
    runs = [run("star_pfl", "acc_mean_merged", 99.0, alpha=0.1), run("star_pfl", "acc_mean_merged", 98.0, variant="x")]
    for method, merged, trained in (("star_pfl", 90.8, 94.0), ("fedavg", 90.9, 94.4), ("fedbn", 90.7, 94.3)):
        runs += [run(method, "acc_mean_merged", merged), run(method, "acc_mean_trained", trained)]
    short, first, _, second, *_ = answer(evidence(*runs))
    assert "α = 0.01, 15 rounds, 1 seed)" in first
    assert "Star-PFL scores 90.8 %, FedAvg 90.9 % and FedBN 90.7 %" in first
    assert "Star-PFL scores 94.0 %, FedAvg 94.4 % and FedBN 94.3 %" in second
    assert (
        short
        == "In short, by the numbers so far: on MNIST, Star-PFL is within 0.4 points of FedAvg if both are scored "
        "at the same point of a round."
    )


def test_the_gap_of_the_short_answer_is_rounded_up():
    """94.04 and 94.38 are shown as 94.0 and 94.4: a gap of 0.3 would contradict them."""
    runs = [run(name, "acc_mean_merged", 90.0) for name in ("star_pfl", "fedavg")]
    runs += [run("star_pfl", "acc_mean_trained", 94.04), run("fedavg", "acc_mean_trained", 94.38)]
    assert "within 0.4 points of FedAvg" in answer(evidence(*runs))[0]


def test_the_short_answer_says_if_less_is_frozen_than_on_noise():
    short = answer(evidence(run("star_pfl", "frozen_local", 6.0), run("star_pfl", "chance_local", 12.0)))[0]
    assert "fewer parameters than they would if all updates were pure noise" in short


def test_numbers_are_means_over_seeds():
    runs = [run("star_pfl", "acc_mean_merged", 90.0 + seed, seed=seed) for seed in range(3)]
    _, first, *_ = answer(evidence(*runs))
    assert "3 seeds" in first and "Star-PFL scores 91.0 %, FedAvg (not stored)" in first


def test_an_answer_without_runs_says_so():
    assert all("(not stored)" in sentence for sentence in answer(evidence()))

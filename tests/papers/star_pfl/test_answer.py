"""The answer of Star-PFL's results page, from synthetic runs."""

from __future__ import annotations

from pfl_core.papers.star_pfl.answer import answer
from pfl_core.papers.star_pfl.paper import PAPER
from pfl_core.study.report import Evidence
from tests.study.invented import frame


def run(method, metric, value, alpha=0.1, variant="", seed=0, setting="axial"):
    """The row of one run, as a list."""
    fields = dict(preset="real", setting=setting, rounds=60, dirichlet=alpha, variant=variant, seed=seed)
    return [fields | dict(method=method, metric=metric, value=value)]


def evidence(*runs):
    made = Evidence(PAPER, {}, {})
    made.__dict__["frames"] = {"real": frame(*runs), "paper": frame()}
    return made


def seeds(method, metric, values, **fields):
    return [row for seed, value in enumerate(values) for row in run(method, metric, value, seed=seed, **fields)]


def test_all_methods_are_scored_at_the_same_two_points_and_at_one_alpha():
    runs = [
        run("star_pfl", "acc_mean_picked_merged", 99.0, alpha=1.0),
        run("star_pfl", "acc_mean_picked_merged", 98.0, variant="x"),
    ]
    for method, merged, trained in (("star_pfl", 90.8, 94.0), ("fedavg", 90.9, 94.4), ("fedbn", 90.7, 94.3)):
        runs += [run(method, "acc_mean_picked_merged", merged), run(method, "acc_mean_picked_trained", trained)]
    short, _, gains, first, second, *_ = answer(evidence(*runs))
    assert "adds +3.2 and (not stored) points on MNIST and Fashion-MNIST; with FedAvg, whose clients" in gains
    assert gains.endswith("it adds +3.5 and (not stored): such gains need no masks.")
    assert "α = 0.1, 60 rounds, " in first
    assert "Star-PFL scores 90.8 %, FedAvg 90.9 % and FedBN 90.7 %; its lead over FedAvg is -0.1 points, 1 s" in first
    assert "Star-PFL scores 94.0 %, FedAvg 94.4 % and FedBN 94.3 %" in second
    assert (
        "compared in one seed only with FedAvg on MNIST after aggregation, on MNIST after local training; not" in short
    )


def test_the_short_answer_names_the_side_at_each_point():
    runs = [
        seeds("star_pfl", "acc_mean_picked_merged", (90.0, 90.2, 90.1)),
        seeds("fedavg", "acc_mean_picked_merged", (91, 91, 91)),
    ]
    runs += [
        seeds("star_pfl", "acc_mean_picked_trained", (95, 95, 95.1)),
        seeds("fedavg", "acc_mean_picked_trained", (93, 93, 93)),
    ]
    short, _, _, first, *_ = answer(evidence(*runs))
    assert (
        "Star-PFL is behind FedAvg on MNIST after aggregation; ahead of FedAvg on MNIST after local training;" in short
    )
    assert "Star-PFL scores 90.1 %, FedAvg 91.0 % and FedBN (not stored)" in first


def test_fashion_mnist_is_told_apart_from_mnist():
    there = {"setting": "sagital"}
    runs = [seeds(name, "acc_mean_picked_merged", values, **there) for name, values in (
        ("star_pfl", (80.0, 80.2, 80.1)), ("fedavg", (79, 79, 79)), ("local", (70, 70, 70)), ("fedap", (81, 81, 81)),
    )]  # fmt: skip
    short, *_, last = answer(evidence(*runs, seeds("star_pfl", "acc_mean", (80, 80, 80), **there)))
    assert "not yet compared with FedAvg on MNIST after aggregation, on MNIST after local training, on Fash" in short
    assert "ahead of FedAvg on Fashion-MNIST after aggregation" in short
    assert "(3 seeds), after aggregation Star-PFL scores 80.1 %, FedAvg 79.0 %" in last
    assert "training alone scores 70.0 % and FedAP 81.0 %" in last


def test_four_comparisons_are_corrected_for_their_number():
    """A 95 % interval just above 0 in one of four comparisons is not clearly ahead."""
    runs = []
    for data in ("axial", "sagital"):
        for metric in ("acc_mean_picked_merged", "acc_mean_picked_trained"):
            own = (80.3, 80.5, 80.7) if (data, metric) == ("axial", "acc_mean_picked_trained") else (79.0, 80.0, 81.0)
            runs += [seeds("star_pfl", metric, own, setting=data), seeds("fedavg", metric, (80,) * 3, setting=data)]
    short, *_, second, _ = answer(evidence(*runs))
    assert "its lead over FedAvg is +0.5 [0.0, 1.0] points" in second
    assert "aggregation and after local training, Star-PFL is neither clearly ahead of nor clearly behind" in short


def test_the_answer_says_if_less_is_frozen_than_on_noise_on_every_seed():
    def frozen(*shares):
        merged = seeds("star_pfl", "acc_mean", (90.0,) * len(shares))
        noise = seeds("star_pfl", "chance_local", (12.0,) * len(shares))
        return answer(evidence(merged, seeds("star_pfl", "frozen_local", shares), noise))[1]

    assert "fewer than with updates of pure noise (12.0 % and (not stored))" in frozen(6.0, 7.0)
    assert "beside those frozen with updates of pure noise (12.0 %" in frozen(6.0, 13.0)


def test_an_answer_without_runs_says_so():
    assert all("(not stored)" in sentence for sentence in answer(evidence()))

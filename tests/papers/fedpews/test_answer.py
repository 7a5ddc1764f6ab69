"""The answer of FedPeWS's results page, from synthetic runs."""

from __future__ import annotations

from pfl_core.papers.fedpews.answer import answer
from pfl_core.papers.fedpews.paper import PAPER
from pfl_core.study.report import Evidence
from tests.study.invented import each_seed, frame


def runs(setting, method, value, variant="", metric="acc_mean"):
    """A row for each of three seeds."""
    known = dict(setting=setting, method=method, variant=variant, metric=metric)
    return each_seed(known, value)


def evidence(real=(), paper=()):
    made = Evidence(PAPER, {"real": [], "paper": []}, {})
    made.__dict__["frames"] = {"real": frame(*real), "paper": frame(*paper)}
    return made


def test_gains_with_four_clients_are_of_the_mean_of_ten_rounds():
    """The last round would give the opposite sign."""
    late = dict(metric="acc_late")
    made = evidence(
        paper=[
            runs("four clients", "fedavg", 60.0, **late),
            runs("four clients", "fedavg", 90.0),
            runs("four clients", "fedpews", 73.0, "tau=0.124", **late),
            runs("four clients", "fedpews", 70.0, "tau=0.124"),
            runs("four clients", "fedpews", 64.0, "tau=0.124;lam=0", **late),
            runs("four clients", "fedpews", (1.0, 1.0, 0.0), "tau=0.124;lam=0", metric="inert"),
            runs("four clients", "fedpews_fixed", (81.0, 82.2, 82.8), "tau=0.124", **late),
        ],
        real=[
            runs("four clients", "fedavg", 99.0, **late),
            runs("four clients", "fedpews", 97.0, "tau=0.124;lam=0", **late),
            runs("four clients", "fedpews", 98.0, "tau=0.124", **late),
        ],
    )
    paper_rate, searched = answer(made)[0].split("with searched rates")
    assert "is ahead of FedAvg, with learned (λ = 5) and with fixed subnetworks" in paper_rate
    assert "behind FedAvg if they are learned and not yet compared with FedAvg if they are fixed" in searched
    sentence = answer(made)[1]
    assert "mean accuracy of the last ten rounds" in sentence
    assert "is 60.0 % with FedAvg, 64.0 % with FedPeWS without diversity reward (λ = 0: +4.0 [4.0, 4.0] p" in sentence
    assert "73.0 % with λ = 5 (+13.0 [13.0, 13.0] points)" in sentence
    # 21, 22 and 23: 22 ± 4.303 / sqrt(3)
    assert "82.0 % with fixed subnetworks (+22.0 [19.5, 24.5] points)" in sentence
    assert answer(made)[3] == "With four clients and λ = 0, the masks had not settled in 2 of 3 runs."
    assert "0.027 for FedAvg, 0.009 for learned and" in answer(made)[4]
    assert "99.0 % with FedAvg, 97.0 % with λ = 0, 98.0 % with λ = 5" in answer(made)[4]


def test_cells_above_99_percent_are_counted_by_their_mean_over_seeds():
    accuracy = dict(metric="acc_pooled")
    made = evidence(
        real=[
            runs("sensitivity", "fedpews", 99.5, "tau=0.2", **accuracy),
            runs("sensitivity", "fedpews", (99.2, 99.2, 98.3), "tau=0.4", **accuracy),
            runs("sensitivity", "fedpews_fixed", 99.1, "tau=0.2", **accuracy),
            runs("sensitivity", "fedavg", 99.9, **accuracy),
            runs("cifar_mnist", "fedpews", 99.9, **accuracy),
        ]
    )
    assert "2 of 3 cells end above 99 %, and FedAvg at 99.90 %." in answer(made)[6]
    assert "its warm-up ends with round 40" in answer(made)[6]


def test_the_length_of_the_image_runs_is_that_of_the_preset():
    assert "300 rounds" in answer(evidence())[2]


def test_the_readings_of_the_text_are_told_by_their_range():
    late = dict(metric="acc_late")
    runs_of = [runs("four clients", "fedpews", 64.0, "tau=0.124;lam=0", **late)]
    assert "readings" not in answer(evidence(paper=runs_of))[3]
    runs_of.append(runs("four clients", "fedpews", 30.0, "tau=0.124;lam=0.5", **late))
    assert "readings" not in answer(evidence(paper=runs_of))[3], "another λ is no reading"
    runs_of.append(runs("four clients", "fedpews", (70.0, 72.0, 71.0), "tau=0.124;lam=0;draws=one_per_step", **late))
    assert answer(evidence(paper=runs_of))[3].endswith(
        "2 readings of it λ = 0 gives 64.0 to 71.0 %, never the paper's 91.1 %."
    )
    runs_of.append(runs("four clients", "fedpews", 92.0, "tau=0.124;lam=0;expand_rule=row", **late))
    assert answer(evidence(paper=runs_of))[3].endswith("Under 3 readings of the text λ = 0 gives 64.0 to 92.0 %.")


def test_speed_with_two_clients_is_told_in_rounds_and_in_time_at_each_server_rate():
    """Fewer rounds are better; equal answers are told once."""
    rounds, time = dict(metric="rounds_to_target"), dict(metric="time_to_target")
    neither = "neither clearly sooner nor clearly later than FedAvg's"
    made = [
        runs("lr_server=1", "fedpews", (100, 101, 102), **rounds),
        runs("lr_server=1", "fedavg", (120, 121, 122), **rounds),
    ]
    short = answer(evidence(paper=made))[0]
    text = "accuracy is sooner than FedAvg's at server learning rate 1 and not yet compared with FedAvg's at server "
    assert f"{text}learning rate 0.5, 0.25 and 0.1, and the training time until then is not yet" in short
    for rate, own in ((0.5, "tau=0.2"), (0.25, "tau=0.1875"), (0.1, "tau=0.1")):
        lam = 1 if rate == 0.25 else 2
        for metric, value in ((rounds, (100, 130, 160)), (time, (220, 221, 222))):
            variant = f"{own};lr_server={rate:g};lam={lam}"
            made.append(runs(f"lr_server={rate:g}", "fedpews", value, variant, **metric))
            made.append(runs(f"lr_server={rate:g}", "fedavg", (120, 121, 122), f"lr_server={rate:g}", **metric))
    made += [runs("lr_server=1", method, (200, 201, 202), **time) for method in ("fedpews", "fedavg")]
    short = answer(evidence(paper=made))[0]
    assert f"{neither} at server learning rate 0.5, 0.25 and 0.1, and the training time until" in short
    text = "FedAvg's at server learning rate 1 and longer than FedAvg's at server learning rate 0.5, 0.25 and 0.1."
    assert short.endswith(text)
    assert answer(evidence())[0].endswith("until then is not yet compared with FedAvg's at each server learning rate.")
    in_time = next(text for text in answer(evidence(paper=made)) if "In training time" in text)
    assert "it is +0.0 [0.0, 0.0] " in in_time and "-100.0 [-100.0, -100.0] " in in_time

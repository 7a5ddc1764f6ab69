"""The answer of FedSelect's results page, from synthetic runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pfl_core.papers.fedselect.answer import answer
from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.papers.fedselect.settings import VALIDATED
from pfl_core.runs import Record
from pfl_core.study.report import Evidence
from tests.papers.fedselect.invented import rows
from tests.study.invented import frame


def sentence_on_the_papers_setting(*runs):
    """Of the answer from runs of seed 0 at the paper's setting; a run is (method, accuracy, completed rounds)."""
    made = Evidence(PAPER, {}, {})
    stored = [rows(method, (value,), preset="paper", rounds=rounds) for method, value, rounds in runs]
    other = rows("fedselect", (50.0,), "alpha=0.5", preset="paper", rounds=7)
    made.__dict__["frames"] = {"real": frame(), "paper": frame(*stored, other)}
    return answer(made)[1]


@pytest.mark.parametrize(("of_local", "text"), [(60, "after 60 of 200"), (200, "after 60 to 200 of 200")])
def test_completed_rounds_are_those_of_the_records_and_planned_ones_those_of_the_preset(of_local, text):
    sentence = sentence_on_the_papers_setting(("fedselect", 77.9, 60), ("local", 76.8, of_local), ("fedper", 79.6, 60))
    assert f"{text} rounds, FedSelect (α = 0.30) scores 77.9 %, training alone 76.8 % (+1.1 points, 1 seed)" in sentence


def test_an_answer_without_runs_says_so():
    assert "after 0 of 200 rounds, FedSelect (α = 0.30) scores (not stored)" in sentence_on_the_papers_setting()


NEITHER = "neither clearly ahead of nor clearly behind"


@pytest.mark.parametrize(
    ("least", "random", "text"),
    [
        ((76.0, 76.2, 76.1), (74.0, 74.0, 74.0), "is ahead of itself with as many others personal: +1.9 "),
        (
            (79.0,) * 3,
            (78.0, 78.1, 78.4),
            f"is behind it (the least changed) and {NEITHER} it (random, as its masks grow) with ",
        ),
        ((), (), "is not yet compared with itself with as many others personal: (not stored) (the least"),
    ],
)
def test_the_short_answer_compares_the_rules_that_choose_personal_parameters(least, random, text):
    made = Evidence(PAPER, {}, {})
    stored = [rows("fedselect", (78.0, 78.0, 78.1), preset="real")]
    for ranking, scores in (("least_change", least), ("random", random)):
        stored += [rows("fedselect", scores, f"ranking={ranking}", preset="real")] if scores else []
    made.__dict__["frames"] = {"real": frame(*stored), "paper": frame()}
    assert text in answer(made)[0]


def test_the_answer_prefers_runs_with_searched_rates():
    made = Evidence(PAPER, {}, {})
    one_rate = [
        *(rows("local", (76.0,) * 3, preset="real"), rows("fedselect", (74.0, 74.2, 74.1), preset="real")),
        rows("fedselect", (70.0,) * 3, "ranking=random", preset="real"),
    ]
    own_rates = [
        rows(method, scores, preset="real", setting=VALIDATED)
        for method, scores in {
            "local": (74.0,) * 3,
            "fedselect": (75.0, 75.2, 75.1),
            "fedper": (79.0,) * 3,
            "fedavg_ft": (80.0,) * 3,
        }.items()
    ]
    others = rows("fedselect", (76.0,) * 3, "ranking=random", preset="real", setting=VALIDATED)
    made.__dict__["frames"] = {"real": frame(*one_rate, *own_rates, others), "paper": frame()}
    short, _, tuned, common, *_ = answer(made)
    assert "grow) with as many others personal: (not stored) (the least changed; the paper has +2.4) and -0.9" in short
    assert "40 rounds (3 seeds), FedSelect scores 75.1 %, +1.1 [0.9, 1.3] points over training alone, and is" in tuned
    assert tuned.endswith(
        "clearly behind FedAvg + FT and FedPer and ahead of Local; the best is FedAvg + FT with 80.0 %."
    )
    assert "40 rounds and 3 seeds, FedSelect's lead over training alone is -1.9 [" in common
    assert "over itself with the last layer personal (not stored)" in common
    assert "it is clearly behind Local." in common


def test_the_rankings_and_batches_of_the_papers_setting_are_told():
    """With batches of 32 both methods are shown after the rounds that both have, over the seeds that both have."""

    def run(method, seed, correct):
        spec = PAPER.settings.spec(method, preset="paper", dataset="cifar10", seed=seed)
        rounds = [20 * n for n in range(1, len(correct) + 1)]
        series = {"correct": [rounds, [[value] for value in correct]], "count": [rounds, [[100]] * len(rounds)]}
        return Record("k", replace(spec, setting="cifar10, batch_size=32"), series, rounds_done=rounds[-1])

    ranked = rows("fedselect", (78.3,), "selection_scope=per_tensor", preset="paper", rounds=60)
    for runs, text in (
        (
            [run("fedselect", 0, (60, 71, 75)), run("local", 0, (62, 68)), run("local", 1, (10, 10))],
            "FedSelect scores 71.0 % and training alone 68.0 % after 40 rounds (1 seed).",
        ),
        ([run("local", 0, (62, 68))], "FedSelect and training alone are not both stored."),
    ):
        made = Evidence(PAPER, {"paper": runs}, {})
        made.__dict__["frames"] = {"real": frame(), "paper": frame(ranked)}
        assert "ranked by itself, FedSelect scores 78.3 % after 60 rounds (1 seed)." in answer(made)[5]
        assert answer(made)[5].endswith(text)


def test_a_baseline_that_falls_is_told_with_its_best_round():
    spec = PAPER.settings.spec("fedavg_ft", preset="paper", dataset="cifar10")
    series = {"correct": [[5, 10, 15], [[60], [80], [62]]], "count": [[5, 10, 15], [[100]] * 3]}
    series["loss"] = [[5, 10, 15], [[1.0], [0.5], [1.5]]]
    for losses, found in (
        (None, ""),
        (
            [[1.0], [0.2], [0.1]],
            " Between these rounds its training loss goes from 0.20 to 0.10, its test loss from 0.50 to 1.50: training "
            "does not diverge; why the test accuracy falls is not known.",
        ),
        ([[1.0], [0.2], [3.0]], " Between these rounds its training loss goes from 0.20 to 3.00, its test loss from "
                                "0.50 to 1.50."),
    ):  # fmt: skip
        trained = {"train_loss": [[5, 10, 15], losses]} if losses else {}
        made = Evidence(PAPER, {"paper": [Record("k", spec, series | trained)]}, {})
        made.__dict__["frames"] = {"real": frame(), "paper": frame()}
        assert answer(made)[6].endswith(
            f"fine-tuning reaches 80.0 % in round 10 and ends at 62.0 % in round 15.{found}"
        )


def test_the_rate_of_training_alone_is_told_beside_the_lead_over_it():
    specs = [PAPER.settings.spec("local", preset="real", dataset=name) for name in ("cifar10", VALIDATED)]
    made = Evidence(PAPER, {"real": [Record(spec.setting, spec, {}) for spec in specs]}, {})
    stored = [
        rows("local", (77.5,) * 3, preset="real"),
        rows("local", (75.5,) * 3, preset="real", setting=VALIDATED),
        rows("fedselect", (77.0,) * 3, preset="real", setting=VALIDATED),
    ]
    made.__dict__["frames"] = {"real": frame(*stored), "paper": frame()}
    assert answer(made)[2].endswith(
        "Training alone has 77.5 % with the common rate of 0.05 after 40 rounds and 75.5 % with the searched rate of "
        "0.01 after 100 rounds."
    )


def test_the_deal_of_classes_changes_training_alone_too():
    dealt = "cifar10, allow_duplicate_classes=True"
    spec = replace(PAPER.settings.spec("fedselect", preset="real", dataset="cifar10"), setting=dealt)
    made = Evidence(PAPER, {"real": [Record("k", spec, {}, clients={"test": [[100, 100], [200, 0]]})]}, {})
    stored = [
        rows(method, (score,) * 3, preset="real", setting=setting)
        for method, setting, score in (
            *(("fedselect", "cifar10", 75.0), ("fedselect", dealt, 79.0)),
            *(("local", "cifar10", 76.0), ("local", dealt, 79.0)),
        )
    ]
    made.__dict__["frames"] = {"real": frame(*stored), "paper": frame()}
    text = (
        "(3 seeds; 1 of 2 clients then have one class only), FedSelect changes by +4.0 [4.0, 4.0] points and training "
    )
    assert text + "alone by +3.0 [3.0, 3.0] points" in answer(made)[4]

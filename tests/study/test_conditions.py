"""Checks that a run must pass before it decides a claim."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from pfl_core.algorithm import Algorithm, MechanismCheck
from pfl_core.runs import Record, RunSpec
from pfl_core.study.conditions import failed, failed_line, flat, inert, validation_change


def record(accuracies, rounds=None, every=1, checks=()):
    """Two clients of 100 validation images with these accuracies (percent), scored every so many rounds."""
    index = pd.Index([every * (i + 1) for i in range(len(accuracies))], name="round")
    values = {
        "correct_val": pd.DataFrame(np.column_stack([accuracies, accuracies]), index),
        "count_val": pd.DataFrame(np.full((len(index), 2), 100.0), index),
    }
    rounds = rounds or int(index[-1])
    series = {name: (list(index), frame.to_numpy().tolist()) for name, frame in values.items()}
    arrays = {name: frame.to_numpy() for name, frame in values.items()}
    return SimpleNamespace(series=series, array=arrays.__getitem__, rounds=rounds, mechanism=list(checks))


def test_a_line_over_the_last_fifth():
    """A rise of 0.1 points a round is one of 2 points over the last 20 of 100 rounds, whatever came before."""
    early = np.linspace(10, 50, 80)
    late = 50 + 0.1 * np.arange(1, 21)
    assert validation_change(record([*early, *late])) == pytest.approx(2.0)
    assert validation_change(record([*early, *np.full(20, 50.0)])) == pytest.approx(0.0)
    fifth = np.concatenate([early, late])[4::5]
    assert validation_change(record(fifth, every=5)) == pytest.approx(2.0)


def test_no_change_without_validation_or_with_too_few_scores():
    assert math.isnan(validation_change(record([50.0, 51.0], rounds=10)))
    bare = record([1.0] * 20)
    bare.series = {}
    assert math.isnan(validation_change(bare))


def test_the_test_accuracy_shows_whether_a_run_without_validation_images_is_flat():
    def tested(accuracies):
        run = record(accuracies)
        rounds = run.series["correct_val"][0]
        run.series, run.reported_suffix = {"correct": (rounds, [])}, ""
        run.reported_curve = lambda: pd.DataFrame({"acc_mean": accuracies}, rounds)
        run.reported_scores = lambda: np.column_stack([accuracies] * 3)
        return run

    early = [10.0] * 80
    assert flat(tested([*early, *np.full(20, 50.0)])) and not flat(tested([*early, *np.linspace(50, 51, 20)]))
    assert not flat(tested([50.0, 50.0]))  # too few scores
    assert flat(record([*early, *np.full(20, 50.0)])) and not flat(record([*early, *np.linspace(50, 51, 20)]))


TWO_CLASSES = [[100, 0, 100], [100, 100, 0], [0, 100, 100]]  # test images of three clients
ONE_CLASS = [[195, 5, 0], [100, 0, 0], [0, 0, 100]]


def scored(correct, loss=1.0, test=TWO_CLASSES, method="fedavg", suffix=""):
    """Three clients with these correct answers after an earlier, better round."""
    count = np.sum(test, axis=1)
    series = {
        f"correct{suffix}": [[2, 4], [list(count), list(correct)]],
        f"count{suffix}": [[2, 4], [list(count)] * 2],
        f"loss{suffix}": [[2, 4], [[0.1] * 3, [loss] * 3]],
    }
    spec = RunSpec({"name": method}, clients=3, rounds=4, eval_every=2, setting="a setting")
    return Record("k", spec, series, clients={"test": test})


def test_training_failed_with_losses_that_are_not_finite_or_constant_answers():
    assert failed(scored([100, 100, 100])) and failed(scored([0, 100, 0]))
    assert failed(scored([150, 160, 170], loss=math.nan)) and failed(scored([150, 160, 170], loss=math.inf))
    assert not failed(scored([150, 160, 170])) and not failed(scored([100, 100, 101]))
    assert not failed(scored([95, 70, 80]))  # worse than a constant answer, but none
    assert not failed(scored([200, 200, 200]))
    assert not failed(scored([195, 100, 100], test=ONE_CLASS))  # a constant answer is a good one


def test_training_is_judged_where_the_method_reports_its_scores():
    run = scored([100, 100, 100], method="star_pfl", suffix="_trained")
    run.series.update(scored([150, 160, 170]).series)
    assert failed(run)
    assert not failed(replace(run, spec=replace(run.spec, method={"name": "fedavg"})))
    assert not failed(replace(run, series={}))


def test_runs_at_preset_ci_are_too_short_to_judge():
    run = scored([100, 100, 100])
    assert not failed(replace(run, spec=replace(run.spec, preset="ci")))


def test_failed_runs_are_listed():
    runs = [scored([150, 160, 170]), scored([100, 100, 100])]
    assert failed_line(runs).splitlines()[1:] == ["   FedAvg on Digits, a setting, seed 0"]
    assert failed_line(runs[:1]) == ""
    named = [replace(runs[1], spec=replace(runs[1].spec, setting=setting)) for setting in ("", "digits", "digits, few")]
    places = [line.partition(" on ")[2] for line in failed_line(named).splitlines()[1:]]
    assert places == [f"{name}, seed 0" for name in ("Digits", "Digits", "Digits, few")]


ACTS = MechanismCheck("moved", 2.0, 1.0, True, "raise the rate")
STILL = MechanismCheck("moved", 0.5, 1.0, False, "raise the rate")


def test_inert_counts_what_did_not_act():
    assert inert(record([1.0], checks=[ACTS, STILL])) == 1
    assert inert(record([1.0], checks=[ACTS])) == 0
    assert math.isnan(inert(record([1.0])))
    assert Algorithm().mechanism({}, 10, None) == []

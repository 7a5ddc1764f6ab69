"""Estimates before a sweep: which runs are missing, and what they take."""

import dataclasses

import pytest

from pfl_core.papers.fedselect.settings import SETTINGS
from pfl_core.runs import execute
from pfl_core.runs.estimate import Cost, Survey, estimate


def small(seed=0, **changes):
    method = changes.pop("method", "local")
    return SETTINGS.spec(method, preset="ci", seed=seed, overrides={"model": "mlp", "rounds": 2, **changes})


def test_survey_counts_stored_missing_and_impossible_runs(store, tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    execute(small(), store)
    survey = Survey.of([small(), small(seed=1), small(seed=1), small(data="cifar10"), small(data="mnist")], store)
    assert (survey.stored, len(survey.missing), survey.lacking) == (1, 1, 2)
    assert [run.seed for run in survey.missing.values()] == [1]
    assert [why.split("'")[1] for why in survey.reasons] == ["cifar10", "mnist"]
    assert list(survey.reasons.values()) == [1, 1]


def test_time_comes_from_stored_runs_of_the_same_kind_and_grows_with_rounds(store):
    record = execute(small(), store)
    store.put(dataclasses.replace(record, seconds=10.0))
    cost = estimate([small(seed=1), small(seed=2, rounds=6)], store)
    assert (cost.seconds, cost.longest, cost.timed, cost.runs) == (40.0, 30.0, 0, 2)
    assert cost.disk == pytest.approx(4 * store.path(record.key).stat().st_size, abs=2)
    assert cost.basis == "from stored runs of the same kind"


def test_a_run_of_another_kind_is_timed_by_a_few_steps(store):
    store.put(dataclasses.replace(execute(small(), store), seconds=1e9))
    for other in (small(method="fedavg"), small(batch_size=5), small(clients=5), small(model="linear")):
        cost = estimate([other], store)
        assert cost.timed == 1 and 0 < cost.seconds < 1e6
        assert "1 of 1 runs have no stored run of their kind" in cost.basis


def test_measured_time_and_memory_grow_with_the_work(store):
    one, more = estimate([small()], store), estimate([small(rounds=20)], store)
    assert more.seconds == pytest.approx(10 * one.seconds) and more.disk == pytest.approx(10 * one.disk, rel=0.01)
    narrow, wide = (dataclasses.replace(small(), model={"name": "mlp", "hidden": [n]}) for n in (8, 20_000))
    assert estimate([wide], store).worker - estimate([narrow], store).worker > 10 * 20_000 * 64 * 4


def test_what_was_measured_starts_no_run(store):
    estimate([small()], store)
    assert not list(store.root.glob("**/*"))


def test_workers_share_the_time_but_not_the_memory(store):
    cost = Cost(seconds=100.0, longest=40.0, worker=5, runs=3)
    assert [cost.wall(jobs) for jobs in (1, 2, 8)] == [100.0, 50.0, 40.0]
    assert [cost.memory(jobs) for jobs in (1, 2, 8)] == [5, 10, 15]
    assert estimate([], store) == Cost()

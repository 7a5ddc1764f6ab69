"""Estimates: which runs are missing, and how much time, memory and disk they need."""

import dataclasses
import math
import sys
from types import SimpleNamespace

import pytest

from pfl_core import algorithm
from pfl_core.papers.fedselect.settings import SETTINGS
from pfl_core.runs import execute, write_record
from pfl_core.runs.estimate import Cost, Survey, Timings, _peak_memory, estimate


def small(seed=0, **changes):
    method = changes.pop("method", "local")
    return SETTINGS.spec(method, preset="ci", seed=seed, overrides={"model": "mlp", "rounds": 2, **changes})


def test_survey_counts_stored_missing_and_blocked_runs(store, tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    execute(small(), store)
    survey = Survey.of([small(), small(seed=1), small(seed=1), small(data="cifar10"), small(data="mnist")], store)
    assert (survey.stored, len(survey.missing), survey.num_blocked) == (1, 1, 2)
    assert [run.seed for run in survey.missing.values()] == [1]
    assert [reason.split("'")[1] for reason in survey.blocked] == ["cifar10", "mnist"]
    assert list(survey.blocked.values()) == [1, 1]


def cost_of(specs, store):
    return estimate(specs, Timings.of(store))


def test_time_comes_from_stored_runs_of_the_same_kind_and_grows_with_rounds(store):
    record = execute(small(), store)
    store.put(dataclasses.replace(record, seconds=10.0))
    cost = cost_of([small(seed=1), small(seed=2, rounds=6)], store)
    assert (cost.seconds, cost.longest_batched, cost.computed, cost.runs) == (40.0, 30.0, 0, 2)
    assert cost.disk == pytest.approx(4 * store.path(record.key).stat().st_size, abs=2)
    assert cost.basis == "from stored runs of the same kind"


def test_a_run_of_another_kind_is_computed_from_flops_at_the_speed_of_stored_runs(store):
    """A stored run of R rounds took s seconds: FLOPs in a round are equal for a method with one pass an epoch."""
    store.put(dataclasses.replace(execute(small(), store), seconds=10.0))
    one = cost_of([small(method="fedavg")], store)
    assert one.seconds == pytest.approx(10.0, rel=0.01)
    assert one.basis == "from FLOPs and the speed of stored runs (1 of 1 runs have no stored run of the same kind)"
    assert cost_of([small(method="fedavg", epochs=2 * small().train.epochs)], store).seconds == pytest.approx(
        20.0, rel=0.01
    )
    twice = algorithm.methods()["fedselect"].passes
    assert cost_of([small(method="fedselect")], store).seconds == pytest.approx(10.0 * twice, rel=0.01)
    assert 0 < cost_of([small(model="linear")], store).seconds < 10.0


def test_a_small_network_takes_a_fixed_time_for_each_step(store):
    """Its FLOPs take no time. Ten clients train together where the network is dense, one by one where it is not."""
    dense, image = small(batch_size=16), small(model="cnn_small", batch_size=16)
    timings = Timings({}, {"": math.inf}, "")
    together, one_by_one = (estimate([spec], timings).seconds for spec in (dense, image))
    assert one_by_one == pytest.approx(dense.clients * together) and together > 0
    assert estimate([small(batch_size=8)], timings).seconds == pytest.approx(2 * together)


def test_committed_runs_are_used_where_none_is_stored_here(store):
    record = dataclasses.replace(execute(small(), store), seconds=10.0)
    write_record(record, store.results / f"{record.key}.json")
    store.path(record.key).unlink()
    assert cost_of([small(seed=1)], store).seconds == 10.0
    assert "and the speed of committed runs (" in cost_of([small(method="fedavg")], store).basis


def test_without_any_stored_run_a_speed_is_assumed(store):
    one, more = cost_of([small()], store), cost_of([small(rounds=20)], store)
    assert "10 GFLOPs per second" in one.basis
    assert more.seconds == pytest.approx(10 * one.seconds) and more.disk == pytest.approx(10 * one.disk, rel=0.01)
    assert not list(store.root.glob("**/*"))


def test_memory_grows_with_the_network(store):
    narrow, wide = (dataclasses.replace(small(), model={"name": "mlp", "hidden": [n]}) for n in (8, 20_000))
    assert cost_of([wide], store).worker - cost_of([narrow], store).worker > 10 * 20_000 * 64 * 4


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_peak_memory_is_in_bytes_on_linux_and_macos(monkeypatch, platform, unit):
    usage = SimpleNamespace(RUSAGE_SELF=0, getrusage=lambda who: SimpleNamespace(ru_maxrss=7))
    monkeypatch.setitem(sys.modules, "resource", usage)
    monkeypatch.setattr(sys, "platform", platform)
    assert _peak_memory() == 7 * unit


def test_without_the_module_resource_the_peak_memory_is_0(monkeypatch):
    """As on Windows: the estimate then leaves out the process itself."""
    monkeypatch.setitem(sys.modules, "resource", None)  # makes the import fail
    assert _peak_memory() == 0


def test_workers_share_the_time_but_not_the_memory(store):
    cost = Cost(seconds=100.0, longest=40.0, worker=5, runs=3)
    assert [cost.wall(jobs) for jobs in (1, 2, 8)] == [100.0, 50.0, 20.0]  # 8 cores: two for each run's clients
    together = Cost(seconds=100.0, longest_batched=40.0, worker=5, runs=3)  # all clients in one computation
    assert [together.wall(jobs) for jobs in (1, 2, 8)] == [100.0, 50.0, 40.0]
    assert [cost.memory(jobs) for jobs in (1, 2, 8)] == [5, 10, 15]
    assert cost_of([], store) == Cost()

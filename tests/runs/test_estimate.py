"""Estimates: which runs are missing, and how much time, memory and disk they need."""

import dataclasses
import math
import statistics
import sys
from types import SimpleNamespace

import pytest

from pfl_core import algorithm
from pfl_core.papers.fedselect.settings import SETTINGS
from pfl_core.runs import RESULTS, Store, execute, write_record
from pfl_core.runs.estimate import STEP_SECONDS, Cost, Survey, Timings, _peak_memory, _timing, estimate


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
    timings = Timings({}, {("", None): math.inf}, "")
    together, one_by_one = (estimate([spec], timings).seconds for spec in (dense, image))
    assert one_by_one == pytest.approx(dense.clients * together) and together > 0
    assert estimate([small(batch_size=8)], timings).seconds == pytest.approx(2 * together)
    gated = estimate([small(method="pfedgate", batch_size=16)], timings).seconds
    entry = algorithm.methods()["pfedgate"]
    own = entry.step_seconds / STEP_SECONDS  # of every client, also where they train together
    assert gated == pytest.approx(entry.passes * together * (1 + dense.clients * own))


def timing(local, network, step_flops, speed, kind="") -> dict:
    """1000 steps of this size, at ``speed`` FLOPs per second."""
    flops, seconds = 1000.0 * step_flops, 1000 * step_flops / speed
    of_all = {"rounds": 1, "seconds": seconds, "bytes": 1, "flops": flops, "steps": 1000.0}
    return {"local": local, "network": network, "kind": kind or f"{local} {network} {step_flops}", **of_all}


def test_small_runs_here_do_not_replace_the_speed_of_committed_runs_with_larger_steps():
    """Small steps take most of their time apart from their FLOPs."""
    spec = small(model="cnn_small", batch_size=32)
    frame = SimpleNamespace(samples=320, flops=10**7, batched=False, sampled=lambda spec: 10)
    step = frame.flops * 32
    committed, tiny = timing(False, "cnn_small", step, 2e10), timing(True, "cnn_small", step / 1000, 1e9)
    before = Timings.from_runs([committed]).seconds(spec, frame)
    assert before == pytest.approx(10 * 320 * spec.train.epochs * 1e7 / 2e10)
    assert Timings.from_runs([committed, tiny]).seconds(spec, frame) == before
    here = Timings.from_runs([committed, tiny, timing(True, "cnn_small", step, 1e10)])
    assert here.seconds(spec, frame) == pytest.approx(2 * before)
    only_tiny = Timings.from_runs([timing(True, "cnn_small", step / 8, step / 8 / (2 * STEP_SECONDS))])
    fixed = before * 2e10 / step * STEP_SECONDS  # half of the small steps' time
    assert only_tiny.seconds(spec, frame) == pytest.approx(9 * fixed), "the fixed time counts once"


@pytest.mark.parametrize("paper", ["star_pfl", "pfedgate"])
def test_the_time_of_a_papers_runs_is_estimated_from_the_other_records(store, paper):
    """Each record at `real` is left out in turn; small runs of every network are stored here."""
    records = [store.read(path) for path in sorted((RESULTS / paper / "real").glob("*.json"))]
    runs = [_timing(store.root, record, store.results / "record.json") for record in records]
    small_runs = [timing(True, name, 10**6, 1e9) for name in {run["network"] for run in runs}]
    guessed = 0.0
    for record, run in zip(records, runs, strict=True):
        timings = Timings.from_runs([*(other for other in runs if other is not run), *small_runs])
        sizes = [sum(counts) for counts in record.clients["train"]]
        sampled = len(record.spec.schedule.clients(len(sizes), 0, 0))
        frame = SimpleNamespace(
            samples=statistics.mean(sizes), flops=record.flops, batched=False, sampled=lambda spec, n=sampled: n
        )
        known = timings.kinds.get(run["kind"])
        guessed += record.rounds * (known[0] if known else timings.seconds(record.spec, frame))
    assert 2 / 3 < guessed / sum(record.core_seconds for record in records) < 1.5


def test_committed_runs_are_used_where_none_is_stored_here(store):
    record = dataclasses.replace(execute(small(), store), seconds=10.0)
    write_record(record, store.results / f"{record.key}.json")
    store.path(record.key).unlink()
    store = Store(store.root, store.results)  # one that lists what was committed since
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

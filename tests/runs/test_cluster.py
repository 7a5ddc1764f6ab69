"""Runs on a real Dask scheduler with worker processes: equal results, and one line when something is wrong or lost."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import pfl_core
from pfl_core.deadline import TimeUpError
from pfl_core.runs import Store, SweepError, cluster, sweep
from pfl_core.runs.cluster import RefusedError, check, source, watch
from pfl_core.runs.sweep import _job
from pfl_core.runs.task import SweepEndedError, Task
from tests.runs.conftest import bits
from tests.runs.outside import HERE, write_npz
from tests.runs.test_sweep import beside, mixed

distributed = pytest.importorskip("distributed", reason="dask is not installed")
ROOT = Path(pfl_core.__file__).parents[1]
WAIT = 120.0


@dataclass
class Machines:
    """A scheduler and its workers, all processes of this machine."""

    address: str
    scheduler: subprocess.Popen
    workers: list[subprocess.Popen]

    def add_worker(self, **env: str) -> subprocess.Popen:
        options = ["--nthreads", "1", "--nworkers", "1", "--no-dashboard", "--no-nanny"]
        command = [sys.executable, "-P", "-m", "distributed.cli.dask_worker", self.address, *options]
        path = os.pathsep.join([*env.pop("path", "").split(), str(ROOT)])
        own = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **env}
        worker = subprocess.Popen(command, env=own, stderr=subprocess.DEVNULL)
        self.workers.append(worker)
        return worker

    def has(self, count: int) -> bool:
        with distributed.Client(self.address, set_as_default=False) as client:
            return len(client.scheduler_info(n_workers=-1)["workers"]) == count

    def busy(self) -> bool:
        with distributed.Client(self.address, set_as_default=False) as client:
            return any(client.run(lambda dask_worker: dask_worker.state.executing_count).values())

    def stop(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


def until(condition, what: str) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, f"not within {WAIT:g} s: {what}"
        time.sleep(0.1)


def start() -> Machines:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    scheduler = subprocess.Popen([*command, "--no-dashboard"], stderr=subprocess.DEVNULL)
    machines = Machines(f"tcp://127.0.0.1:{port}", scheduler, [])

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    until(answers, "the scheduler answers")
    return machines


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Machines]:
    machines = start()
    machines.add_worker()
    machines.add_worker()
    until(lambda: machines.has(2), "two workers")
    yield machines
    machines.stop()


@pytest.fixture
def machines() -> Iterator[Machines]:
    made = start()
    yield made
    made.stop()


def slow(spec, rounds: int):
    """A run of as many seconds as rounds."""
    return spec(f"{HERE}:Slow", rounds=rounds)


def at_once(spec, store: Store, **settings: int):
    """The bits of such a run without pauses, but for its key."""
    (record,) = sweep([spec("local", **settings)], jobs=1, store=beside(store, "alone"))
    return bits(record)[1:]


# ---- the same as on one machine -------------------------------------------------------------------------------------


def test_a_cluster_gives_the_same_bits(two_workers, spec, store):
    there = sweep(mixed(spec), scheduler=two_workers.address, store=beside(store, "there"))
    here = sweep(mixed(spec), jobs=1, store=store)
    assert [bits(record) for record in there] == [bits(record) for record in here]
    assert [path.suffix for path in beside(store, "there").root.iterdir()] == [".json"] * len(there)


def test_the_environment_names_the_scheduler(two_workers, spec, store, monkeypatch):
    monkeypatch.setenv(cluster.ADDRESS, two_workers.address)
    monkeypatch.setattr(sys.modules[sweep.__module__], "execute", None)  # nothing is computed in this process
    (record,) = sweep([spec(seed=5)], jobs=1, store=store)
    assert not record.partial


def test_a_notebook_reaches_the_cluster(two_workers, tmp_path, monkeypatch):
    """One whole figure, drawn from runs that the workers computed: the kernel has no core to compute with."""
    env = {**os.environ, "PFL_DATA_DIR": str(tmp_path / "data"), "PFL_FIGURES_DIR": str(tmp_path / "figures")}
    command = [sys.executable, "-m", "pfl_core.cli", "figures", "fedselect/04_training_size", "--preset", "ci"]
    before = computed(two_workers)
    made = subprocess.run(
        [*command, "--scheduler", two_workers.address], env=env, cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert made.returncode == 0, made.stderr
    assert list((tmp_path / "figures").rglob("*.png"))
    runs = list((tmp_path / "data" / "runs").glob("*.json"))
    assert computed(two_workers) - before >= len(runs) > 0


def computed(machines: Machines) -> int:
    """How many tasks the scheduler has seen through."""
    with distributed.Client(machines.address, set_as_default=False) as client:
        return client.run_on_scheduler(
            lambda dask_scheduler: sum(
                prefix.all_durations.get("compute", 0) > 0 and prefix.state_counts["memory"]
                for prefix in dask_scheduler.task_prefixes.values()
            )
        )


# ---- processes that end ---------------------------------------------------------------------------------------------


def begun(store: Store) -> bool:
    """Whether a run has completed a round."""
    with contextlib.suppress(FileNotFoundError):
        return any(path.read_text() not in ("", "0") for path in store.root.glob("*.round"))
    return False


@pytest.mark.filterwarnings("ignore:the scheduler at .* has no workers")  # the second one may start late
def test_a_killed_workers_run_continues_on_another(machines, spec, store):
    first = machines.add_worker()
    until(lambda: machines.has(1), "a worker")

    def kill() -> None:
        until(lambda: begun(store), "the run has begun")
        machines.add_worker()
        first.kill()

    with in_background(kill):
        (record,) = sweep([slow(spec, 6)], scheduler=machines.address, store=store)
    assert bits(record)[1:] == at_once(spec, store, rounds=6)


def test_a_sweep_waits_while_there_is_no_worker(machines, spec, store):
    """No worker at first, and none again after it was killed."""
    made = slow(spec, 4)

    def replace() -> None:
        worker = machines.add_worker()
        until(lambda: begun(store), "the run has begun")
        worker.kill()
        time.sleep(1)
        machines.add_worker()

    with in_background(replace), pytest.warns(UserWarning, match="no workers"):
        (record,) = sweep([made], scheduler=machines.address, store=store)
    assert bits(record)[1:] == at_once(spec, store, rounds=4)


def test_the_loss_of_all_workers_is_reported_once(two_workers, store, monkeypatch):
    with cluster.Cluster(two_workers.address, store) as made:
        monkeypatch.setattr(cluster, "RENEW_SECONDS", 0)
        found = iter([True, False, True, False, False, False])
        monkeypatch.setattr(made, "has_workers", lambda: next(found))
        with pytest.warns(UserWarning, match="no workers") as warned:
            for _ in range(6):
                made.renew()
    assert len(warned) == 1


def test_a_lost_scheduler_ends_the_sweep_in_one_line(machines, spec, store):
    machines.add_worker()
    until(lambda: machines.has(1), "a worker")

    specs = [spec(seed=3), slow(spec, 20)]

    def kill() -> None:
        until(lambda: begun(store) and store.get(specs[0].key()) is not None, "one run has ended, another has begun")
        machines.scheduler.kill()

    with in_background(kill), pytest.raises(ConnectionError, match="scheduler at .* is lost"):
        sweep(specs, scheduler=machines.address, store=store)
    assert store.get(specs[0].key()) is not None, "the first run had ended"
    assert not list(store.root.glob("*.sweep"))


def test_a_scheduler_that_is_lost_during_a_call_is_named(two_workers, store, monkeypatch):
    def closed(*args, **options):
        raise distributed.comm.CommClosedError("in <TCP (closed)>: Stream is closed")

    made = cluster.Cluster(two_workers.address, store)
    monkeypatch.setattr(made.client, "scheduler_info", closed)
    with pytest.raises(ConnectionError, match="scheduler at .* is lost"):
        made.has_workers()
    made.__exit__(None)
    for logger in ("distributed", "distributed.client"):
        assert not logging.getLogger(logger).isEnabledFor(logging.ERROR), "Dask would print a traceback"


def test_runs_on_a_cluster_stop_when_the_time_is_up(two_workers, spec, store):
    """Two have begun and save a checkpoint, one waits for a worker. The next call goes on, with the same bits."""
    warm = [spec(f"{HERE}:Slow", rounds=1, seed=seed) for seed in range(2)]
    sweep(warm, scheduler=two_workers.address, store=beside(store, "warm"))  # both workers have imported everything
    specs = [spec(f"{HERE}:Slow", seconds=0.05, rounds=80, seed=seed) for seed in range(3)]
    with pytest.raises(TimeUpError, match="ended 0, at a checkpoint 2, not started 1"):
        sweep(specs, scheduler=two_workers.address, store=store, stop_at=time.time() + 3)
    assert sorted({path.suffix for path in store.root.iterdir()}) == [".ckpt"]
    until(lambda: not two_workers.busy(), "the workers are idle")
    records = sweep(specs[:2], scheduler=two_workers.address, store=store)
    assert [bits(r)[1:] for r in records] == [at_once(spec, store, rounds=80, seed=seed) for seed in range(2)]


def test_a_sweep_without_workers_ends_when_the_time_is_up(machines, spec, store, monkeypatch):
    """The time is up once the only worker was killed."""
    first = machines.add_worker()
    until(lambda: machines.has(1), "a worker")

    def kill() -> None:
        until(lambda: begun(store), "the run has begun")
        first.kill()
        first.wait()

    monkeypatch.setattr(sys.modules[sweep.__module__], "passed", lambda when: first.returncode is not None)
    with in_background(kill), pytest.raises(TimeUpError, match="ended 0, at a checkpoint 0, not started 2"):
        sweep([slow(spec, 60), slow(spec, 50)], scheduler=machines.address, store=store)


def test_ctrl_c_ends_the_runs_on_the_cluster(machines, tmp_path):
    """One line, status 130, and no worker computes any longer."""
    machines.add_worker()
    until(lambda: machines.has(1), "a worker")
    store = Store(tmp_path / "data" / "runs")
    command = [sys.executable, "-m", "pfl_core.cli", "run", f"{HERE}:Slow", "--rounds", "60"]
    with subprocess.Popen(
        [*command, "--scheduler", machines.address],
        env={**os.environ, "PFL_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(ROOT), "TQDM_DISABLE": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    ) as process:
        until(lambda: begun(store) or process.poll() is not None, "the run has begun")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WAIT)
    assert process.returncode == 130 and len(said.splitlines()) == 1 and said.startswith("pfl: interrupted")
    until(lambda: not machines.busy(), "the worker is idle")


def test_a_run_that_dask_starts_again_is_not_computed_again(two_workers, spec, store, monkeypatch):
    (record,) = sweep([spec()], scheduler=two_workers.address, store=store)
    monkeypatch.setattr(sys.modules[sweep.__module__], "execute", None)
    assert _job(Task(spec(), record.key), store, spec().build_method().__module__) == []


# ---- workers that would compute something else ----------------------------------------------------------------------


def test_a_worker_with_other_code_is_refused(machines, spec, store, tmp_path):
    shutil.copytree(ROOT / "pfl_core", tmp_path / "pfl_core", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "pfl_core" / "ops.py").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    machines.add_worker(path=str(tmp_path))
    until(lambda: machines.has(1), "a worker")
    with pytest.raises(RefusedError, match=r"\w{16}, torch .* \w{16}, torch"):
        sweep([spec()], scheduler=machines.address, store=store)
    assert list(store) == [] and not list(store.root.glob("*.sweep"))


def test_a_worker_with_other_data_is_refused(machines, spec, store, tmp_path, monkeypatch):
    for name, pixel in (("here", 1), ("there", 2)):
        write_npz(tmp_path / name, "mine", pixel)
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path / "here"))
    machines.add_worker(PFL_DATA_DIR=str(tmp_path / "there"))
    until(lambda: machines.has(1), "a worker")
    with pytest.raises(SweepError, match="data or code"):
        sweep([spec(data={"name": "mine"}, clients=2)], scheduler=machines.address, store=store)
    assert list(store) == []


def test_a_worker_that_does_not_see_the_folder_is_refused(tmp_path):
    with pytest.raises(RefusedError, match="does not see"):
        check(tmp_path / "none.sweep", source())


def test_no_scheduler_is_one_line(spec, store, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.5)
    with pytest.raises(ConnectionError, match="answers at tcp://127.0.0.1:9"):
        sweep([spec()], scheduler="tcp://127.0.0.1:9", store=store)


# ---- the lease ------------------------------------------------------------------------------------------------------


def test_a_run_ends_when_its_sweep_has_ended(tmp_path, monkeypatch):
    """The file is gone, or has not changed for a long time; not while it changes."""
    lease = tmp_path / "x.sweep"
    lease.write_text("1")
    alive = watch(lease)
    alive()
    monkeypatch.setattr(cluster, "LOST_SECONDS", 0.0)
    lease.write_text("2")
    alive()
    with pytest.raises(SweepEndedError):
        alive()
    lease.unlink()
    monkeypatch.undo()
    with pytest.raises(SweepEndedError):
        alive()


@contextlib.contextmanager
def in_background(action: Callable[[], None]) -> Iterator[None]:
    """Runs ``action`` in a thread meanwhile; its error is raised at the end."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(action)
        yield
        future.result()

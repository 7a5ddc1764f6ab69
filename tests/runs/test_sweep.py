"""Sweeps: each run is computed once, with equal results on every executor; a failed run does not stop the others."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from pfl_core import deadline
from pfl_core.deadline import TimeUpError
from pfl_core.runs import Record, RunSpec, Store, SweepError, execute, pool, sweep
from pfl_core.runs.prefix import plan
from pfl_core.runs.sweep import _rounds_done
from pfl_core.runs.task import Task
from tests.helpers import one_line
from tests.runs.conftest import bits
from tests.runs.outside import HERE, three_are_scored

sweep_module = sys.modules[sweep.__module__]
execute_module = sys.modules[execute.__module__]


def beside(store: Store, name: str) -> Store:
    return Store(store.root.parent / name, store.results)


@pytest.fixture
def no_more_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args, **kwargs):
        raise AssertionError("this run was stored already")

    monkeypatch.setattr(sweep_module, "execute", refuse)
    monkeypatch.setattr(sweep_module, "_job", refuse)


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of the runs that were made in this process, in order."""
    keys: list[str] = []

    def note(task: Task, *args, **kwargs):
        keys.append(task.key)
        return execute(task, *args, **kwargs)

    monkeypatch.setattr(sweep_module, "execute", note)
    return keys


# ---- results of a sweep ---------------------------------------------------------------------------------------------


def test_records_come_in_the_order_of_the_specs(spec, store):
    specs = [spec("local", seed=1, rounds=1), spec("fedavg", rounds=2), spec("local", seed=0, rounds=1)]
    assert [r.spec for r in sweep(specs, jobs=1, store=store)] == specs
    assert [r.spec for r in sweep(specs[::-1], jobs=1, store=store)] == specs[::-1]
    assert sweep([], store=store) == []


def test_what_another_sweep_stores_meanwhile_is_not_computed_again(spec, store, monkeypatch):
    first, second = spec("fedavg", rounds=1), spec("local", rounds=1)
    computed: list[str] = []

    def beside_another_sweep(task: Task, *args, **kwargs):
        computed.append(task.key)
        execute(second, store)
        return execute(task, *args, **kwargs)

    monkeypatch.setattr(sweep_module, "execute", beside_another_sweep)
    records = sweep([first, second], jobs=1, store=store)
    assert computed == [first.key()] and [record.key for record in records] == [first.key(), second.key()]


def test_nothing_is_computed_twice(spec, store, executed, request):
    made, more = spec(rounds=1), spec(rounds=2)
    first = sweep([made], jobs=1, store=store)
    sweep([more, made, more, more], jobs=1, store=store)
    assert executed == [made.key(), more.key()]
    request.getfixturevalue("no_more_runs")
    assert bits(*sweep([made], store=store)) == bits(*first)
    assert bits(*sweep([made], jobs=1, store=store)) == bits(*first)


def test_equal_runs_of_two_presets_are_computed_once(spec, store, executed):
    """The same experiment in two papers: equal numbers, each with the tags that were asked for."""
    plain = spec(rounds=1)
    tagged = spec(rounds=1, paper="fedselect", preset="ci", partition={**plain.partition, "pool": "official"})
    records = sweep([plain, tagged], jobs=1, store=store)
    assert len(executed) == 1
    assert [r.spec for r in records] == [plain, tagged]
    assert bits(records[0]) == bits(records[1])


def test_bad_specs_stop_a_sweep_before_it_starts(spec, store, executed):
    with pytest.raises(ValueError, match="no_such_data"):
        sweep([spec(rounds=1), spec(data={"name": "no_such_data"})], jobs=1, store=store)
    assert executed == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data": {"name": "mnist"}}, "FileNotFoundError: data set 'mnist' is not here"),
        ({"clients": 1000}, "ValueError: "),
        ({"partition": {"name": f"{HERE}:no_partition"}}, "ZeroDivisionError: "),
    ],
    ids=["missing data", "incompatible", "user's code"],
)
def test_a_bad_run_whose_method_shares_its_start_does_not_stop_the_others(
    changes, reason, spec, store, tmp_path, monkeypatch
):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path / "data"))
    good = limits(spec, (0.3, 0.6))
    bad = limits(spec, (0.1, 0.2), **changes)
    with pytest.raises(SweepError) as caught:
        sweep([bad[0], *good, bad[1]], jobs=1, store=store)
    head, *lines = str(caught.value).splitlines()
    assert head.startswith("2 of 4 runs failed") and len(lines) == 2
    assert all(reason in line for line in lines), lines
    assert all(store.get(spec_k.key()) is not None for spec_k in good)
    assert leftovers(store) == []


@pytest.mark.parametrize("value", ["two", "-1", "1.5"])
def test_a_bad_number_of_jobs_is_one_line(spec, store, monkeypatch, value):
    monkeypatch.setenv("PFL_JOBS", value)
    with one_line(f"PFL_JOBS.*{value}"):
        sweep([spec(rounds=1)], store=store)


@pytest.mark.parametrize(
    ("environment", "jobs", "runs", "workers"), [("3", None, 5, 3), ("3", None, 2, 2), ("", 2, 3, 2)]
)
def test_arguments_then_the_environment_choose_the_number_of_jobs(
    environment, jobs, runs, workers, spec, store, monkeypatch
):
    """Never more workers than runs."""
    asked = set()
    monkeypatch.setattr(
        "joblib.externals.loky.get_reusable_executor", lambda max_workers, **_: asked.add(max_workers) or Here()
    )
    monkeypatch.setenv("PFL_JOBS", environment)
    sweep([spec("local", seed=s, rounds=1) for s in range(runs)], jobs=jobs, store=store)
    assert asked == {workers}


class Here(Executor):
    """The smallest executor: runs at once, in this process."""

    def submit(self, fn, /, *args, **kwargs) -> Future:
        future: Future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


# ---- wherever it is made --------------------------------------------------------------------------------------------


def mixed(spec) -> list[RunSpec]:
    """Three methods, and two limits that share their start."""
    alphas = [spec("fedselect", p=0.25, alpha=alpha, rounds=4) for alpha in (0.3, 0.6)]
    return [*alphas, spec("fedavg", seed=1), spec("local", participation=0.5)]


@contextlib.contextmanager
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool
    torch.set_num_threads(1)


@contextlib.contextmanager
def process() -> Iterator[Executor]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("somewhere", [threads, process])
def test_any_executor_gives_the_same_bits(somewhere, spec, store):
    with somewhere() as pool:
        there = sweep(mixed(spec), executor=pool, store=beside(store, "there"))
    here = sweep(mixed(spec), jobs=1, store=store)
    assert [bits(r) for r in there] == [bits(r) for r in here]
    assert leftovers(beside(store, "there")) == []


def test_networks_built_side_by_side_in_threads_do_not_mix(spec, store):
    """PyTorch's initialisation draws from one generator for the whole process."""
    specs = [spec(seed=s, rounds=1, model={"name": f"{HERE}:slow_net"}) for s in range(3)]
    here = sweep(specs, jobs=1, store=store)
    with ThreadPoolExecutor(3) as pool:
        there = sweep(specs, executor=pool, store=beside(store, "there"))
    assert [r.state for r in there] == [r.state for r in here]


def leftovers(store: Store) -> list[str]:
    return sorted(path.name for path in store.root.iterdir() if path.suffix != ".json")


# ---- an early end ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 2])
def test_runs_end_early_and_are_not_continued_by_the_same_sweep(jobs, spec, store, request):
    long, short = spec("ditto", rounds=5), spec("local", rounds=2)
    records = sweep([long, short], jobs=jobs, store=store, stop_when=three_are_scored)
    assert [record.length for record in records] == ["3 of 5", "2"]
    execute(long, beside(store, "until"), until=3)
    assert bits(records[0]) == bits(beside(store, "until").get(long.key()))
    assert leftovers(store) == []
    whole = sweep([long], jobs=1, store=beside(store, "whole"))
    request.getfixturevalue("no_more_runs")
    again = sweep([long, short], jobs=1, store=store, stop_when=three_are_scored)
    assert [bits(record) for record in again] == [bits(record) for record in records]
    request.getfixturevalue("monkeypatch").undo()
    assert bits(*sweep([long], jobs=1, store=store)) == bits(*whole), "without the condition it has all its rounds"


def test_an_early_end_waits_for_an_evaluation(spec, store):
    asked = set()

    def after_three(series) -> bool:
        asked.add(len(series["seconds"][0]))
        return len(series["seconds"][0]) >= 3

    (record,) = sweep([spec(rounds=5, eval_every=2)], jobs=1, store=store, stop_when=after_three)
    assert record.length == "4 of 5" and record.series["loss"][0] == [2, 4] and asked == {2, 4}


def test_runs_with_a_common_start_end_early_and_leave_no_marks(spec, store):
    """The start is computed to its last mark. The runs branch after rounds 1, 2 and 5 and end after their next one."""
    records = sweep(limits(spec, LIMITS[:3]), jobs=1, store=store, stop_when=three_are_scored)
    assert [record.rounds for record in records] == [3, 3, 6]
    assert leftovers(store) == []


# ---- a common start -------------------------------------------------------------------------------------------------

LIMITS = (0.05, 0.3, 0.6, 1.0)


def limits(spec, alphas: tuple[float, ...] = LIMITS, **changes) -> list[RunSpec]:
    return [spec("fedselect", **{"p": 0.2, "rounds": 6, **changes}, alpha=alpha) for alpha in alphas]


def assert_alone(specs: list[RunSpec], records: list[Record], store: Store) -> None:
    """The records have the bits of runs that were made alone."""
    for spec_k, record in zip(specs, records, strict=True):
        assert bits(record) == bits(*sweep([spec_k], jobs=1, store=beside(store, spec_k.key())))


def rounds_made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made: list[int] = []

    def note(task, store, *, on_round, **options):
        return execute(task, store, on_round=lambda done: (made.append(done), on_round(done)), **options)

    monkeypatch.setattr(sweep_module, "execute", note)
    return made


@pytest.mark.parametrize(("alphas", "saving"), [(LIMITS, 60.0), (LIMITS[:3], 0.0)], ids=["short", "long"])
def test_a_sweep_over_the_limit_shares_its_start_and_keeps_every_bit(alphas, saving, spec, store, monkeypatch):
    """p = 0.2: shares 0.2, 0.36, 0.488, 0.59, 0.67 of the entries are personal after rounds 1, 2, ...; so the limit
    0.05 parts from the others after round 1, 0.3 after 2, 0.6 after 5. ``long``: runs that write checkpoints.
    """
    monkeypatch.setattr(execute_module, "CHECKPOINT_SECONDS", saving)
    specs, made = limits(spec, alphas), rounds_made(monkeypatch)
    records = sweep(specs, jobs=1, store=store)
    parted = {0.05: 1, 0.3: 2, 0.6: 5}
    trunk = 6 if 1.0 in alphas else max(parted[alpha] for alpha in alphas)
    assert len(made) == trunk + sum(6 - parted[alpha] for alpha in alphas if alpha != 1.0)
    assert leftovers(store) == [], "marks and checkpoints are removed"
    assert len(list(store)) == len(alphas), "the common start alone is no run"
    monkeypatch.undo()
    assert_alone(specs, records, store)
    assert all(record.curve().index.tolist() == list(range(1, 7)) for record in records)
    assert len({r.state for r in records}) == len(alphas), "else the comparison says nothing"


VARIANTS = [
    *({"participation": 0.5}, {"limit_policy": "cap"}, {"selection_scope": "per_tensor"}, {"rate_basis": "all"}),
    *({"mask_update_every": 2, "mask_update_start": 1}, {"limit_comparison": "inclusive"}),
    *({"eligible_params": "weights_only"}, {"aggregate_last_round": False, "eval_point": "after_local_update"}),
    {"reading": "authors_code", "p": 0.25, "rounds": 8},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_every_variant_keeps_its_bits_in_a_sweep(changes, spec, store):
    specs = limits(spec, (0.1, 0.5), **changes)
    assert_alone(specs, sweep(specs, jobs=1, store=store), store)
    assert leftovers(store) == []


def test_runs_that_differ_in_more_share_nothing(spec, store):
    """Another seed, another p, another method: no common start, no extra run."""
    specs = [spec("fedselect", alpha=0.3), spec("fedselect", alpha=0.3, seed=1), spec("fedselect", alpha=0.6, p=0.1)]
    tasks = plan({one.key(): one for one in [*specs, spec("fedavg")]}, store)
    assert [task.spec for task in tasks] == [*specs, spec("fedavg")]
    assert all(task.prefix is None and task.saves == () and task.until is None for task in tasks)


def test_a_start_that_exists_further_along_is_no_failure(spec, store, monkeypatch):
    """The trunk, alpha = 1, was once started for its own sake and killed in round 6."""
    monkeypatch.setattr(execute_module, "CHECKPOINT_SECONDS", 0.0)
    (trunk,) = limits(spec, (1.0,))

    def stop(done: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(trunk, store, on_round=stop)
    specs = limits(spec, (0.05, 0.3))
    assert_alone(specs, sweep(specs, jobs=1, store=store), store)


def interrupted_after(rounds: int, specs: list[RunSpec], store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that is killed when it has made so many rounds."""
    made: list[int] = []

    def note(task, store, *, on_round, **options):
        def count(done: int) -> None:
            made.append(done)
            on_round(done)
            if len(made) > rounds:
                raise KeyboardInterrupt

        return execute(task, store, on_round=count, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sweep_module, "execute", note)
        sweep(specs, jobs=1, store=store)
    for checkpoint in store.root.glob("*.ckpt"):  # Ctrl-C saves one, a kill does not
        checkpoint.unlink()


@pytest.mark.parametrize(
    ("killed_after", "left"),
    [(3, 3 + 5 + 4 + 1), (5, 5 + 4 + 1), (5 + 5, 4 + 1), (5 + 5 + 4, 1)],
    ids=["in the start", "in the first run", "in the second run", "in the last run"],
)
def test_a_killed_sweep_does_not_make_its_start_again(killed_after, left, spec, store, monkeypatch):
    """The start has 5 rounds, and marks after 1, 2 and 5. The runs then have 5, 4 and 1 rounds of their own."""
    specs = limits(spec, LIMITS[:3])
    interrupted_after(killed_after, specs, store, monkeypatch)
    made = rounds_made(monkeypatch)
    records = sweep(specs, jobs=1, store=store)
    assert len(made) == left
    monkeypatch.undo()
    assert_alone(specs, records, store)
    assert leftovers(store) == []


def test_a_start_that_is_itself_a_run_continues_from_its_mark(spec, store, monkeypatch):
    """Killed in round 4, in the first minute, so that there is no checkpoint; marks after 1 and 2."""
    specs = limits(spec)
    interrupted_after(3, specs, store, monkeypatch)
    made = rounds_made(monkeypatch)
    sweep(specs, jobs=1, store=store)
    assert len(made) == 4 + 5 + 4 + 1
    assert leftovers(store) == []


def test_marks_are_kept_until_all_their_runs_are_stored(spec, store, monkeypatch):
    specs = limits(spec, LIMITS[:3])
    interrupted_after(5 + 2, specs, store, monkeypatch)
    there = [name for name in leftovers(store) if name.endswith(".prefix")]
    assert len(there) == 3
    sweep([spec(rounds=1)], jobs=1, store=store)
    assert [name for name in leftovers(store) if name.endswith(".prefix")] == there, "another sweep needs them"
    for spec_k in specs:
        execute(spec_k, store)
    sweep([spec(rounds=1)], jobs=1, store=store)
    assert leftovers(store) == []


def test_marks_of_which_no_sweep_is_known_are_removed(spec, store):
    execute(spec("fedselect", p=0.25), store, saves=(1,), until=1, record=False)
    sweep([], store=store)
    assert leftovers(store) == []


@pytest.mark.parametrize("note", [b"5", b"null", b"[[1]]", b'["**x", "/"]', b"[" * 100_000])
def test_a_damaged_note_about_marks_stops_no_sweep(note, spec, store):
    execute(spec("fedselect", p=0.25), store, saves=(1,), until=1, record=False)
    (mark,) = store.root.glob("*.prefix")
    mark.with_name(f"{mark.name.split('.')[0]}.waiting").write_bytes(note)
    sweep([spec(rounds=1)], jobs=1, store=store)
    assert leftovers(store) == []


# ---- when a run fails -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["here", "threads"])
def test_a_failing_run_is_named_and_the_others_are_stored(pool, spec, store):
    """Two runs whose short names are equal are still two."""
    bad, good = [spec(f"{HERE}:Raises", rounds=rounds) for rounds in (2, 3)], [spec(rounds=1), spec(rounds=2)]
    assert bad[0].label() == bad[1].label()
    with ThreadPoolExecutor(1) as executor, pytest.raises(SweepError) as caught:
        sweep([good[0], *bad, good[1]], jobs=1, executor=executor if pool == "threads" else None, store=store)
    head, *lines = str(caught.value).splitlines()
    assert head.startswith("2 of 4 runs failed")
    assert len(lines) == 2, "a line for each failed run, however long its message"
    assert all(part in line for line in lines for part in (bad[0].label(), "RuntimeError", "first line"))
    assert [type(error) for error in caught.value.errors] == ([RuntimeError] * 2 if pool == "here" else [])
    assert all(store.get(s.key()) is None for s in bad)
    assert all(store.get(s.key()) is not None for s in good)
    assert leftovers(store) == []


@pytest.mark.parametrize("error", ["SystemExit", "GeneratorExit"])
def test_a_run_that_leaves_python_stops_no_other(error, spec, store):
    good = spec(rounds=1)
    with pytest.raises(SweepError, match=f"1 of 2 runs failed.*\n.*{error}: enough"):
        sweep([spec(f"{HERE}:Leaves", error=error), good], jobs=1, store=store)
    assert store.get(good.key()) is not None


@pytest.mark.parametrize("error", ["SystemExit", "GeneratorExit", "TwoPartsError"])
def test_what_fails_in_a_worker_can_be_sent_to_its_parent(error, spec, store):
    made = spec(f"{HERE}:Leaves", error=error)
    with pytest.raises(sweep_module.RunError) as caught:
        sweep_module._job(Task(made, made.key()), store, HERE)
    assert str(pickle.loads(pickle.dumps(caught.value))) == f"{error}: enough"


def test_where_a_shared_start_fails_the_others_run_alone(spec, store, monkeypatch):
    specs = limits(spec)

    def fail(task, *args, **options):
        if task.key == specs[-1].key():
            raise RuntimeError("the shared prefix")
        return execute(task, *args, **options)

    monkeypatch.setattr(sweep_module, "execute", fail)
    with pytest.raises(SweepError, match="1 of 4"):
        sweep(specs, jobs=1, store=store)
    assert all(store.get(s.key()) is not None for s in specs[:3])


def test_the_warning_of_an_idle_worker_that_ends_is_no_error():
    """Raised as an error, it would end loky's own thread, and the sweep would wait for ever."""
    from joblib.externals.loky import process_executor

    text = "A worker stopped while some jobs were given to the "
    assert text in inspect.getsource(process_executor)
    warnings.simplefilter("error")
    pool.Workers(1).executor()
    warnings.warn(f"{text}executor.", UserWarning, stacklevel=1)


def test_a_killed_worker_fails_only_its_own_run(spec, store, tmp_path):
    """The first run kills its process whenever it is tried, and the second is in the middle of a round by then.

    The one is tried twice and reported; the others come out as if it were not there.
    """
    log = tmp_path / "log"
    killer = spec(f"{HERE}:Dies", log=str(log), parent=os.getpid())
    bad, good = spec(f"{HERE}:Raises"), [spec(f"{HERE}:Slow", rounds=1), *(spec(seed=s, rounds=2) for s in range(3))]
    with pytest.raises(SweepError) as caught:
        sweep([killer, good[0], bad, *good[1:]], jobs=2, store=store)
    message = str(caught.value)
    assert len(log.read_text(encoding="utf-8").splitlines()) == 2, "tried once more, then given up"
    assert [s.label() for s in good if store.get(s.key()) is None] == [], message
    head, *lines = message.splitlines()
    assert head.startswith("2 of 6 runs failed"), message
    assert any(killer.label() in line and "died" in line for line in lines)
    assert any(bad.label() in line and "first line" in line for line in lines)


PARENT = f"""
import signal, sys
from pathlib import Path
from pfl_core.runs import RunSpec, Store, sweep
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
seconds, root = float(sys.argv[1]), Path(sys.argv[2])
if __name__ == "__main__":
    methods = [{{"name": "{HERE}:Slow", "seconds": each}} for each in (0.0, seconds)]
    specs = [
        RunSpec(method=method, data={{"name": "{HERE}:blobs"}}, model={{"name": "mlp"}}, clients=4, rounds=2)
        for method in methods
    ]
    sweep(specs, jobs=2, store=Store(root))
"""


def of_session(number: int) -> list[int]:
    """The processes of a session that are alive."""
    alive = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            alive += [int(stat.parent.name)] if int(session) == number and state != "Z" else []
    return alive


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{Path(sweep_module.__file__).parents[2]}", "PFL_DATA_DIR": str(folder)}


@contextlib.contextmanager
def parent(folder: Path, seconds: float, text: str = PARENT) -> Iterator[subprocess.Popen]:
    """A process in a session of its own that makes a sweep with two workers. In the end, none of them is alive."""
    (folder / "parent.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "parent.py", str(seconds), str(folder / "runs")]
    process = subprocess.Popen(
        command, cwd=folder, env=environment(folder), start_new_session=True, stderr=subprocess.DEVNULL
    )
    try:
        yield process
        wait_until(lambda: not of_session(process.pid))
    finally:
        for pid in of_session(process.pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("phase", ["starting", "one idle, one in a long round"])
def test_workers_end_with_their_parent(phase, tmp_path):
    """At any time, within about a second; the test waits longer, for busy machines."""
    with parent(tmp_path, 60.0) as process:

        def reached() -> bool:
            if phase == "starting":
                return len(of_session(process.pid)) > 2  # a worker beside the parent and loky's resource tracker
            return all(len(list((tmp_path / "runs").glob(files))) == 1 for files in ("*.json", "*.round"))

        wait_until(lambda: reached() or process.poll() is not None)
        process.kill()
        process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_ctrl_c_saves_checkpoints_in_workers(tmp_path):
    def begun() -> bool:
        files = list((tmp_path / "runs").glob("*.round"))
        return len(files) == 2 and all(path.read_bytes() not in (b"", b"0") for path in files)

    with parent(tmp_path, 0.01, PARENT.replace("rounds=2", "rounds=100_000")) as process:
        wait_until(begun)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=300)
    assert len(list((tmp_path / "runs").glob("*.ckpt"))) == 2 and not list((tmp_path / "runs").glob("*.round"))


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_users_files_with_the_names_of_libraries_do_not_break_workers(tmp_path):
    for name in ("json", "random", "threading", "struct", "tempfile"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the file of the user')", encoding="utf-8")
    arguments = "run local --model mlp --clients 5 --rounds 1 --seed 0,1 --jobs 2 --quiet".split()
    command = [sys.executable, "-P", "-m", "pfl_core.cli", *arguments]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, encoding="utf-8")
    assert ended.returncode == 0, ended.stderr
    assert len(list(tmp_path.glob("runs/*.json"))) == 2


RELOADED = """
from pfl_core.algorithms.local import Local
from tests.runs.outside import blobs
class Mine(Local):
    def round(self, fed, state, clients, t):
        state, notes = super().round(fed, state, clients, t)
        return state, notes | {"mine": 1.0}
def data():
    made = blobs()
    made.x[0] = 1
    return made
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_module_that_is_edited_and_reloaded_has_other_runs(jobs, spec, store, tmp_path, monkeypatch):
    """As in a notebook: in the process that asks, and in its workers, which live on."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    path, keys = tmp_path / f"reloaded_{jobs}.py", set()
    method, data = ("1.0", "2.0"), ("= 1", "= 2")
    edited = [RELOADED, RELOADED.replace(*method), RELOADED.replace(*method).replace(*data)]
    for number, text in enumerate(edited if jobs == 1 else edited[::2], 1):
        path.write_text(text, encoding="utf-8")
        if number > 1:
            importlib.reload(sys.modules[path.stem])
        made = [spec(f"{path.stem}:Mine", data={"name": f"{path.stem}:data"}, rounds=1, seed=seed) for seed in (0, 1)]
        records = sweep(made, jobs=jobs, store=store)
        assert [record.series["mine"][1] for record in records] == [[min(number, 2.0)]] * 2
        keys |= {(record.key, record.data[f"{path.stem}:data"]) for record in records}
    assert len(keys) == 2 * number and len({data for _, data in keys}) == 2


def test_workers_import_the_users_module_that_registers_a_method(tmp_path):
    (tmp_path / "own_method.py").write_text(
        "from pfl_core.algorithm import register\nfrom pfl_core.algorithms.local import Local\n"
        "@register('own', papers=(), shares='nothing')\nclass Own(Local): pass\n"
    )
    code = (
        "import own_method\nfrom pfl_core.runs import RunSpec, sweep\n"
        "mlp = {'name': 'mlp', 'hidden': [4]}\n"
        "if __name__ == '__main__':\n"
        "    made = [RunSpec(method={'name': 'own'}, model=mlp, rounds=1, seed=s) for s in (0, 1)]\n"
        "    print(len(sweep(made, jobs=2)))\n"
    )
    (tmp_path / "both.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "both.py"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, encoding="utf-8")
    assert (ended.stdout, ended.returncode) == ("2\n", 0), ended.stderr


def test_two_workers_give_the_bits_of_one(spec, store):
    """Processes of their own, the way a sweep runs by default; and the pool works again after the kill above."""
    one = sweep(mixed(spec), jobs=1, store=store)
    two = sweep(mixed(spec), jobs=2, store=beside(store, "two"))
    assert [bits(r) for r in two] == [bits(r) for r in one]
    assert leftovers(beside(store, "two")) == []


def test_an_interrupt_stops_the_workers(spec, store, monkeypatch):
    """Ctrl-C while workers are busy: they do not go on behind the user's back."""
    stopped = []

    class Busy(Executor):
        def submit(self, fn, /, *args, **kwargs) -> Future:
            return Future()

        def shutdown(self, **options) -> None:
            stopped.append(options)

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("joblib.externals.loky.get_reusable_executor", lambda **options: Busy())
    monkeypatch.setattr(sweep_module, "wait", interrupted)
    monkeypatch.setattr(pool, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep([spec("local"), spec("fedavg")], jobs=2, store=store)
    assert stopped == [{"wait": False, "kill_workers": True}]


# ---- when the time is up --------------------------------------------------------------------------------------------


def test_a_sweep_stops_when_the_time_is_up_and_the_next_call_goes_on(spec, store, monkeypatch):
    """The clock shows the number of completed rounds: two of the first run, then two of the second."""
    specs, made = [spec(seed=seed, rounds=3) for seed in range(4)], rounds_made(monkeypatch)
    monkeypatch.setattr("pfl_core.deadline.now", lambda: float(len(made)))
    with pytest.raises(TimeUpError) as caught:
        sweep(specs, jobs=1, store=store, stop_at=5.0)
    assert "ended 1, at a checkpoint 1, not started 2" in str(caught.value)
    assert len(made) == 5
    records = sweep(specs, jobs=1, store=store)
    assert len(made) == 12, "no round is made again"
    monkeypatch.undo()
    assert [bits(r) for r in records] == [bits(r) for r in sweep(specs, jobs=1, store=beside(store, "alone"))]
    assert leftovers(store) == []


def test_a_shared_start_is_stopped_and_goes_on(spec, store, monkeypatch):
    specs, made = limits(spec, LIMITS[:3]), rounds_made(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr("pfl_core.deadline.now", lambda: float(len(made)))
        for stop_at in (4.0, 7.0):
            with pytest.raises(TimeUpError):
                sweep(specs, jobs=1, store=store, stop_at=stop_at)
    records = sweep(specs, jobs=1, store=store)
    assert len(made) == 5 + 5 + 4 + 1
    monkeypatch.undo()
    assert_alone(specs, records, store)
    assert leftovers(store) == []


def test_a_sweep_of_stored_runs_needs_no_time(spec, store, monkeypatch):
    sweep([spec(rounds=1)], jobs=1, store=store)
    monkeypatch.setenv(deadline.VARIABLE, "1.0")
    assert len(sweep([spec(rounds=1)], jobs=1, store=store)) == 1
    with pytest.raises(TimeUpError, match="ended 0, at a checkpoint 0, not started 1"):
        sweep([spec(rounds=1), spec(rounds=2)], jobs=1, store=store)
    monkeypatch.setenv(deadline.VARIABLE, "soon")
    with pytest.raises(ValueError, match="PFL_DEADLINE=soon"):
        sweep([spec(rounds=2)], jobs=1, store=store)


def test_workers_stop_when_the_time_is_up(spec, store):
    """Two processes with runs of a minute, and one run that waits for them."""
    sweep([spec(seed=seed, rounds=1) for seed in (8, 9)], jobs=2, store=store)  # starts the workers
    specs = [spec(f"{HERE}:Slow", seconds=0.1, rounds=600, seed=seed) for seed in range(3)]
    with pytest.raises(TimeUpError, match="ended 0, at a checkpoint 2, not started 1"):
        sweep(specs, jobs=2, store=store, stop_at=time.time() + 2)
    assert not list(store.root.glob("*.round"))


def test_tasks_that_no_worker_has_begun_are_dropped_when_the_time_is_up(spec, store):
    """An executor gets all tasks at once; one thread works."""
    specs = [spec(f"{HERE}:Slow", seconds=0.1, rounds=600, seed=seed) for seed in range(3)]
    with ThreadPoolExecutor(1) as pool, pytest.raises(TimeUpError, match="at a checkpoint 1, not started 2"):
        sweep(specs, executor=pool, store=store, stop_at=time.time() + 1)


# ---- progress -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, b"", b"abc", b"\xff\xfe", PermissionError("in use")], ids=str)
def test_progress_that_cannot_be_read_counts_as_none(content, store, monkeypatch):
    """The worker has removed the file meanwhile, or replaces it just then (Windows)."""
    store.root.mkdir(parents=True)
    if isinstance(content, bytes):
        store.progress("0123").write_bytes(content)
    elif content is not None:
        monkeypatch.setattr(Path, "read_text", lambda self, **options: (_ for _ in ()).throw(content))
    assert _rounds_done(store, "0123") == 0


@pytest.mark.parametrize("stop_when", [None, three_are_scored])
def test_progress_is_counted_in_rounds(stop_when, spec, store, monkeypatch):
    bars = []

    class Bar:
        n, disable = 0, True

        def __init__(self, total: int, **options) -> None:
            self.total = total
            bars.append(self)

        def close(self) -> None:
            pass

        def update(self, more: int) -> None:
            self.n += more

    monkeypatch.setattr(sweep_module, "tqdm", Bar)
    specs = [spec(seed=s, rounds=r) for s, r in enumerate((1, 2, 4))]
    sweep(specs, jobs=1, store=store, stop_when=stop_when)
    sweep(specs, executor=Here(), store=beside(store, "there"), stop_when=stop_when)
    assert [(bar.total, bar.n) for bar in bars] == [(7, 7), (7, 7)]

"""Computes many runs: stored ones are read, missing ones run in parallel, and each is stored as soon as it ends."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Self

from tqdm import tqdm

from pfl_core import plugins
from pfl_core.algorithm import Algorithm
from pfl_core.deadline import TimeUpError, deadline, passed, time_up
from pfl_core.federation import Federation
from pfl_core.files import atomic_write
from pfl_core.plugins import text_of
from pfl_core.runs import cluster
from pfl_core.runs.build import build
from pfl_core.runs.execute import StopWhen, execute
from pfl_core.runs.log import RunLog, last_scores
from pfl_core.runs.marks import Branch, marks_of, note_needs, remove_unneeded
from pfl_core.runs.spec import RunSpec
from pfl_core.runs.store import Record, Series, Store

POLL_SECONDS = 0.5
# A worker starts without the working folder on its path, where a random.py would take the place of the library's. It
# then gets the path of this process.
SAFE_PATH = "PYTHONSAFEPATH"
SAVE_SECONDS = 5.0  # for the checkpoints of the runs that Ctrl-C stops
PARENT_SECONDS = 0.5  # how often a worker process checks that its parent lives

_is_running = False  # whether this worker process computes a run


class SweepError(RuntimeError):
    """Some runs of a sweep failed; the others are stored. The message has a line for each failed run."""


class RunError(RuntimeError):
    """What failed in a worker, as a line of the report. The error itself may be one that cannot be pickled."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A run to compute, and the shared checkpoints ("marks") that it starts from or saves."""

    spec: RunSpec
    key: str
    branch: Branch | None = None  # the run from whose marks it starts
    marks: tuple[int, ...] = ()  # rounds after which it saves a mark for other runs
    until: int | None = None  # stop after this round without a record; the run is needed for its marks only
    checksums: Mapping[str, str] | None = None  # of the data on the parent's machine
    stop_at: float | None = None  # seconds since 1970; then it stops at a checkpoint
    stop_when: StopWhen | None = None  # ends the run early, see ``execute``
    log: Path | None = None  # the folder in which the run is logged, see ``log.RunLog``
    threads: int = 1  # how many clients are computed at the same time


def run(spec: RunSpec, store: Store | None = None) -> Record:
    """The record of one run: read if stored, else computed in this process."""
    (record,) = sweep([spec], jobs=1, store=store)
    return record


def sweep(
    specs: Sequence[RunSpec],
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    scheduler: str | None = None,
    store: Store | None = None,
    stop_at: float | None = None,
    stop_when: StopWhen | None = None,
    log: Path | None = None,
) -> list[Record]:
    """The records of all specs, in the same order. Missing runs are computed.

    Args:
        specs: the runs; equal ones are computed once.
        jobs: number of cores, default PFL_JOBS of the environment, else all. With at least as many runs as cores, each
            worker process computes one run. With fewer, the remaining cores compute several clients of a run at the
            same time. A single run is computed in this process.
        executor: any ``concurrent.futures`` executor to use instead.
        scheduler: address of a Dask scheduler to use instead, default DASK_SCHEDULER_ADDRESS of the environment. The
            workers must share the data folder, see ``docs/cluster.md``.
        store: where records are read and written, default ``Store()``.
        stop_at: seconds since 1970, default PFL_DEADLINE of the environment. After this time no run starts, and those
            that are computed stop after their round at a checkpoint, from which a later call continues.
        stop_when: ends runs early, see ``execute``. Their records are partial, and they are not continued by a later
            sweep with this argument. Worker processes get it as a pickle: give a function of a module.
        log: a folder in which each run that is computed writes its scores after every round, see ``RunLog``.

    Raises SweepError if some runs failed, after all others are done; TimeUpError if some were not completed because of
    ``stop_at``; ConnectionError if the scheduler does not answer or is lost; ValueError if one of its workers has other
    code or another folder.
    """
    store, jobs = store or Store(), num_jobs(jobs)
    stop_at = deadline() if stop_at is None else stop_at
    remove_unneeded(store)  # what killed sweeps left
    keys: list[str] = []
    missing: dict[str, RunSpec] = {}
    records: dict[str, Record] = {}
    for spec in specs:
        key, record = store.locate(spec)
        keys.append(key)
        if record is not None and _has_ended(record, stop_when):
            records[key] = record
        else:
            missing[key] = spec
    failures: dict[str, str] = {}
    if missing:
        tasks = plan(missing, store)
        address = None if executor else cluster.address(scheduler)
        cores, jobs = jobs, min(jobs, len(tasks))
        common: dict[str, Any] = {"stop_at": stop_at, "stop_when": stop_when, "log": log}
        if executor is None and address is None:
            common["threads"] = cores // jobs
        tasks = [dataclasses.replace(_with_checksums(task), **common) for task in tasks]
        for trunk in tasks:
            if needed_by := [task.key for task in tasks if task.branch and task.branch.key == trunk.key]:
                note_needs(store, trunk.key, needed_by)
        total = sum(task.until or task.spec.rounds for task in tasks)
        with tqdm(total=total, unit="round", file=sys.stderr, desc=f"{len(missing)} runs") as bar:
            if executor is None and address is None and jobs == 1:
                failures = _sequentially(tasks, store, bar)
            else:
                with _pool(jobs, executor, address, store) as pool:
                    failures = _in_parallel(tasks, store, bar, pool)
        records |= {key: record for key in missing if (record := _ended(store, key, stop_when)) is not None}
        stopped = [key for key in missing.keys() & records.keys() if records[key].partial]
        remove_unneeded(store, {*failures, *stopped})
    # a shared prefix that failed is not a run of the sweep; its branches start from round 0 instead
    failures = {key: reason for key, reason in failures.items() if key in missing}
    unfinished = missing.keys() - records.keys() - failures.keys()
    if unfinished and passed(stop_at):
        at_checkpoint = sum(store.checkpoint(key).exists() for key in unfinished)
        raise time_up(
            ended=len(missing) - len(unfinished) - len(failures),
            at_checkpoint=at_checkpoint,
            not_started=len(unfinished) - at_checkpoint,
            failed=len(failures),
        )
    if failures:
        lines = "\n".join(f"  {missing[key].label()}: {reason}" for key, reason in failures.items())
        raise SweepError(f"{len(failures)} of {len(missing)} runs failed, the others are stored:\n{lines}")
    if lost := [missing[key].label() for key in missing if key in unfinished]:
        raise SweepError(
            f"{len(lost)} runs are complete but not in {store.root}, first {lost[0]}; "
            "do all workers use the same data folder?"
        )
    return [dataclasses.replace(records[key], spec=spec) for key, spec in zip(keys, specs, strict=True)]


def num_jobs(jobs: int | None) -> int:
    """The number of cores: ``jobs``, else PFL_JOBS of the environment, else the number of cores.

    Raises ValueError for anything that is not a positive integer.
    """
    name, value = ("PFL_JOBS", os.environ.get("PFL_JOBS") or os.cpu_count() or 1) if jobs is None else ("jobs", jobs)
    if not str(value).isdigit() or int(value) < 1:
        raise ValueError(f"{name}={value} is not a number of cores; give 1 or more")
    return int(value)


def _ended(store: Store, key: str, stop_when: StopWhen | None) -> Record | None:
    """The stored record of that key, if it has all rounds that the sweep wants."""
    record = store.get(key)
    return record if record is not None and _has_ended(record, stop_when) else None


def _has_ended(record: Record, stop_when: StopWhen | None) -> bool:
    """Whether a run has all its rounds, or those after which ``stop_when`` ends it."""
    return not record.partial or (stop_when is not None and stop_when(record.series))


def plan(missing: Mapping[str, RunSpec], store: Store) -> list[Task]:
    """Tasks for the missing runs (key -> spec). Runs with identical first rounds branch from one shared run (trunk)."""
    # trunk's key -> trunk, and for each run that branches from it: key, number of shared rounds
    branches: dict[str, tuple[RunSpec, list[tuple[str, int]]]] = {}
    for key, spec in missing.items():
        try:
            trunk, rounds = _shared_prefix(spec)
            trunk_key = store.key_of(trunk) if rounds else key
        except Exception:  # data or a user's code may raise anything, and will again when the run is executed
            continue
        if trunk_key != key:
            branches.setdefault(trunk_key, (trunk, []))[1].append((key, rounds))
    _federation.cache_clear()
    trunks: list[Task] = []
    children: list[Task] = []
    for key, (trunk, runs) in branches.items():
        branch_of = {k: Branch(key, rounds) for k, rounds in runs}
        if key in missing or len(runs) > 1:
            # a trunk that is itself a missing run is computed to its end, else only to its last mark
            marks = tuple(sorted({rounds for _, rounds in runs}))
            trunks.append(Task(trunk, key, marks=marks, until=None if key in missing else marks[-1]))
        elif not marks_of(store, *branch_of.values()):
            continue  # no other run shares the prefix, and a killed sweep left no mark of it
        children += [Task(missing[k], k, branch) for k, branch in branch_of.items()]
    planned = {task.key for task in (*trunks, *children)}
    independent = [Task(spec, key) for key, spec in missing.items() if key not in planned]
    return trunks + independent + children


def _with_checksums(task: Task) -> Task:
    try:
        return dataclasses.replace(task, checksums=task.spec.checksums())
    except FileNotFoundError:  # reported when the run is executed
        return task


def _shared_prefix(spec: RunSpec) -> tuple[RunSpec, int]:
    """The run with which this one shares its first rounds, and the number of these rounds."""
    if type(spec.build_method()).shared_prefix is Algorithm.shared_prefix:
        return spec, 0
    without_method = json.dumps({**spec.to_json(), "method": {"name": "local"}})
    prefix_method, rounds = spec.build_method().shared_prefix(_federation(without_method))
    method = {"name": spec.method["name"], **dataclasses.asdict(prefix_method)}
    return dataclasses.replace(spec, method=method), rounds


@lru_cache(maxsize=1)
def _federation(spec: str) -> Federation:
    """The federation of a spec in JSON; built once for runs that differ only in their method."""
    return build(RunSpec.from_json(json.loads(spec)))[1]


def _job(task: Task, store: Store, module: str, check_parent: Callable[[], object] = lambda: None) -> str:
    """Executed by a worker: compute the task and write its progress to a file.

    ``module`` registers the method. ``check_parent`` is called after each round and raises if the sweep has ended.
    Raises RunError for everything else that goes wrong.
    """
    global _is_running
    key, _is_running = task.key, True

    def on_round(done: int) -> None:
        check_parent()
        with suppress(OSError):  # on a full disk the progress is unknown, but the run goes on
            atomic_write(store.progress(key), str(done).encode())

    try:
        importlib.import_module(module)
        _execute(task, store, on_round)
    except (TimeUpError, cluster.SweepEndedError):
        raise
    except BaseException as error:  # SystemExit would end the worker
        raise RunError(_error_line(error)) from None
    finally:
        _is_running = False
    return key


def _sequentially(tasks: Sequence[Task], store: Store, bar: tqdm) -> dict[str, str]:
    """Compute all tasks in this process. Returns key -> reason of those that failed."""
    failures: dict[str, str] = {}
    for task in tasks:
        if passed(task.stop_at):
            break
        before = bar.n

        def on_round(done: int, before: int = before) -> None:
            bar.update(before + done - bar.n)

        try:
            _execute(task, store, on_round, partial(_show, bar, task.spec))
            on_round(task.until or task.spec.rounds)  # those after an early end too
        except TimeUpError:
            break
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a method may raise anything, SystemExit too; the other runs continue
            failures[task.key] = _error_line(error)
    return failures


def _show(bar: tqdm, spec: RunSpec, series: Series) -> None:
    if not bar.disable:
        bar.set_postfix(last_scores(spec, series), refresh=False)


def _execute(
    task: Task,
    store: Store,
    on_round: Callable[[int], object],
    watch: Callable[[Series], object] = lambda series: None,
) -> None:
    # another sweep may have stored it meanwhile, or a worker that was lost right afterwards
    if task.until is None and _ended(store, task.key, task.stop_when) is not None:
        on_round(task.spec.rounds)
        return
    folder = task.log if task.until is None else None  # a shared prefix is not a run of the sweep
    with RunLog(folder, task.spec, task.key) if folder else nullcontext() as log:

        def watch_and_log(series: Series) -> None:
            watch(series)
            if log:
                log.update(series)

        execute(
            task.spec,
            store,
            key=task.key,
            checksums=task.checksums,
            branch=task.branch,
            marks=task.marks,
            until=task.until,
            record=task.until is None,
            stop_at=task.stop_at,
            stop_when=task.stop_when if task.until is None else None,  # the marks of a shared prefix are needed
            threads=task.threads,
            on_round=on_round,
            watch=watch_and_log,
        )


def _error_line(error: BaseException) -> str:
    if isinstance(error, RunError):
        return str(error)
    return (
        "its worker process died"
        if isinstance(error, BrokenProcessPool) or type(error).__name__ == "KilledWorker"  # Dask's
        else f"{type(error).__name__}: {' '.join(text_of(error).split())}"
    )


def _in_parallel(tasks: Sequence[Task], store: Store, bar: tqdm, pool: _Pool) -> dict[str, str]:
    """Start each task as soon as the task that it depends on has ended and a worker is free.

    If a worker dies, the pool fails and all running tasks with it. These are tried once more at the end, one at a time,
    so that a second failure is that of the task itself. When the time is up, the running tasks stop by themselves and
    the others are dropped. Returns key -> reason of the tasks that failed.
    """
    failures: dict[str, str] = {}
    ended: set[str] = set()
    waiting = {task.key: task for task in tasks}
    running: dict[Future, tuple[Task, bool]] = {}  # future -> task, whether it is a second attempt
    retry: dict[str, Task] = {}
    max_running, is_retry = pool.size or len(tasks), False
    rounds = {task.key: task.until or task.spec.rounds for task in tasks}
    while waiting or running or retry:
        if passed(tasks[0].stop_at):
            waiting, retry = {}, {}
            running = {future: run for future, run in running.items() if not _dropped(future, run[0], store, pool)}
        # only failed tasks are left: try them again one at a time
        if not waiting and not running:
            waiting, retry, max_running, is_retry = retry, {}, 1, True
        # start tasks whose trunk has ended, as many as there are free workers
        pending = {*waiting, *(task.key for task, _ in running.values())}
        ready = [key for key, task in waiting.items() if task.branch is None or task.branch.key not in pending]
        for key in ready[: max_running - len(running)]:
            task = waiting.pop(key)
            running[pool.submit(task, store)] = task, is_retry
        pool.renew()
        for future in wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done:
            (task, was_retry), error = running.pop(future), pool.error_of(future)
            key = task.key
            if isinstance(error, BrokenProcessPool) and _ended(store, key, task.stop_when) is not None:
                error = None  # the worker died after it had stored the record
            if isinstance(error, BrokenProcessPool) and not was_retry:
                retry[key] = task
            elif isinstance(error, cluster.RefusedError) and pool.retire(error):
                waiting[key] = task
            elif not isinstance(error, TimeUpError):
                ended.add(key)
                if error is not None:
                    failures[key] = _error_line(error)
        # progress: all rounds of ended tasks, and those that the workers report for the others
        bar.update(sum(n if key in ended else _rounds_done(store, key) for key, n in rounds.items()) - bar.n)
    return failures


def _dropped(future: Future, task: Task, store: Store, pool: _Pool) -> bool:
    """Cancel a task that no worker has begun, or that no worker can end. Returns whether it was cancelled."""
    has_begun = store.progress(task.key).exists()
    return not (has_begun and pool.has_workers()) and future.cancel()


def _process_pool(jobs: int) -> Executor:
    """The worker processes, which are reused by later sweeps and replaced if one dies."""
    from joblib.externals.loky import get_reusable_executor

    # loky stops idle workers. If it needs one just then, it warns and starts another; where warnings are errors, the
    # warning would end loky's own thread, and the sweep would wait for ever.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs were given to the executor", UserWarning)
    with _environment(SAFE_PATH, "1"):  # for loky's resource tracker
        return get_reusable_executor(
            max_workers=jobs,
            env={"OMP_NUM_THREADS": "1", SAFE_PATH: "1"},
            initializer=_start_worker,
            initargs=(os.getpid(), plugins.reloads),
        )


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """An environment variable for the processes that are started meanwhile."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _start_worker(parent: int, reloads: int) -> None:
    """Ignore Ctrl-C: the parent process ends the workers, so that they print no tracebacks. At SIGTERM a run saves a
    checkpoint.

    With other arguments, i.e. after a module of the user was reloaded, loky starts new workers.

    If the parent is killed, the worker ends within a second, also while it starts, waits or trains. A later call
    continues the run from its checkpoint. On Windows it finishes its run, because ``os.getppid`` does not change there.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_run)
    if sys.platform != "win32":
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_run(number: int, frame: object) -> None:
    """Stop the run of this worker at a checkpoint, see ``execute``; end an idle worker."""
    if not _is_running:
        os._exit(128 + number)
    raise KeyboardInterrupt


def _end_with(parent: int) -> None:
    """End this process, also in the middle of a round, once it is no child of ``parent`` any more."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


class _Pool:
    """Where tasks run: worker processes of this machine. A context manager; Ctrl-C ends what still runs."""

    size: int | None  # tasks at once; None: all

    def __init__(self, jobs: int) -> None:
        self.size, self.futures = jobs, list[Future]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        if kind is KeyboardInterrupt:
            pool: Any = _process_pool(self.size or 1)  # Any: loky's
            begun = [future for future in self.futures if not future.cancel()]
            try:
                for process in list((getattr(pool, "_processes", None) or {}).values()):
                    process.terminate()
                wait(begun, timeout=SAVE_SECONDS)
            finally:
                pool.shutdown(wait=False, kill_workers=True)

    def submit(self, task: Task, store: Store) -> Future:
        """If the pool is broken because a worker died, the returned future has that exception."""
        try:
            self.futures.append(_process_pool(self.size or 1).submit(_job, task, store, _module(task)))
            return self.futures[-1]
        except BrokenProcessPool as error:
            return _failed(error)

    def renew(self) -> None:
        """Called about every half second. Raises ConnectionError if the pool is lost."""

    def has_workers(self) -> bool:
        """Whether there are workers that can end what they have begun."""
        return True

    def error_of(self, future: Future) -> BaseException | None:
        return future.exception()

    def retire(self, error: cluster.RefusedError) -> bool:
        """Stop using the worker that refused. Returns whether the task can be submitted again."""
        return False


class _ExecutorPool(_Pool):
    """The caller's executor, which stays open."""

    def __init__(self, executor: Executor) -> None:
        self.size, self.executor = None, executor

    def __exit__(self, *failure: object) -> None:
        pass

    def submit(self, task: Task, store: Store) -> Future:
        try:
            return self.executor.submit(_job, task, store, _module(task))
        except BrokenProcessPool as error:
            return _failed(error)


class _ClusterPool(_Pool):
    """The workers of a Dask scheduler."""

    def __init__(self, address: str, store: Store) -> None:
        self.size, self.cluster = None, cluster.Cluster(address, store)

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self.cluster.__exit__()

    def submit(self, task: Task, store: Store) -> Future:
        return self.cluster.submit(_job, task, store, _module(task))

    def renew(self) -> None:
        self.cluster.renew()

    def has_workers(self) -> bool:
        return self.cluster.has_workers()

    def error_of(self, future: Future) -> BaseException | None:
        return self.cluster.error_of(future)

    def retire(self, error: cluster.RefusedError) -> bool:
        self.cluster.retire(error.worker)
        return True


def _failed(error: BaseException) -> Future:
    """A future that has already failed."""
    future: Future = Future()
    future.set_exception(error)
    return future


def _pool(jobs: int, executor: Executor | None, address: str | None, store: Store) -> _Pool:
    if executor is not None:
        return _ExecutorPool(executor)
    return _Pool(jobs) if address is None else _ClusterPool(address, store)


def _module(task: Task) -> str:
    """The module that registers the task's method."""
    return type(task.spec.build_method()).__module__


def _rounds_done(store: Store, key: str) -> int:
    """The progress that the worker wrote last; 0 if it cannot be read, e.g. while the worker writes it (Windows)."""
    try:
        return int(store.progress(key).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0

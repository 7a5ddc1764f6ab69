"""Computes many runs: stored ones are read, missing ones run in parallel, and each is stored as soon as it ends."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from tqdm import tqdm

from pfl_core.deadline import SweepError, TimeUpError, deadline, passed, time_up
from pfl_core.files import atomic_write
from pfl_core.plugins import text_of
from pfl_core.runs import cluster, pool
from pfl_core.runs.execute import execute
from pfl_core.runs.log import RunLog, last_scores
from pfl_core.runs.prefix import note_waiting, plan, remove_unneeded
from pfl_core.runs.record import Record, Series
from pfl_core.runs.spec import RunSpec
from pfl_core.runs.store import Store
from pfl_core.runs.task import StopWhen, SweepEndedError, Task

POLL_SECONDS = 0.5


class RunError(RuntimeError):
    """What failed in a worker, as a line of the report. The error itself may be one that cannot be pickled."""


def sweep(
    specs: Sequence[RunSpec],
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    scheduler: str | None = None,
    store: Store | None = None,
    stop_at: float | None = None,
    stop_when: StopWhen | None = None,
    until: int | None = None,
    keep_state: bool = False,
    log: Path | None = None,
    seconds: Sequence[float] | None = None,
    warn: Callable[[str], object] = lambda text: None,
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
        until: stop each run after this number of rounds. Its record is then partial.
        keep_state: keep the final states of the runs that are computed, see ``Task``.
        log: a folder in which each run that is computed writes its scores after every round, see ``RunLog``.
        seconds: estimate for each spec. The longest run then starts first, and the progress bar counts seconds.
        warn: called with a line for the user, as in ``execute``.

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
        if record is not None and _has_ended(record, min(until or spec.rounds, spec.rounds), stop_when):
            records[key] = record
        else:
            missing[key] = spec
    failures: dict[str, BaseException] = {}
    here = False  # whether the runs are computed in this process
    if missing:
        tasks = [Task(spec, key) for key, spec in missing.items()] if until else plan(missing, store)
        address = None if executor else cluster.address(scheduler)
        cores, jobs = jobs, min(jobs, len(tasks))
        common: dict[str, Any] = {"stop_at": stop_at}
        if executor is None and address is None:
            common["threads"] = cores // jobs
        # a prefix that is computed for others is not a run of the sweep, and is needed to its end
        of_runs: dict[str, Any] = {"stop_when": stop_when, "keep_state": keep_state, "log": log}
        of_runs |= {"until": until} if until else {}
        tasks = [
            dataclasses.replace(_with_checksums(task), **common, **(of_runs if task.record else {})) for task in tasks
        ]
        note_waiting(store, tasks)
        with Progress(tasks, len(missing), dict(zip(keys, seconds, strict=True)) if seconds else {}) as progress:
            here = executor is None and address is None and jobs == 1
            if here:
                failures = _sequentially(progress.tasks, store, progress, warn)
            else:
                own = pool.Workers(jobs) if executor is None else pool.Pool(executor)
                with own if address is None else cluster.Cluster(address, store) as where:
                    failures = _in_parallel(progress.tasks, store, progress, where, warn)
        records |= {task.key: record for task in tasks if task.record and (record := _ended(store, task)) is not None}
        stopped = [key for key in missing.keys() & records.keys() if records[key].partial]
        remove_unneeded(store, {*failures, *stopped})
    # a shared prefix that failed is not a run of the sweep; the others start from round 0 instead
    failures = {key: error for key, error in failures.items() if key in missing}
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
        lines = "\n".join(f"  {missing[key].label()}: {_error_line(error)}" for key, error in failures.items())
        text = f"{len(failures)} of {len(missing)} runs failed, the others are stored:\n{lines}"
        raise SweepError(text, failures.values() if here else ())
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


def _ended(store: Store, task: Task) -> Record | None:
    """The stored record of a task, if it has all rounds and metrics that the sweep wants."""
    record = store.get(task.key)
    if record is None or not set(task.spec.metrics) <= record.series.keys():
        return None
    return record if _has_ended(record, task.rounds, task.stop_when) else None


def _has_ended(record: Record, rounds: int, stop_when: StopWhen | None) -> bool:
    """Whether a run has these rounds, or those after which ``stop_when`` ends it."""
    return record.rounds >= rounds or (stop_when is not None and stop_when(record.series))


def _with_checksums(task: Task) -> Task:
    try:
        return dataclasses.replace(task, checksums=task.spec.checksums())
    except FileNotFoundError:  # reported when the run is executed
        return task


def _job(task: Task, store: Store, module: str, check_parent: Callable[[], object] = lambda: None) -> list[str]:
    """Executed by a worker: compute the task and write its progress to a file. Returns the lines for the user.

    ``module`` registers the method. ``check_parent`` is called after each round and raises if the sweep has ended.
    Raises RunError for everything else that goes wrong.
    """
    pool.is_running = True
    lines: list[str] = []

    def on_round(done: int) -> None:
        check_parent()
        with suppress(OSError):  # on a full disk the progress is unknown, but the run goes on
            atomic_write(store.progress(task.key), str(done).encode())

    try:
        importlib.import_module(module)
        _execute(task, store, on_round, warn=lines.append)
    except (TimeUpError, SweepEndedError):
        raise
    except BaseException as error:  # SystemExit would end the worker
        raise RunError(_error_line(error)) from None
    finally:
        pool.is_running = False
    return lines


class Progress:
    """The progress bar of a sweep, which counts rounds, or seconds where estimates are given. A context manager.

    Attributes:
        tasks: in the order in which they start: shared prefixes, then the longest.
    """

    def __init__(self, tasks: Sequence[Task], runs: int, seconds: Mapping[str, float]) -> None:
        """``runs``: how many runs the tasks are. ``seconds``: by the key of a run; {} for none."""
        each = {task.key: seconds[task.key] / task.spec.rounds for task in tasks if task.key in seconds}
        each = {task.prefix.key: each[task.key] for task in tasks if task.prefix and task.key in each} | each
        self.each = {task.key: each.get(task.key, 1) for task in tasks}  # what a round counts
        self.tasks = sorted(tasks, key=lambda task: (not task.saves, -self.each[task.key] * task.rounds if each else 0))
        self.done = dict.fromkeys(self.each, 0)
        total = sum(self.each[task.key] * task.rounds for task in tasks)
        form: dict[str, Any] = {"bar_format": "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}", "smoothing": 0}
        name = tasks[0].spec.method["name"] if len(tasks) == 1 else f"{runs} runs"
        self.bar = tqdm(total=total, unit="round", file=sys.stderr, desc=name, **(form if each else {}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.bar.close()

    def update(self, done: Mapping[str, int]) -> None:
        """``done``: rounds, by task."""
        self.done.update(done)
        self.bar.update(sum(self.each[key] * rounds for key, rounds in self.done.items()) - self.bar.n)

    def show(self, spec: RunSpec, series: Series) -> None:
        """The last scores of the run that is computed."""
        if not self.bar.disable:
            self.bar.set_postfix(last_scores(spec, series), refresh=False)


def _sequentially(
    tasks: Sequence[Task], store: Store, progress: Progress, warn: Callable[[str], object]
) -> dict[str, BaseException]:
    """Compute all tasks in this process. Returns key -> error of those that failed."""
    failures: dict[str, BaseException] = {}
    for task in tasks:
        if passed(task.stop_at):
            break

        def on_round(done: int, key: str = task.key) -> None:
            progress.update({key: done})

        try:
            _execute(task, store, on_round, partial(progress.show, task.spec), warn)
            on_round(task.rounds)  # those after an early end too
        except TimeUpError:
            break
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a method may raise anything, SystemExit too; the other runs continue
            failures[task.key] = error
    return failures


def _execute(
    task: Task,
    store: Store,
    on_round: Callable[[int], object],
    watch: Callable[[Series], object] = lambda series: None,
    warn: Callable[[str], object] = lambda text: None,
) -> None:
    # another sweep may have stored it meanwhile, or a worker that was lost right afterwards
    if task.record and _ended(store, task) is not None:
        on_round(task.rounds)
        return
    with RunLog(task.log, task.spec, task.key) if task.log else nullcontext() as log:

        def watch_and_log(series: Series) -> None:
            watch(series)
            if log:
                log.update(series)

        execute(task, store, on_round=on_round, watch=watch_and_log, warn=warn)


def _error_line(error: BaseException) -> str:
    if isinstance(error, RunError):
        return str(error)
    return (
        "its worker process died"
        if isinstance(error, BrokenProcessPool) or type(error).__name__ == "KilledWorker"  # Dask's
        else f"{type(error).__name__}: {' '.join(text_of(error).split())}"
    )


def _in_parallel(
    tasks: Sequence[Task], store: Store, progress: Progress, where: pool.Pool, warn: Callable[[str], object]
) -> dict[str, BaseException]:
    """Start each task as soon as the task that it depends on has ended and a worker is free.

    If a worker dies, the pool fails and all running tasks with it. These are tried once more at the end, one at a time,
    so that a second failure is that of the task itself. When the time is up, the running tasks stop by themselves and
    the others are dropped. Returns key -> error of the tasks that failed.
    """
    failures: dict[str, BaseException] = {}
    waiting = {task.key: task for task in tasks}
    running: dict[Future, tuple[Task, bool]] = {}  # future -> task, whether it is a second attempt
    retry: dict[str, Task] = {}
    max_running, is_retry = where.size or len(tasks), False
    progress.update({key: _rounds_done(store, key) for key in waiting})  # of an earlier sweep that was stopped
    while waiting or running or retry:
        if passed(tasks[0].stop_at):
            waiting, retry = {}, {}
            running = {future: run for future, run in running.items() if not _dropped(future, run[0], where, store)}
        # only failed tasks are left: try them again one at a time
        if not waiting and not running:
            waiting, retry, max_running, is_retry = retry, {}, 1, True
        # start tasks whose shared prefix is there, as many as there are free workers
        pending = {*waiting, *(task.key for task, _ in running.values())}
        ready = [key for key, task in waiting.items() if task.prefix is None or task.prefix.key not in pending]
        for key in ready[: max_running - len(running)]:
            task = waiting.pop(key)
            running[where.submit(_job, task, store, _module(task))] = task, is_retry
        where.renew()
        for future in wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done:
            (task, was_retry), error = running.pop(future), where.error_of(future)
            key = task.key
            for line in future.result() if error is None else ():
                warn(line)
            if isinstance(error, BrokenProcessPool) and _ended(store, task) is not None:
                error = None  # the worker died after it had stored the record
            if isinstance(error, BrokenProcessPool) and not was_retry:
                retry[key] = task
            elif not isinstance(error, TimeUpError):
                progress.update({key: task.rounds})
                if error is not None:
                    failures[key] = error
        progress.update({task.key: _rounds_done(store, task.key) for task, _ in running.values()})
    return failures


def _dropped(future: Future, task: Task, where: pool.Pool, store: Store) -> bool:
    """Cancel a task that no worker has begun, or that no worker can end. Returns whether it was cancelled."""
    has_begun = store.progress(task.key).exists()
    return not (has_begun and where.has_workers()) and future.cancel()


def _module(task: Task) -> str:
    """The module that registers the task's method."""
    return type(task.spec.build_method()).__module__


def _rounds_done(store: Store, key: str) -> int:
    """The progress that the worker wrote last; 0 if it cannot be read, e.g. while the worker writes it (Windows)."""
    try:
        return int(store.progress(key).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0

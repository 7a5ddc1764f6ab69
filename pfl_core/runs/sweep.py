"""Many runs: stored ones are read, missing ones run in parallel, and each is kept as soon as it is done."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from pathlib import Path

from joblib.externals.loky import get_reusable_executor
from tqdm import tqdm

from pfl_core.algorithm import Algorithm
from pfl_core.federation import Federation
from pfl_core.runs.build import build
from pfl_core.runs.execute import execute, mark_path
from pfl_core.runs.spec import RunSpec
from pfl_core.runs.store import Record, Store, atomic_write

POLL_SECONDS = 0.5


class SweepError(RuntimeError):
    """Some runs of a sweep failed; the others are stored. The message has a line for each."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A run to make: from which mark it may start and after which task, and which marks it leaves for others."""

    spec: RunSpec
    key: str
    branch: Path | None = None
    after: str | None = None  # key of the run that leaves the mark
    marks: tuple[int, ...] = ()
    until: int | None = None  # stop there, without a record: only the marks are wanted
    checksums: Mapping[str, str] | None = None  # of its data, as the parent process has them


def run(spec: RunSpec, store: Store | None = None) -> Record:
    """The record of one run: read if stored, else computed here."""
    (record,) = sweep([spec], jobs=1, store=store)
    return record


def sweep(
    specs: Sequence[RunSpec], *, jobs: int | None = None, executor: Executor | None = None, store: Store | None = None
) -> list[Record]:
    """The records of all specs, in their order; missing ones are computed first.

    ``jobs`` processes (default: the environment's PFL_JOBS, else all cores; 1 stays in this process). Any
    ``concurrent.futures`` executor serves in their place, e.g. ``dask.distributed.Client(...).get_executor()`` for a
    cluster whose machines share the data folder. Raises SweepError, after all others are done, if some runs failed.
    """
    store, jobs = store or Store(), num_jobs(jobs)
    keys, records = [], {}
    for spec in specs:
        key, record = store.locate(spec)
        keys.append(key)
        records[key] = record
    missing = {k: spec for k, spec in zip(keys, specs, strict=True) if records[k] is None or records[k].partial}
    failures: dict[str, str] = {}
    if missing:
        tasks = [_with_checksums(task) for task in plan(missing, store)]
        jobs = min(jobs, len(tasks))
        total = sum(task.until or task.spec.rounds for task in tasks)
        with tqdm(total=total, unit="round", file=sys.stderr, desc=f"{len(missing)} runs") as bar:
            if executor is None and jobs == 1:
                failures = _one_by_one(tasks, store, bar)
            else:
                try:
                    failures = _in_parallel(tasks, store, bar, executor, jobs)
                except KeyboardInterrupt:
                    if executor is None:
                        _own_pool(jobs).shutdown(wait=False, kill_workers=True)
                    raise
        for task in tasks:
            if task.branch is not None:
                task.branch.unlink(missing_ok=True)
    failures = {key: why for key, why in failures.items() if key in missing}  # a common start alone is no run
    if failures:
        lines = "\n".join(f"  {missing[key].label()}: {why}" for key, why in failures.items())
        raise SweepError(f"{len(failures)} of {len(missing)} runs failed, the others are stored:\n{lines}")
    records |= {key: store.get(key) for key in missing}
    if lost := [missing[key].label() for key, record in records.items() if record is None]:
        raise SweepError(f"{len(lost)} runs ended but are not in {store.root}, first {lost[0]}; is it the same folder?")
    return [dataclasses.replace(records[key], spec=spec) for key, spec in zip(keys, specs, strict=True)]


def num_jobs(asked: int | None) -> int:
    """How many processes: those asked for, else the environment's PFL_JOBS, else all cores.

    Raises ValueError for what is no such number.
    """
    name, wanted = ("PFL_JOBS", os.environ.get("PFL_JOBS") or os.cpu_count() or 1) if asked is None else ("jobs", asked)
    if not str(wanted).isdigit() or int(wanted) < 1:
        raise ValueError(f"{name}={wanted} is no number of processes; give 1 or more")
    return int(wanted)


def plan(missing: Mapping[str, RunSpec], store: Store) -> list[Task]:
    """Tasks for the missing runs, by key; runs that share their start with another part from its mark."""
    branches: dict[str, tuple[RunSpec, list[tuple[str, int]]]] = {}
    for key, spec in missing.items():
        trunk, rounds = _shared_prefix(spec)
        if rounds and (shared := store.key_of(trunk)) != key:
            branches.setdefault(shared, (trunk, []))[1].append((key, rounds))
    _federation.cache_clear()
    trunks, rest, parted = [], [], set()
    for key, (trunk, children) in branches.items():
        if key not in missing and len(children) == 1:
            continue  # nobody to share the start with
        marks = tuple(sorted({rounds for _, rounds in children}))
        trunks.append(Task(trunk, key, marks=marks, until=None if key in missing else marks[-1]))
        rest += [Task(missing[k], k, mark_path(store, key, rounds), after=key) for k, rounds in children]
        parted |= {key, *(k for k, _ in children)}
    return trunks + [Task(spec, key) for key, spec in missing.items() if key not in parted] + rest


def _with_checksums(task: Task) -> Task:
    try:
        return dataclasses.replace(task, checksums=task.spec.checksums())
    except FileNotFoundError:  # the run itself will say so, in its line of the report
        return task


def _shared_prefix(spec: RunSpec) -> tuple[RunSpec, int]:
    """The run that this one shares its first rounds with, and how many."""
    if type(spec.build_method()).shared_prefix is Algorithm.shared_prefix:
        return spec, 0
    shell = json.dumps({**spec.to_json(), "method": {"name": "local"}})
    other, rounds = spec.build_method().shared_prefix(_federation(shell))
    part = {"name": spec.method["name"], **dataclasses.asdict(other)}
    return dataclasses.replace(spec, method=part), rounds


@lru_cache(maxsize=1)
def _federation(spec: str) -> Federation:
    """What runs that differ in their method alone have in common; built once for all of them."""
    return build(RunSpec.from_json(json.loads(spec)))[1]


def _job(task: Task, store: Store, module: str) -> str:
    """What a worker does; its rounds show in a file that the parent reads. ``module`` registers the method."""
    importlib.import_module(module)
    key = task.key

    def on_round(done: int) -> None:
        if _parent not in (None, os.getppid()):
            raise SystemExit("the parent process exited; the run goes on from its checkpoint when asked for again")
        atomic_write(store.progress(key), str(done).encode())

    _execute(task, store, on_round)
    return key


def _one_by_one(tasks: Sequence[Task], store: Store, bar: tqdm) -> dict[str, str]:
    failures = {}
    for task in tasks:
        before = bar.n
        try:
            _execute(task, store, lambda done, before=before: bar.update(before + done - bar.n))
        except Exception as error:  # whatever a method raises is reported, and the others go on
            failures[task.key] = _line(error)
    return failures


def _execute(task: Task, store: Store, on_round: Callable[[int], object]) -> None:
    execute(
        task.spec,
        store,
        key=task.key,
        checksums=task.checksums,
        branch=task.branch,
        marks=task.marks,
        until=task.until,
        record=task.until is None,
        on_round=on_round,
    )


def _line(error: BaseException) -> str:
    return (
        "its worker process died"
        if isinstance(error, BrokenProcessPool)
        else f"{type(error).__name__}: {' '.join(str(error).split())}"
    )


def _in_parallel(
    tasks: Sequence[Task], store: Store, bar: tqdm, executor: Executor | None, jobs: int
) -> dict[str, str]:
    """Each task as soon as the one that it waits for has ended and a worker is free.

    A worker that dies takes its neighbours' runs with it, so whatever was running then is tried once more at the end,
    one run at a time: whoever dies now has nobody else to blame.
    """
    failures: dict[str, str] = {}
    waiting, running, again = {task.key: task for task in tasks}, {}, {}
    width, alone = len(tasks) if executor else jobs, False
    rounds = {task.key: task.until or task.spec.rounds for task in tasks}
    while waiting or running or again:
        if not waiting and not running:
            waiting, again, width, alone = again, {}, 1, True
        busy = {*waiting, *(task.key for task, _ in running.values())}
        ready = [key for key, task in waiting.items() if task.after not in busy]
        for key in ready[: width - len(running)]:
            task = waiting.pop(key)
            running[_submit(executor, jobs, task, store)] = task, alone
        for future in wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done:
            (task, second), error = running.pop(future), future.exception()
            key = task.key
            if isinstance(error, BrokenProcessPool) and not second:
                record = store.get(key)
                again |= {key: task} if record is None or record.partial else {}
            elif error is not None:
                failures[key] = _line(error)
        unfinished = {*waiting, *again, *(task.key for task, _ in running.values())}
        bar.update(sum(_rounds_done(store, k) if k in unfinished else n for k, n in rounds.items()) - bar.n)
    return failures


def _own_pool(jobs: int) -> Executor:
    """Processes that stay for the next sweep; new ones after a death."""
    return get_reusable_executor(max_workers=jobs, env={"OMP_NUM_THREADS": "1"}, initializer=_start)


_parent: int | None = None  # of a worker of our own: the process that waits for it


def _start() -> None:
    """Ctrl-C reaches workers, too, but it is the process that started them that ends them, without a traceback each.

    Where that one is killed, they end with the round that they are in (see ``_job``).
    """
    global _parent
    _parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _submit(executor: Executor | None, jobs: int, task: Task, store: Store) -> Future:
    """A future in any case: of a pool whose worker has died, one that says so."""
    try:
        return (executor or _own_pool(jobs)).submit(_job, task, store, type(task.spec.build_method()).__module__)
    except BrokenProcessPool as error:
        future: Future = Future()
        future.set_exception(error)
        return future


def _rounds_done(store: Store, key: str) -> int:
    """What a worker last wrote of its progress; 0 before it has written anything."""
    try:
        return int(store.progress(key).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return 0

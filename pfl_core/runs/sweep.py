"""Many runs: stored ones are read, missing ones run in parallel, and each is kept as soon as it is done."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from joblib.externals.loky import get_reusable_executor
from tqdm import tqdm

from pfl_core.algorithm import Algorithm
from pfl_core.runs.build import build
from pfl_core.runs.execute import execute, mark_path
from pfl_core.runs.spec import RunSpec
from pfl_core.runs.store import Record, Store, atomic_write

POLL_SECONDS = 0.5
TRIES = 2  # a worker that dies takes its neighbours' runs with it, so those are tried once more


class SweepError(RuntimeError):
    """Some runs of a sweep failed; the others are stored. The message has a line for each."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A run to make: from which mark it may start and after which task, and which marks it leaves for others."""

    spec: RunSpec
    branch: Path | None = None
    after: str | None = None  # key of the run that leaves the mark
    marks: tuple[int, ...] = ()
    until: int | None = None  # stop there, without a record: only the marks are wanted


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
    store = store or Store()
    missing = {key: spec for spec in specs if store.get(key := spec.key()) is None}
    failures: dict[str, str] = {}
    if missing:
        tasks = plan(list(missing.values()), store)
        jobs = min(jobs or int(os.environ.get("PFL_JOBS", 0)) or os.cpu_count() or 1, len(tasks))
        total = sum(task.until or task.spec.rounds for task in tasks)
        with tqdm(total=total, unit="round", file=sys.stderr, desc=f"{len(missing)} runs") as bar:
            if executor is None and jobs == 1:
                failures = _one_by_one(tasks, store, bar)
            else:
                failures = _in_parallel(tasks, store, bar, executor, jobs)
        for task in tasks:
            if task.branch is not None:
                task.branch.unlink(missing_ok=True)
    if failures:
        lines = "\n".join(f"  {label}: {why}" for label, why in failures.items())
        raise SweepError(f"{len(failures)} of {len(missing)} runs failed, the others are stored:\n{lines}")
    return [dataclasses.replace(store.get(spec.key()), spec=spec) for spec in specs]


def plan(missing: Sequence[RunSpec], store: Store) -> list[Task]:
    """Tasks for the missing runs; runs that share their start with another part from its mark."""
    wanted = {spec.key(): spec for spec in missing}
    branches: dict[str, tuple[RunSpec, list[tuple[RunSpec, int]]]] = {}
    for key, spec in wanted.items():
        trunk, rounds = _prefix(spec)
        if rounds and trunk.key() != key:
            branches.setdefault(trunk.key(), (trunk, []))[1].append((spec, rounds))
    trunks, rest, parted = [], [], set()
    for key, (trunk, children) in branches.items():
        if key not in wanted and len(children) == 1:
            continue  # nobody to share the start with
        marks = tuple(sorted({rounds for _, rounds in children}))
        trunks.append(Task(trunk, marks=marks, until=None if key in wanted else marks[-1]))
        rest += [Task(spec, mark_path(store, key, rounds), after=key) for spec, rounds in children]
        parted |= {key, *(spec.key() for spec, _ in children)}
    return trunks + [Task(spec) for key, spec in wanted.items() if key not in parted] + rest


def _prefix(spec: RunSpec) -> tuple[RunSpec, int]:
    """The run that this one shares its first rounds with, and how many."""
    if type(spec.build_method()).prefix is Algorithm.prefix:
        return spec, 0
    algorithm, fed, _ = build(spec)
    other, rounds = algorithm.prefix(fed)
    part = {"name": spec.method["name"], **dataclasses.asdict(other)}
    return dataclasses.replace(spec, method=part), rounds


def _job(task: Task, store: Store) -> str:
    """What a worker does; its rounds show in a file that the parent reads."""
    key = task.spec.key()
    execute(
        task.spec,
        store,
        branch=task.branch,
        marks=task.marks,
        until=task.until,
        on_round=lambda done: atomic_write(store.progress(key), str(done).encode()),
    )
    return key


def _one_by_one(tasks: Sequence[Task], store: Store, bar: tqdm) -> dict[str, str]:
    failures = {}
    for task in tasks:
        before = bar.n
        try:
            execute(
                task.spec,
                store,
                branch=task.branch,
                marks=task.marks,
                until=task.until,
                on_round=lambda done, before=before: bar.update(before + done - bar.n),
            )
        except Exception as error:  # whatever a method raises is reported, and the others go on
            failures[task.spec.label()] = f"{type(error).__name__}: {error}"
    return failures


def _in_parallel(
    tasks: Sequence[Task], store: Store, bar: tqdm, executor: Executor | None, jobs: int
) -> dict[str, str]:
    failures: dict[str, str] = {}
    todo = {task.spec.key(): task for task in tasks}

    def show(open_keys: set[str]) -> None:
        rounds = {task.spec.key(): task.until or task.spec.rounds for task in tasks}
        bar.update(sum(_rounds_done(store, k) if k in open_keys else n for k, n in rounds.items()) - bar.n)

    for _ in range(TRIES):
        pool = executor or get_reusable_executor(max_workers=jobs, env={"OMP_NUM_THREADS": "1"})
        try:
            todo = _attempt(pool, todo, store, failures, show)
        except KeyboardInterrupt:
            if executor is None:
                pool.shutdown(wait=False, kill_workers=True)
            raise
        if not todo:
            break
    return failures | {task.spec.label(): "its worker process died" for task in todo.values()}


def _attempt(
    pool: Executor, todo: dict[str, Task], store: Store, failures: dict[str, str], show: Callable[[set[str]], None]
) -> dict[str, Task]:
    """Run each task as soon as the one that it waits for has ended; returns those whose worker died."""
    dead: dict[str, Task] = {}
    waiting, running = dict(todo), {}
    while waiting or running:
        busy = set(waiting) | set(running.values())
        for key in [key for key, task in waiting.items() if task.after not in busy]:
            task = waiting.pop(key)
            try:
                running[pool.submit(_job, task, store)] = key
            except BrokenProcessPool:
                dead[key] = task
        done, _ = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
        for future in done:
            key, error = running.pop(future), future.exception()
            if isinstance(error, BrokenProcessPool):
                dead[key] = todo[key]
            elif error is not None:
                failures[todo[key].spec.label()] = f"{type(error).__name__}: {error}"
        show(set(waiting) | set(running.values()) | set(dead))
    return dead


def _rounds_done(store: Store, key: str) -> int:
    """What a worker last wrote of its progress; 0 before it has written anything."""
    path = store.progress(key)
    return int(path.read_text()) if path.exists() else 0

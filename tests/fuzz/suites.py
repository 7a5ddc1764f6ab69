"""The table of suites, and the loop that runs their cases in forked processes and counts the outcomes."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch

from tests.fuzz import disks, flips, inputs, kills
from tests.fuzz.cases import TRACEBACK, WRONG, Case, Wrong, limit_memory

CASE_SECONDS = 90  # after that, a case counts as wrong
BATCH = 10  # cases of a task
MEMORY = 12 * 2**30  # bytes of address space of a process


@dataclass(frozen=True)
class Suite:
    """``large`` and ``short``: numbers of cases of `make fuzz` and of `make test`."""

    name: str
    about: str
    case: Case
    large: int
    short: int


SUITES = [
    Suite("kill run", "the process of a run is killed, up to three times", kills.run_is_killed, 100, 8),
    Suite("kill sweep", "the process of a sweep is killed", kills.sweep_is_killed, 60, 3),
    Suite("kill worker", "one of two worker processes is killed", kills.worker_is_killed, 40, 2),
    Suite("kill own worker", "the same, in the pool that a sweep starts itself", kills.reusable_worker_is_killed, 6, 0),
    Suite(
        "signal",
        "`pfl run` gets SIGINT, SIGTERM or SIGKILL, from its first moment on",
        kills.command_gets_a_signal,
        40,
        2,
    ),
    Suite("flip record", "damage in a record", flips.record, 700, 60),
    Suite("flip checkpoint", "damage in a checkpoint", flips.checkpoint, 500, 12),
    Suite("flip mark", "damage in a checkpoint that other runs start from", flips.mark, 200, 8),
    Suite("flip cache", "damage in another file of the data folder", flips.cache_file, 150, 6),
    Suite("flip searched", "damage in searched.json", flips.searched, 150, 20),
    Suite("flip manifest", "damage in manifest.json", flips.manifest_file, 150, 5),
    Suite("flip npz", "damage in a data set", flips.npz, 400, 100),
    Suite("full disk", "a run on a disk without space", disks.disk_is_full, 60, 4),
    Suite("file size", "a run that may write a few bytes only", disks.files_are_limited, 60, 4),
    Suite("shared store", "three processes compute the same runs", disks.store_is_shared, 30, 2),
    Suite("bad command", "nonsense on the command line", inputs.command, 600, 25),
    Suite("bad value", "nonsense from Python", inputs.value, 600, 100),
    Suite("bad npz", "a data set with wrong arrays", inputs.npz_content, 400, 100),
]


@dataclass
class Count:
    """Outcomes of a suite, and a line for each case that went wrong."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def run(suites: Sequence[Suite], cases: Sequence[range], seed: int, jobs: int) -> Iterator[tuple[Suite, int, str, str]]:
    """(suite, number of the case, outcome, what went wrong) for each case, in any order."""
    tasks = [(s, range(i, min(i + BATCH, r.stop))) for s, r in zip(suites, cases, strict=True) for i in r[::BATCH]]
    while tasks:
        done = set()
        with _pool(jobs) as pool:
            futures = {pool.submit(_batch, SUITES.index(suite), batch, seed): (suite, batch) for suite, batch in tasks}
            for future in as_completed(futures):
                suite, batch = futures[future]
                try:
                    results = future.result()
                except BrokenProcessPool:
                    continue
                done.add((suite.name, batch))
                yield from ((suite, *result) for result in results)
        left = [task for task in tasks if (task[0].name, task[1]) not in done]
        if left and len(left) == len(tasks):  # the first one ends its process
            suite, batch = left.pop(0)
            yield from ((suite, case, WRONG, "its process died") for case in batch)
        tasks = left


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork"), initializer=_prepare)


def _prepare() -> None:
    """In a new worker: a data folder of its own, one thread, limited memory."""
    torch.set_num_threads(1)
    os.environ["PFL_DATA_DIR"] = tempfile.mkdtemp(prefix="pfl-fuzz-")
    limit_memory(MEMORY)


def _batch(suite: int, cases: range, seed: int) -> list[tuple[int, str, str]]:
    return [(case, *run_case(SUITES[suite], case, seed)) for case in cases]


def run_case(suite: Suite, number: int, seed: int) -> tuple[str, str]:
    """The outcome of one case, and what went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="pfl-fuzz-case-"))
    signal.signal(signal.SIGALRM, _too_slow)
    signal.alarm(CASE_SECONDS)
    try:
        return suite.case(Random(f"{seed} {suite.name} {number}"), folder), ""
    except Wrong as error:
        return WRONG, " ".join(str(error).split())
    except BaseException as error:
        at = traceback.extract_tb(error.__traceback__)[-2 if isinstance(error, _TooSlow) else -1]
        notes = " ".join([f"({Path(at.filename).name}:{at.lineno})", *getattr(error, "__notes__", ())])
        if isinstance(error, _TooSlow):
            return WRONG, f"took more than {CASE_SECONDS} s {notes}"
        return TRACEBACK, f"{type(error).__name__}: {' '.join(str(error).split())} {notes}"
    finally:
        signal.alarm(0)
        shutil.rmtree(folder, ignore_errors=True)


class _TooSlow(BaseException):
    """Raised by the alarm clock; no code of the project handles it."""


def _too_slow(number: int, frame: object) -> None:
    raise _TooSlow

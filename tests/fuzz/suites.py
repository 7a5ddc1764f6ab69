"""The table of suites, and the loop that runs their cases in forked processes and counts the outcomes."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch

from tests.fuzz import disks, flips, inputs, kills
from tests.fuzz.cases import EXECUTE, TRACEBACK, WRONG, Case, Wrong, limit_memory

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
    Suite("kill run", "the process of a run is killed, up to three times", kills.run_is_killed, 120, 8),
    Suite("kill sweep", "the process of a sweep is killed", kills.sweep_is_killed, 60, 3),
    Suite("kill worker", "one of two worker processes is killed", kills.worker_is_killed, 30, 2),
    Suite(
        "signal",
        "`pfl run` gets SIGINT, SIGTERM or SIGKILL, from its first moment on",
        kills.command_gets_a_signal,
        24,
        2,
    ),
    Suite("flip record", "damage in a record", flips.record, 700, 60),
    Suite("flip checkpoint", "damage in a checkpoint", flips.checkpoint, 500, 12),
    Suite("flip prefix", "damage in a checkpoint that other runs start from", flips.prefix, 200, 8),
    Suite("flip cache", "damage in another file of the data folder", flips.cache_file, 150, 6),
    Suite("flip searched", "damage in searched.json", flips.searched, 150, 20),
    Suite("flip manifest", "damage in manifest.json", flips.manifest_file, 150, 5),
    Suite("flip npz", "damage in a data set", flips.npz, 400, 100),
    Suite("full disk", "a run on a disk without space", disks.disk_is_full, 50, 4),
    Suite("file size", "a run that may write a few bytes only", disks.files_are_limited, 50, 4),
    Suite("shared store", "three processes compute the same runs", disks.store_is_shared, 30, 2),
    Suite("bad command", "nonsense on the command line", inputs.command, 500, 25),
    Suite("bad value", "nonsense from Python", inputs.value, 600, 100),
    Suite("bad npz", "a data set with wrong arrays", inputs.npz_content, 400, 100),
    Suite("bad arrays", "wrong arrays of a user", inputs.arrays, 400, 100),
]


class Result(NamedTuple):
    """The outcome of a case, and what went wrong."""

    suite: str
    case: int
    outcome: str
    fault: str = ""
    seconds: float = 0.0


@dataclass
class Count:
    """Outcomes of a suite, and a line for each case that went wrong."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0  # of all cases
    faults: list[str] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.outcomes[result.outcome] += 1
        self.seconds += result.seconds
        self.faults += [f"case {result.case}: {result.fault}"] if result.fault else []


def run(suites: Sequence[Suite], cases: Sequence[range], seed: int, jobs: int) -> Iterator[Result]:
    """The results of these cases of each suite, in any order."""
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
                yield from results
        left = [task for task in tasks if (task[0].name, task[1]) not in done]
        if left and len(left) == len(tasks):  # the first one ends its process
            suite, batch = left.pop(0)
            yield from (Result(suite.name, case, WRONG, "its process died") for case in batch)
        tasks = left


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork"), initializer=_prepare)


def _prepare() -> None:
    """In a new worker: a data folder of its own, one thread, limited memory."""
    torch.set_num_threads(1)
    os.environ["PFL_DATA_DIR"] = tempfile.mkdtemp(prefix="pfl-fuzz-")
    limit_memory(MEMORY)


def _batch(suite: int, cases: range, seed: int) -> list[Result]:
    return [run_case(SUITES[suite], case, seed) for case in cases]


def run_case(suite: Suite, case: int, seed: int) -> Result:
    """Run one case, at most CASE_SECONDS long, in an empty folder."""
    folder, began = Path(tempfile.mkdtemp(prefix="pfl-fuzz-case-")), time.monotonic()
    EXECUTE.CHECKPOINT_SECONDS = 0.0  # a checkpoint after every round
    signal.signal(signal.SIGALRM, _too_slow)
    signal.alarm(CASE_SECONDS)
    try:
        outcome, fault = suite.case(Random(f"{seed} {suite.name} {case}"), folder), ""
    except Wrong as error:
        outcome, fault = WRONG, " ".join(str(error).split())
    except BaseException as error:
        outcome, fault = _failure(error)
    finally:
        signal.alarm(0)
        shutil.rmtree(folder, ignore_errors=True)
    return Result(suite.name, case, outcome, fault, time.monotonic() - began)


def _failure(error: BaseException) -> tuple[str, str]:
    too_slow = isinstance(error, _TooSlow)
    frames = traceback.extract_tb(error.__traceback__)
    at = frames[-2 if too_slow else -1]  # the last one of a slow case is the alarm
    notes = " ".join([f"({Path(at.filename).name}:{at.lineno})", *getattr(error, "__notes__", ())])
    if too_slow:
        return WRONG, f"took more than {CASE_SECONDS} s {notes}"
    return TRACEBACK, f"{type(error).__name__}: {' '.join(str(error).split())} {notes}"


class _TooSlow(BaseException):
    """Raised by the alarm clock; no code of the project handles it."""


def _too_slow(number: int, frame: object) -> None:
    raise _TooSlow

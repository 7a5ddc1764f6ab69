"""Processes killed at random moments: the next call continues, and its results have the same bits."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random

from pfl_core.runs import Store, SweepError, execute, sweep
from pfl_core.runs.provenance import ROOT
from tests.fuzz.cases import METHODS, NOTICED, SURVIVED, Wrong, check_record, end, specs, start, store_in
from tests.fuzz.cases import undisturbed as _undisturbed

RUN_SECONDS, SWEEP_SECONDS = 0.12, 0.5  # a little longer than one run, and than all of them
PROCESS_SECONDS = 4.0  # of `pfl run`, imports included


def run_is_killed(rng: Random, folder: Path) -> str:
    """The process of one run, one to three times."""
    number, store = rng.randrange(len(METHODS)), store_in(folder)
    _undisturbed(number)
    for _ in range(rng.randint(1, 3)):
        _kill(start(lambda: execute(specs()[number], store), folder / "errors"), rng.uniform(0, RUN_SECONDS))
    check_record(execute(specs()[number], store), number)
    return SURVIVED


def sweep_is_killed(rng: Random, folder: Path) -> str:
    """The process of a sweep with runs that share their first rounds."""
    store, numbers = store_in(folder), rng.sample(range(len(METHODS)), 4)
    wanted = [specs()[n] for n in numbers]
    for _ in range(rng.randint(1, 2)):
        _kill(start(lambda: sweep(wanted, jobs=1, store=store), folder / "errors"), rng.uniform(0, SWEEP_SECONDS))
    _finish(store, numbers)
    return SURVIVED


def worker_is_killed(rng: Random, folder: Path) -> str:
    """One of two forked worker processes of a sweep."""
    store, numbers = store_in(folder), rng.sample(range(len(METHODS)), 4)
    outcome = SURVIVED
    pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork"))
    pids = {pool.submit(os.getpid).result() for _ in range(4)}
    processes = list(pool._processes.values())
    timer = threading.Timer(rng.uniform(0, SWEEP_SECONDS), _send, (rng.choice(sorted(pids)), signal.SIGKILL))
    timer.start()
    try:
        sweep([specs()[n] for n in numbers], executor=pool, store=store)
    except SweepError as error:
        if "its worker process died" not in str(error):
            raise
        outcome = NOTICED
    finally:
        timer.join()
        for process in processes:  # one that waits for a lock of the killed one would never end
            process.kill()
        pool.shutdown()
    _finish(store, numbers)
    return outcome


def command_gets_a_signal(rng: Random, folder: Path) -> str:
    """`pfl run` gets SIGINT, SIGTERM or SIGKILL at any moment, imports included.

    Before the package handles signals, while Python itself starts, it ends silently or with Python's own traceback.
    """
    command = [
        sys.executable,
        "-c",
        "from pfl_core.cli import main, signals; signals.handle(); print(flush=True); raise SystemExit(main())",
    ]
    command += ["run", "fedavg", *"--rounds 200 --model mlp --clients 5 --batch-size 4".split()]
    env = os.environ | {"PFL_DATA_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    number = rng.choice((signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
    process = subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(rng.uniform(0, PROCESS_SECONDS) * rng.random())
    process.send_signal(number)
    try:
        out, err = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Wrong(f"still running 30 s after {number.name}") from None
    finished = b"stored in" in out and process.returncode in (0, -number)  # Python's last moments handle no signal
    if number == signal.SIGKILL or finished:
        return SURVIVED
    lines = [line for line in err.decode().replace("\r", "\n").splitlines() if line.startswith("pfl: ")]
    if process.returncode != 128 + number or len(lines) != 1 or b"Traceback" in err:
        raise Wrong(f"{number.name}: status {process.returncode}, {err.decode()[-400:]!r}")
    left = [path.name for path in folder.rglob("*") if path.suffix in (".part", ".round")]
    if left:
        raise Wrong(f"{number.name}: left behind {left}")
    return SURVIVED


def _finish(store: Store, numbers: list[int]) -> None:
    """A further call completes the sweep, with the same bits."""
    records = sweep([specs()[n] for n in numbers], jobs=1, store=store)
    for record, number in zip(records, numbers, strict=True):
        check_record(record, number)
    left = list(store.root.glob("*.prefix"))
    if left:
        raise Wrong(f"prefixes left behind: {[path.name for path in left]}")


def _kill(pid: int, seconds: float) -> None:
    time.sleep(seconds)
    _send(pid, signal.SIGKILL)
    if end(pid) not in (0, -signal.SIGKILL):
        raise Wrong("the process failed before it was killed")


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass

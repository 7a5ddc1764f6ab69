"""Full disks and processes that share a store."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from pathlib import Path
from random import Random

from pfl_core.runs import execute, sweep
from pfl_core.runs.store import read_content
from tests.fuzz.cases import (
    METHODS,
    NOTICED,
    SURVIVED,
    Wrong,
    check_message,
    check_no_leftovers,
    check_record,
    end,
    specs,
    start,
    store_in,
)
from tests.fuzz.cases import undisturbed as _undisturbed

MAX_BYTES = 6000  # more than a record or a checkpoint of these runs


def files_are_limited(rng: Random, folder: Path) -> str:
    """No file may grow beyond a few bytes (`ulimit -f`)."""

    def limited() -> None:
        limit = rng.randrange(MAX_BYTES)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return _run(rng, folder, limited)


def disk_is_full(rng: Random, folder: Path) -> str:
    """A disk of 16 to 64 kB in memory, where this process may mount one; else as `files_are_limited`."""
    disk = folder / "runs"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={rng.choice((16, 32, 64))}k,nr_inodes=64", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True).returncode:
        return files_are_limited(rng, folder)
    filler = disk / "filler"
    try:
        with filler.open("wb") as file:
            file.write(bytes(4096 * rng.randrange(4)))
        return _run(rng, folder, lambda: None, make_room=lambda: filler.unlink(missing_ok=True))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def store_is_shared(rng: Random, folder: Path) -> str:
    """Three processes compute the same runs at the same time."""
    store, numbers = store_in(folder), rng.sample(range(len(METHODS)), 3)
    for number in numbers:
        _undisturbed(number)

    def work(delay: float) -> None:
        time.sleep(delay)
        order = [specs()[n] for n in numbers]
        for record, number in zip(sweep(order, jobs=1, store=store), numbers, strict=True):
            check_record(record, number)

    errors = [folder / f"errors{i}" for i in range(3)]
    pids = [start(lambda: work(rng.uniform(0, 0.1)), path) for path in errors]
    statuses = [end(pid) for pid in pids]
    if any(statuses):
        raise Wrong(next(path.read_text(encoding="utf-8") for path in errors if path.exists())[-600:])
    for number in numbers:
        check_record(store.get(_undisturbed(number).key), number)
    check_no_leftovers(folder)
    return SURVIVED


def _run(rng: Random, folder: Path, limit, make_room=lambda: None) -> str:
    """A run that may fail for lack of space, then one that has it."""
    number, store = rng.randrange(len(METHODS)), store_in(folder)
    _undisturbed(number)
    message = folder / "message"
    message.touch()
    out = os.open(message, os.O_WRONLY)

    def work() -> None:
        limit()
        try:
            execute(specs()[number], store)
        except OSError as error:
            os.write(out, str(error).encode()[:900])

    pid = start(work, folder / "errors")
    status = end(pid)
    os.close(out)
    if status:
        raise RuntimeError((folder / "errors").read_text(encoding="utf-8")[-900:])
    failed = message.read_text(encoding="utf-8")
    if failed:
        check_message(failed)
    for path in store.root.glob("*.json"):
        read_content(path)
    check_no_leftovers(folder)
    make_room()
    if not failed:
        check_record(store.get(_undisturbed(number).key), number)
        return SURVIVED
    if store.root.is_mount():
        return NOTICED  # the disk may still be too small for the run
    check_record(execute(specs()[number], store), number)
    return NOTICED

"""What the suites share: outcomes, damage, child processes, and small runs with their undisturbed records.

A case is a function of a random generator and an empty folder. It returns SURVIVED or NOTICED, raises Wrong for a
result that differs, and any other exception counts as a traceback.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from pfl_core.runs import Record, RunSpec, Store, execute
from pfl_core.runs.store import read_content, write_record
from tests.runs.conftest import SMALL

SURVIVED = "survived"  # the same result as without the disturbance, or bad input refused with one line
NOTICED = "noticed"  # the fault was named, and only what it damaged was computed again, with the same result
WRONG, TRACEBACK = "wrong", "tracebacks"
OUTCOMES = (SURVIVED, NOTICED, WRONG, TRACEBACK)
Case = Callable[[Random, Path], str]
MAX_MESSAGE = 700  # characters of an error message

# the module; as an attribute of the package, `execute` is the function
EXECUTE = sys.modules["pfl_core.runs.execute"]


class Wrong(AssertionError):
    """Another result, damage that nobody noticed, a message of several lines, or a file that was left behind."""


METHODS = (
    {"name": "fedavg"},
    {"name": "ditto"},
    {"name": "scaffold"},
    {"name": "fedselect", "alpha": 0.5},
    {"name": "fedselect", "alpha": 0.3},
    {"name": "fedselect", "alpha": 1},  # shares its first rounds with the other two
)


def specs() -> list[RunSpec]:
    return [RunSpec(**SMALL, method=method) for method in METHODS]


def store_in(folder: Path) -> Store:
    return Store(folder / "runs", folder / "results")


@cache
def undisturbed(number: int) -> Record:
    """The record of ``specs()[number]``, computed once in a process."""
    with tempfile.TemporaryDirectory() as folder:
        store = store_in(Path(folder))
        record = execute(specs()[number], store)
        assert record is not None
        stored = store.get(record.key)
        assert stored is not None
        return stored


def check_record(record: Record | None, number: int) -> None:
    """Raise Wrong unless the record has the same bits as the undisturbed one. Measured times may differ."""
    if record is None:
        raise Wrong("no record")
    found, wanted = _content(record), _content(undisturbed(number))
    if different := [name for name in wanted if found[name] != wanted[name]]:
        raise Wrong(f"{record.spec.label()}: other {', '.join(different)}")


def _content(record: Record) -> dict[str, Any]:
    """What is stored of a record, without measured times.

    The key stands for the run's settings: a shared run of a sweep stores them with all defaults written out.
    """
    with tempfile.TemporaryDirectory() as folder:
        content = read_content(write_record(record, Path(folder) / "record.json"))
    content["series"] = {name: pair for name, pair in content["series"].items() if name != "seconds"}
    return {name: part for name, part in content.items() if name not in ("seconds", "provenance", "spec")}


def check_no_leftovers(folder: Path) -> None:
    """Raise Wrong if there are temporary files or progress files, which only a killed process may leave."""
    left = [path.name for path in folder.rglob("*") if path.suffix in (".part", ".round")]
    if left:
        raise Wrong(f"left behind: {', '.join(left)}")


def check_message(text: str) -> None:
    """Raise Wrong unless an error message is one line of limited length."""
    if "\n" in text.strip() or not text.strip() or len(text) > MAX_MESSAGE:
        raise Wrong(f"not one short line: {text[:300]!r}")


def damaged(content: bytes, rng: Random) -> bytes:
    """The content with one fault: a changed bit or byte, a missing end, zeros, or inserted bytes."""
    at = rng.randrange(len(content))
    kind = rng.choices(("bit", "byte", "cut", "zeros", "insert"), (6, 6, 1, 1, 1))[0]
    if kind == "bit":
        return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
    if kind == "byte":
        return content[:at] + bytes([(content[at] + rng.randrange(1, 256)) % 256]) + content[at + 1 :]
    if kind == "cut":
        return content[:at]
    if kind == "zeros":
        length = min(rng.choice((16, 512)), len(content) - at)
        return content[:at] + bytes(length) + content[at + length :]
    return content[:at] + rng.randbytes(rng.randrange(1, 9)) + content[at:]


def start(function: Callable[[], object], errors: Path) -> int:
    """Run a function in a forked process and return its id. An exception is written to the file ``errors``."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        with errors.open("a", encoding="utf-8") as file:
            os.dup2(file.fileno(), 2)
        function()
        status = 0
    except BaseException:
        errors.write_text(traceback.format_exc(), encoding="utf-8")
    os._exit(status)


def end(pid: int, seconds: float = 60) -> int:
    """The exit status of a process, negative for a signal. Raises Wrong if it takes longer."""
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise Wrong(f"a process was still running after {seconds} s")


def limit_memory(num_bytes: int) -> None:
    """Let this process fail with MemoryError where it would take memory from the others."""
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes, resource.getrlimit(resource.RLIMIT_AS)[1]))

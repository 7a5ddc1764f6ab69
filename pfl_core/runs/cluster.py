"""Runs on a Dask cluster.

Connects to a scheduler, checks every worker before it computes, and stops the runs of a sweep that has ended.
The cluster's machines share the folder of the runs: records, checkpoints and progress go through files. Dask itself
carries only small messages.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import torch

from pfl_core.files import atomic_write, remove
from pfl_core.runs.store import Store

ADDRESS = "DASK_SCHEDULER_ADDRESS"
CONNECT_SECONDS = 10.0
RENEW_SECONDS = 5.0  # how often a sweep shows that it is alive
LOST_SECONDS = 120.0  # a sweep that has not shown it for so long has ended
SLOW_ALLOCATOR = "MALLOC_TRIM_THRESHOLD_"  # set by Dask's nannies; training small networks takes twice as long with it


class RefusedError(ValueError):
    """A worker that would not compute the same as the machine of the sweep. The message is one line."""

    def __init__(self, message: str, worker: str = "") -> None:
        super().__init__(message, worker)  # both in `args`, so that the error survives pickling
        self.worker = worker  # address, if Dask runs this

    def __str__(self) -> str:
        return self.args[0]


class SweepEndedError(RuntimeError):
    """The sweep that asked for a run has ended."""


@cache
def source() -> str:
    """16 hex digits of the package's source files, and the versions of what computes."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes().replace(b"\r\n", b"\n"))
    return f"{digest.hexdigest()[:16]}, torch {torch.__version__}, numpy {numpy.__version__}"


@dataclass(frozen=True)
class Ticket:
    """What a worker needs to know about its sweep."""

    lease: Path  # a file in the shared folder that exists, and changes, as long as the sweep lives
    source: str

    def check(self) -> None:
        """Raise RefusedError if this worker has other code or does not see the sweep's folder."""
        here = f"the worker on {socket.gethostname()} (process {os.getpid()})"
        if self.source != source():
            raise RefusedError(f"{here} has other code: {source()}; here it is {self.source}", _worker())
        if not self.lease.exists():
            raise RefusedError(f"{here} does not see {self.lease.parent}; all machines must share it", _worker())

    def watch(self) -> Callable[[], None]:
        """A function that raises SweepEndedError once the sweep has ended; to be called after each round."""
        seen, since = self._read(), time.monotonic()

        def alive() -> None:
            nonlocal seen, since
            content = self._read()
            if content is None or (content == seen and time.monotonic() - since > LOST_SECONDS):
                raise SweepEndedError("its sweep has ended; the run continues from its checkpoint when asked for again")
            if content != seen:
                seen, since = content, time.monotonic()

        return alive

    def _read(self) -> bytes | None:
        try:
            return self.lease.read_bytes()
        except OSError:
            return None


class Cluster:
    """A sweep's connection to a Dask scheduler, a context manager.

    Raises ConnectionError, in one line, if the scheduler does not answer or Dask is not installed; RefusedError if a
    worker has other code or another folder.
    """

    def __init__(self, address: str, store: Store) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise ConnectionError(
                f"a scheduler ({address}) needs Dask, which is not installed: pip install 'pfl-companion[cluster]'"
            ) from None
        for name in ("distributed", "distributed.client"):  # they print a traceback where one line will do
            logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            self.client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise ConnectionError(f"no Dask scheduler answers at {address} ({type(error).__name__})") from None
        self.address = address
        self.ticket = Ticket(store.root / f"{uuid.uuid4().hex}.sweep", source())
        self.executor: Executor = self.client.get_executor(pure=False)
        self.renewed = -RENEW_SECONDS
        self.without_workers = 0  # how often in a row `renew` found none

    def __enter__(self) -> Cluster:
        self.renew()
        try:
            self.check()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        """End the lease, so that runs still on the cluster stop after their round."""
        remove(self.ticket.lease)
        with suppress(Exception):  # a lost scheduler must not hide what ended the sweep
            self.client.close(timeout=2)

    def check(self) -> None:
        """Check every worker before anything is computed. Warns of workers that will be slow, and of none at all."""
        with self._connected():
            answers = self.client.run(_state, self.ticket, on_error="return")
        refusals = [str(answer) for answer in answers.values() if answer not in ("", SLOW_ALLOCATOR)]
        if refusals:
            more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
            raise RefusedError(f"{refusals[0]}{more}")
        if SLOW_ALLOCATOR in answers.values():
            warnings.warn(f"workers have {SLOW_ALLOCATOR} set, which makes training slow; unset it", stacklevel=3)
        if not answers:
            warnings.warn(f"the scheduler at {self.address} has no workers yet; waiting for them", stacklevel=3)
            self.without_workers = 2

    def renew(self) -> None:
        """Show that the sweep lives. Warns if all workers are lost. Raises ConnectionError if the scheduler is lost."""
        if self.client.status != "running":
            raise ConnectionError(self._lost())
        if time.monotonic() - self.renewed >= RENEW_SECONDS:
            atomic_write(self.ticket.lease, repr(time.time()).encode())
            self.renewed = time.monotonic()
            # once is not enough: a nanny replaces a worker within seconds, and a scheduler that is being lost has none
            self.without_workers = 0 if self.has_workers() else self.without_workers + 1
            if self.without_workers == 2:
                warnings.warn(f"the scheduler at {self.address} has lost all workers; waiting for them", stacklevel=3)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        return self.executor.submit(_checked, self.ticket, function, *arguments)

    def retire(self, worker: str) -> None:
        """Close a worker that refused, so that the next task goes to another."""
        with self._connected():
            self.client.retire_workers([worker], close_workers=True)

    def has_workers(self) -> bool:
        with self._connected():
            return bool(self.client.scheduler_info(n_workers=-1)["workers"])

    def error_of(self, future: Future) -> BaseException | None:
        """The error of a future that is done. Raises ConnectionError if it was cancelled: the scheduler is lost."""
        try:
            return future.exception()
        except CancelledError:
            raise ConnectionError(self._lost()) from None

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Around a call to the scheduler. Raises ConnectionError if the scheduler is lost meanwhile."""
        try:
            yield
        except OSError:  # Dask's CommClosedError
            raise ConnectionError(self._lost()) from None

    def _lost(self) -> str:
        return f"the Dask scheduler at {self.address} is lost; finished runs are stored, the same command continues"


def address(asked: str | None = None) -> str | None:
    """The scheduler to use: ``asked``, else DASK_SCHEDULER_ADDRESS of the environment, else none."""
    return asked or os.environ.get(ADDRESS) or None


def _worker() -> str:
    """The address of the Dask worker that runs this; empty elsewhere."""
    from distributed import get_worker

    try:
        return get_worker().address
    except ValueError:
        return ""


def _state(ticket: Ticket) -> str:
    """Runs on every worker: why it refuses, else the name of the setting that makes it slow, else empty."""
    try:
        ticket.check()
    except RefusedError as refused:
        return str(refused)
    return SLOW_ALLOCATOR if os.environ.get(SLOW_ALLOCATOR) else ""


def _checked(ticket: Ticket, function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs on a worker: its own check, for workers that came later, then the function with the sweep's watch."""
    ticket.check()
    return function(*arguments, ticket.watch())

"""Runs on a Dask cluster: every task first checks its worker, and ends when its sweep has ended.

The cluster's machines share the folder of the runs: records, checkpoints and progress go through files. Dask itself
carries only small messages.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
import warnings
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy
import torch

from pfl_core.files import atomic_write, remove
from pfl_core.runs.index import code_digest
from pfl_core.runs.pool import Pool
from pfl_core.runs.store import Store
from pfl_core.runs.task import SweepEndedError

ADDRESS = "DASK_SCHEDULER_ADDRESS"
CONNECT_SECONDS = 10.0
RENEW_SECONDS = 5.0  # how often a sweep shows that it is alive
LOST_SECONDS = 120.0  # a sweep that has not shown it for so long has ended


class RefusedError(ValueError):
    """A worker would not compute the same as the machine of the sweep. The message is one line."""


def source() -> str:
    """16 hex digits of the package's files, and the versions of what computes."""
    return f"{code_digest()[:16]}, torch {torch.__version__}, numpy {numpy.__version__}"


class Cluster(Pool):
    """A sweep's connection to a Dask scheduler.

    While the sweep lives, a file in the shared folder exists and changes (the lease). Raises ConnectionError, in one
    line, if the scheduler does not answer or is lost, or if Dask is not installed.
    """

    def __init__(self, address: str, store: Store) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise ConnectionError(
                f"a scheduler ({address}) needs Dask, which is not installed: pip install 'dask[distributed]'"
            ) from None
        for name in ("distributed", "distributed.client"):  # they print a traceback where one line will do
            logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            self.client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise ConnectionError(f"no Dask scheduler answers at {address} ({type(error).__name__})") from None
        super().__init__(self.client.get_executor(pure=False))
        self.address, self.lease = address, store.root / f"{uuid.uuid4().hex}.sweep"
        self.renewed, self.without_workers = -RENEW_SECONDS, 1  # how often in a row `renew` found no workers

    def __enter__(self) -> Self:
        self.renew()
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        """End the lease, so that runs still on the cluster stop after their round."""
        remove(self.lease)
        with suppress(Exception):  # a lost scheduler must not hide what ended the sweep
            self.client.close(timeout=2)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        return super().submit(_checked, self.lease, source(), function, *arguments)

    def renew(self) -> None:
        """Show that the sweep lives. Warns if there are no workers."""
        if self.client.status != "running":
            raise ConnectionError(self._lost())
        if time.monotonic() - self.renewed >= RENEW_SECONDS:
            atomic_write(self.lease, repr(time.time()).encode())
            self.renewed = time.monotonic()
            # once is not enough: a nanny replaces a worker within seconds, and a scheduler that is being lost has none
            self.without_workers = 0 if self.has_workers() else self.without_workers + 1
            if self.without_workers == 2:
                warnings.warn(f"the scheduler at {self.address} has no workers; waiting for them", stacklevel=3)

    def has_workers(self) -> bool:
        try:
            return bool(self.client.scheduler_info(n_workers=-1)["workers"])
        except OSError:  # Dask's CommClosedError
            raise ConnectionError(self._lost()) from None

    def error_of(self, future: Future) -> BaseException | None:
        """The error of a future that is done. Raises RefusedError of a worker at once: no run is lost by it."""
        try:
            error = future.exception()
        except CancelledError:  # the scheduler is lost
            raise ConnectionError(self._lost()) from None
        if isinstance(error, RefusedError):
            raise error
        return error

    def _lost(self) -> str:
        return f"the Dask scheduler at {self.address} is lost; finished runs are stored, the same command continues"


def address(asked: str | None = None) -> str | None:
    """The scheduler to use: ``asked``, else DASK_SCHEDULER_ADDRESS of the environment, else none."""
    return asked or os.environ.get(ADDRESS) or None


def _checked(lease: Path, sources: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs on a worker: the function with a check of the lease, unless the worker would not compute the same."""
    check(lease, sources)
    return function(*arguments, watch(lease))


def check(lease: Path, sources: str) -> None:
    """Raise RefusedError if this worker has other code or does not see the sweep's folder."""
    here = f"the worker on {socket.gethostname()} (process {os.getpid()})"
    if sources != source():
        raise RefusedError(f"{here} has other code: {source()}; here it is {sources}")
    if not lease.exists():
        raise RefusedError(f"{here} does not see {lease.parent}; all machines must share it")


def watch(lease: Path) -> Callable[[], None]:
    """A function that raises SweepEndedError once the sweep has ended; to be called after each round."""

    def read() -> bytes | None:
        with suppress(OSError):
            return lease.read_bytes()
        return None

    seen, since = read(), time.monotonic()

    def alive() -> None:
        nonlocal seen, since
        content = read()
        if content is None or (content == seen and time.monotonic() - since > LOST_SECONDS):
            raise SweepEndedError("its sweep has ended; the run continues from its checkpoint when asked for again")
        if content != seen:
            seen, since = content, time.monotonic()

    return alive

"""Threads that compute the clients of one run at the same time.

PyTorch releases Python's global lock during its operations, so threads use several cores. They share memory: rows and
hooks need no copies.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

Item = TypeVar("Item")
Result = TypeVar("Result")
Own = TypeVar("Own")

# Seconds until a thread that waits for Python's lock gets it. With Python's default, 5 ms, small networks would wait
# longer than they compute.
SWITCH_SECONDS = 1e-4


class StoppedError(RuntimeError):
    """Another thread of the same call has failed."""


class ClientThreads(Generic[Own]):
    """Calls a function for many items, ``len(owned)`` at a time.

    Each thread has one element of ``owned``, which it shares with no other thread (a network): see ``own``. Threads
    other than those that this object starts have the first one.
    """

    def __init__(self, owned: Sequence[Own]) -> None:
        self._first, others = owned[0], list(owned[1:])
        self._local = threading.local()
        self._failed = False  # whether an item of the current call has failed

        # Does not refer to self: a waiting thread would keep it, and with it all data, in memory.
        def start(local: threading.local = self._local) -> None:
            local.own = others.pop()

        self._pool = ThreadPoolExecutor(len(others), "clients", start) if others else None
        self.num = len(owned)

    @property
    def own(self) -> Own:
        """What belongs to the current thread."""
        return getattr(self._local, "own", self._first)

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], sizes: Sequence[int] | None = None
    ) -> list[Result]:
        """The results of ``function`` for all items, in their order.

        Items with larger ``sizes`` start first. Calls inside ``function`` run one item after the other. If an item
        fails, no other item starts, and its exception is raised when the running ones have ended, see ``check``.
        """
        items = list(items)
        if self._pool is None or len(items) < 2 or getattr(self._local, "busy", False):
            return [function(item) for item in items]
        order = sorted(range(len(items)), key=lambda i: 0 if sizes is None else -sizes[i])
        results: dict[int, Result] = {}
        errors: list[BaseException] = []
        remaining, lock, with_gradients = iter(order), threading.Lock(), torch.is_grad_enabled()

        def work() -> None:
            self._local.busy = True
            try:
                with torch.set_grad_enabled(with_gradients):
                    while not self._failed:
                        with lock:
                            i = next(remaining, None)
                        if i is None:
                            return
                        results[i] = function(items[i])
            except BaseException as error:  # also Ctrl-C, which arrives in the calling thread
                errors.append(error)
                self._failed = True
            finally:
                self._local.busy = False

        with _fast_switching():
            futures: list[Future[None]] = []
            try:
                for _ in range(min(self.num, len(items)) - 1):
                    futures.append(self._pool.submit(work))
                work()
                wait(futures)
            except BaseException:  # Ctrl-C: end the other threads, too
                self._failed = True
                wait(futures)
                raise
            finally:
                self._failed = False
        if errors:
            raise next((error for error in errors if not isinstance(error, StoppedError)), errors[0])
        return [results[i] for i in range(len(items))]

    def check(self) -> None:
        """Raise StoppedError if another item of the current call has failed; called between batches."""
        if self._failed:
            raise StoppedError("another client failed")


@contextmanager
def _fast_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)

"""Where the runs of a sweep are computed: the caller's executor, or worker processes of this machine."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Self

from pfl_core import plugins
from pfl_core.files import environment

# A worker starts without the working folder on its path, where a random.py would take the place of the library's. It
# then gets the path of this process.
SAFE_PATH = "PYTHONSAFEPATH"
SAVE_SECONDS = 5.0  # for the checkpoints of the runs that Ctrl-C stops
PARENT_SECONDS = 0.5  # how often a worker process checks that its parent lives

is_running = False  # whether this worker process computes a run


class Pool:
    """The caller's executor, which stays open. A context manager; Ctrl-C ends what still runs, if it can."""

    size: int | None = None  # tasks at once; None: all

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        pass

    def executor(self) -> Executor:
        return self._executor

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        """If the pool is broken because a worker died, the returned future has that exception."""
        try:
            return self.executor().submit(function, *arguments)
        except BrokenProcessPool as error:
            future: Future = Future()
            future.set_exception(error)
            return future

    def renew(self) -> None:
        """Called about every half second. Raises ConnectionError if the pool is lost."""

    def has_workers(self) -> bool:
        """Whether there are workers that can end what they have begun."""
        return True

    def error_of(self, future: Future) -> BaseException | None:
        """The error of a future that is done."""
        return future.exception()


class Workers(Pool):
    """Worker processes of this machine, which are reused by later sweeps and replaced if one dies."""

    def __init__(self, jobs: int) -> None:
        self.size, self.jobs, self.futures = jobs, jobs, list[Future]()

    def executor(self) -> Executor:
        from joblib.externals.loky import get_reusable_executor

        # loky stops idle workers. If it needs one just then, it warns and starts another; where warnings are errors,
        # the warning would end loky's own thread, and the sweep would wait for ever.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given to the executor", UserWarning)
        with environment({SAFE_PATH: "1"}):  # for loky's resource tracker
            return get_reusable_executor(
                max_workers=self.jobs,
                env={"OMP_NUM_THREADS": "1", SAFE_PATH: "1"},
                initializer=_start_worker,
                initargs=(os.getpid(), plugins.reloads),  # with others, loky starts new workers
            )

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        self.futures.append(super().submit(function, *arguments))
        return self.futures[-1]

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        if kind is KeyboardInterrupt:
            pool: Any = self.executor()  # Any: loky's
            begun = [future for future in self.futures if not future.cancel()]
            try:
                for process in list((getattr(pool, "_processes", None) or {}).values()):
                    process.terminate()
                wait(begun, timeout=SAVE_SECONDS)
            finally:
                pool.shutdown(wait=False, kill_workers=True)


def _start_worker(parent: int, reloads: int) -> None:
    """Ignore Ctrl-C: the parent process ends the workers, so that they print no tracebacks. At SIGTERM a run saves a
    checkpoint.

    If the parent is killed, the worker ends within a second, also while it starts, waits or trains. A later call
    continues the run from its checkpoint. On Windows it finishes its run, because ``os.getppid`` does not change there.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_run)
    if sys.platform != "win32":
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_run(number: int, frame: object) -> None:
    """Stop the run of this worker at a checkpoint, see ``execute``; end an idle worker."""
    if not is_running:
        os._exit(128 + number)
    raise KeyboardInterrupt


def _end_with(parent: int) -> None:
    """End this process, also in the middle of a round, once it is no child of ``parent`` any more."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)

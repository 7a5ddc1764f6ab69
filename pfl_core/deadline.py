"""A time at which computation stops, given once for a command (``--stop-after``) and obeyed by all its processes.

Also the error of a sweep: the command tells both errors from others without importing torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

VARIABLE = "PFL_DEADLINE"  # environment variable: seconds since 1970; notebook kernels inherit it

_STARTED = time.time() - time.monotonic()


class TimeUpError(RuntimeError):
    """Computation stopped because the time was up. The message is one line; the same command continues."""


class SweepError(RuntimeError):
    """Some runs of a sweep failed; the others are stored. The message has a line for each failed run.

    Attributes:
        errors: of the runs that failed in this process; those of workers are only in the message.
    """

    def __init__(self, text: str, errors: Iterable[BaseException] = ()) -> None:
        super().__init__(text)
        self.errors = tuple(errors)


def deadline() -> float | None:
    """The time in PFL_DEADLINE, in seconds since 1970; None if there is none.

    Raises ValueError if the variable is not a number.
    """
    text = os.environ.get(VARIABLE)
    try:
        return float(text) if text else None
    except ValueError:
        raise ValueError(
            f"{VARIABLE}={text} is not a time; give seconds since 1970, or use --stop-after instead"
        ) from None


def now() -> float:
    """Seconds since 1970, as the clock was when this process began: setting the clock changes no deadline."""
    return _STARTED + time.monotonic()


def passed(when: float | None) -> bool:
    """Whether a deadline has passed; never if it is None."""
    return when is not None and now() >= when


def time_up(ended: int, at_checkpoint: int, not_started: int, failed: int = 0) -> TimeUpError:
    """The error that reports how many runs ended, were stopped at a checkpoint, were not started, and failed."""
    failures = f", {failed} failed" if failed else ""
    return TimeUpError(
        f"the time is up: runs ended {ended}, at a checkpoint {at_checkpoint}, not started {not_started}{failures}; "
        "the same command continues"
    )

"""Ctrl-C and SIGTERM: one line on stderr, status 130 or 143, and no process or half-written file is left behind."""

from __future__ import annotations

import _signal  # what `signal` is made of; `signal` itself takes a while to import, which a signal could interrupt
import _thread
import os
import sys
import time

TYPE_CHECKING = False  # as in `typing`, which takes 10 ms to import
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

REPEAT_SECONDS = 0.01
_received: int | None = None  # the signal that is ending this process
_reported = False  # the line for it is printed
_ended = False  # the command has returned; the interpreter is shutting down


def handle() -> None:
    """From now on, both signals raise KeyboardInterrupt with the number of the signal, or end the process at once."""
    sys.unraisablehook = _repeat_if_lost
    for number in (_signal.SIGINT, _signal.SIGTERM):
        _signal.signal(number, _on_signal)


def ended() -> None:
    """The command has returned: nothing is left to clean up."""
    global _ended
    _ended = True


def received() -> int | None:
    """The signal that is ending this process; None if there was none."""
    return _received


def interrupted(interrupt: KeyboardInterrupt) -> int:
    """Print the line for a signal and return the exit status. A KeyboardInterrupt of other code counts as SIGINT."""
    global _reported
    number = _signal.SIGTERM if interrupt.args == (_signal.SIGTERM,) else _signal.SIGINT
    try:
        print(_line(number), file=sys.stderr, flush=True)
    except OSError:  # nobody reads stderr any more
        pass
    _reported = True
    return 128 + number


def _line(number: int) -> str:
    word = "terminated" if number == _signal.SIGTERM else "interrupted"
    return f"pfl: {word}; finished runs are stored, and the same command continues from there"


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, so that files and processes are cleaned up.

    The process ends at once if there is nothing to clean up or if it is cleaning up already. Nothing is written while a
    module is imported, and libraries may suppress an exception that is raised there.
    """
    global _received
    if _received is not None or _ended or _is_importing(frame):
        _exit(number)
    _received = number
    raise KeyboardInterrupt(number)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _exit(number: int) -> NoReturn:
    """End this process and its worker processes without any further Python code."""
    if not _reported:
        try:
            os.write(2, f"{_line(number)}\n".encode())
        except OSError:
            pass
    if "multiprocessing.process" in sys.modules:
        for child in sys.modules["multiprocessing.process"].active_children():
            child.kill()
    os._exit(128 + number)


def _repeat_if_lost(lost: Any) -> None:
    """Replaces ``sys.unraisablehook``: Python drops an exception that is raised in a destructor or a callback.

    If it was that of a signal, another thread sends the signal again when this hook has returned.
    """
    if isinstance(lost.exc_value, KeyboardInterrupt) and _received is not None:
        _thread.start_new_thread(_repeat, (_received,))
    else:
        sys.__unraisablehook__(lost)


def _repeat(number: int) -> None:
    global _received
    time.sleep(REPEAT_SECONDS)
    _received = None
    _thread.interrupt_main(number)  # type: ignore[arg-type]  # the number of any signal

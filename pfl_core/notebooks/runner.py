"""One notebook through papermill, into a file that appears only when all cells have run."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_core.notebooks.kernels import kernel_manager

if TYPE_CHECKING:
    from nbformat import NotebookNode

ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # numbers then do not depend on the machine's cores: runs go in parallel instead
MESSAGE_LINES = 10
QUIET = [  # of the kernel, which at its end may complain of the interrupt, or of sockets that are closed already
    "--log-level=CRITICAL",
    "--IPKernelApp.exec_lines=__import__('logging').getLogger('tornado').setLevel('CRITICAL')",
]


class NotebookError(RuntimeError):
    """A notebook did not run to its end; the message says where and why, in a few lines."""


@dataclass(frozen=True)
class Outcome:
    """How a notebook ended: seconds, and the error's text if it failed."""

    seconds: float
    error: str = ""


def execute(
    source: NotebookNode | Path,
    target: Path,
    parameters: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a notebook into ``target``; what its kernel writes to stderr is shown at once.

    A notebook that failed is left beside it as ``NAME.failed.ipynb``. ``env`` is added to the kernel's environment.
    Raises NotebookError if a cell fails or the kernel dies (one that dies before its first cell is tried again).
    """
    partial, failed = target.with_suffix(".partial.ipynb"), target.with_suffix(".failed.ipynb")
    target.parent.mkdir(parents=True, exist_ok=True)
    failed.unlink(missing_ok=True)
    try:
        for last_try in (False, True):
            try:
                _papermill(source, partial, dict(parameters or {}), {**ONE_THREAD, **(env or {})})
                break
            except RuntimeError as error:  # NotebookError, or a kernel that did not start
                if last_try or _has_begun(partial):
                    if partial.exists():
                        os.replace(partial, failed)
                    raise NotebookError(str(error)) from None
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _papermill(source: NotebookNode | Path, target: Path, parameters: dict[str, Any], env: Mapping[str, str]) -> None:
    """Raises NotebookError for a failed cell and a kernel that died, RuntimeError for one that did not start."""
    import nbformat
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    begun: list[NotebookNode] = []

    def on_start(notebook: NotebookNode) -> None:
        begun.append(notebook)
        _interruptible()

    try:
        papermill.execute_notebook(
            source,
            target,
            parameters,
            kernel_name="python3",
            request_save_on_cell_execute=False,  # a target is whole or not there; else it is written twice a cell
            shutdown_kernel="immediate",  # half a second less than asking it to end; what it wrote is in its files
            progress_bar=False,
            stderr_file=sys.stderr,
            coalesce_streams=True,
            kernel_manager_class=kernel_manager(env),
            on_notebook_start=on_start,
            extra_arguments=QUIET,
        )
    except PapermillExecutionError as error:
        raise NotebookError(_in_few_lines(error)) from None
    except DeadKernelError:
        nbformat.write(begun[-1], target)
        raise NotebookError("its kernel died; too little memory is the usual cause (fewer --jobs may help)") from None
    except KeyboardInterrupt:
        logging.getLogger("asyncio").disabled = True  # it would report the cell's task as lost
        raise


def _interruptible() -> None:
    """Ctrl-C and a polite kill raise KeyboardInterrupt; nbclient would end this kernel, and the next would start."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.default_int_handler)


def _has_begun(path: Path) -> bool:
    """Whether a cell of the (unfinished) copy was executed."""
    import nbformat

    cells = nbformat.read(path, as_version=4).cells if path.exists() else []
    return any(cell.get("execution_count") for cell in cells)


def _in_few_lines(error: Any) -> str:
    """Cell, error and message; long messages are cut."""
    lines = str(error.evalue).strip().splitlines() or [""]
    rest = len(lines) - MESSAGE_LINES
    shown = lines[:MESSAGE_LINES] + ([f"... and {rest} lines more"] if rest > 0 else [])
    first = next((line.strip() for line in error.source.splitlines() if line.strip()), "")
    return "\n".join([f"in cell [{error.exec_count}] {first}", f"{error.ename}: {shown[0]}", *shown[1:]])

"""Runs one notebook with papermill. The output file appears only when all cells have run."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_core.deadline import TimeUpError
from pfl_core.notebooks.kernels import kernel_manager, running

if TYPE_CHECKING:
    from nbformat import NotebookNode

ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # results do not depend on the number of cores; runs are parallel instead
DISK_FULL = [getattr(errno, name, None) for name in ("ENOSPC", "EFBIG", "EDQUOT")]  # Windows has not all of them
MESSAGE_LINES = 10
QUIET = [  # kernel arguments: no messages about the interrupt or closed sockets when it ends
    "--log-level=CRITICAL",
    "--IPKernelApp.exec_lines=__import__('logging').getLogger('tornado').setLevel('CRITICAL')",
]


class NotebookError(RuntimeError):
    """A notebook failed. The message has the cell and the error, in a few lines."""


def run_notebook(
    source: NotebookNode | Path,
    target: Path,
    parameters: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a notebook and write it to ``target``, with the links of a file made to work there. The kernel's stderr is
    shown immediately.

    A failed notebook is saved next to the target as ``NAME.failed.ipynb``. ``env`` is added to the kernel's
    environment. Raises NotebookError if a cell fails or the kernel dies, TimeUpError if the time is up (nothing is
    saved then), OSError with the path if the disk is full. A kernel that dies before its first cell is started once
    more. Several notebooks may run at the same time, each in a thread, see ``terminate``.
    """
    partial, failed = target.with_suffix(".partial.ipynb"), target.with_suffix(".failed.ipynb")
    target.parent.mkdir(parents=True, exist_ok=True)
    failed.unlink(missing_ok=True)
    try:
        for last_try in (False, True):
            try:
                _papermill(source, partial, dict(parameters or {}), {**ONE_THREAD, **(env or {})})
                break
            except TimeUpError:
                raise
            except RuntimeError as error:  # NotebookError, or the kernel did not start
                if last_try or _has_executed_cells(partial):
                    if partial.exists():
                        os.replace(partial, failed)
                    raise NotebookError(str(error)) from None
        os.replace(partial, target)
        if isinstance(source, Path):
            _relink(target, source)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise OSError(f"{target} cannot be written: {error.strerror}") from None  # papermill does not name the file
    finally:
        partial.unlink(missing_ok=True)


def _relink(copy: Path, source: Path) -> None:
    """Point the relative links of a copy's Markdown cells to the files that the source points to."""
    import nbformat

    def moved(match: re.Match[str]) -> str:
        return f"]({Path(os.path.relpath(source.parent / match[1], copy.parent)).as_posix()}{match[2] or ''})"

    notebook = nbformat.read(copy, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)", moved, cell.source)
    nbformat.write(notebook, copy)


def terminate() -> None:
    """End all notebooks that run in other threads: their ``run_notebook`` raises KeyboardInterrupt."""
    logging.getLogger("papermill").disabled = True  # else it reports each kernel as dead
    for manager in list(running):
        manager.terminate()


def _papermill(source: NotebookNode | Path, target: Path, parameters: dict[str, Any], env: Mapping[str, str]) -> None:
    """Raises NotebookError if a cell failed or the kernel died, TimeUpError if the time is up, RuntimeError if the
    kernel did not start, KeyboardInterrupt if it was terminated.
    """
    import nbformat
    import papermill
    from jupyter_core.utils import ensure_event_loop
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    started: list[NotebookNode] = []
    manager: Any = kernel_manager(env)
    running.add(manager)
    try:
        papermill.execute_notebook(
            source,
            target,
            parameters,
            kernel_name="python3",
            request_save_on_cell_execute=False,  # else the file is written twice per cell
            shutdown_kernel="immediate",  # half a second faster than a graceful shutdown
            progress_bar=False,
            stderr_file=sys.stderr,
            coalesce_streams=True,
            kernel_manager_class=manager,
            on_notebook_start=lambda notebook: started.append(notebook),
            extra_arguments=QUIET,
        )
    except PapermillExecutionError as error:
        if error.ename == TimeUpError.__name__:
            raise TimeUpError(error.evalue) from None
        raise NotebookError(_short_message(error)) from None
    except RuntimeError as error:  # the kernel died, while it started or later
        if manager.terminated:
            raise KeyboardInterrupt from None
        if not isinstance(error, DeadKernelError):
            raise
        nbformat.write(started[-1], target)
        raise NotebookError("its kernel died, usually for lack of memory (fewer --jobs may help)") from None
    finally:
        running.discard(manager)
        if threading.current_thread() is not threading.main_thread():
            ensure_event_loop().close()  # Jupyter makes one for each thread


def _has_executed_cells(path: Path) -> bool:
    """Whether a cell of the unfinished copy was executed."""
    import nbformat

    cells = nbformat.read(path, as_version=4).cells if path.exists() else []
    return any(cell.get("execution_count") for cell in cells)


def _short_message(error: Any) -> str:
    """The failed cell and the error message, at most MESSAGE_LINES lines of it."""
    lines = str(error.evalue).strip().splitlines() or [""]
    rest = len(lines) - MESSAGE_LINES
    shown = lines[:MESSAGE_LINES] + ([f"... and {rest} more lines"] if rest > 0 else [])
    first = next((line.strip() for line in error.source.splitlines() if line.strip()), "")
    return "\n".join([f"in cell [{error.exec_count}] {first}", f"{error.ename}: {shown[0]}", *shown[1:]])

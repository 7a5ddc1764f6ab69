"""The ``pfl`` command: figures, methods, run, runs, data, compare, search.

Each module has ``add(commands)``, which declares the arguments of its commands. A command is a function from the parsed
arguments to the exit status: 0, 1 if a notebook failed, 2 for bad input, 3 if the time of ``--stop-after`` is up.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import NoReturn

from pfl_core import deadline
from pfl_core.cli import figures, listings, report, run, runs, search

BAD_INPUT, TIME_UP, INTERRUPTED = 2, 3, 130


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are raised, so that `main` prints them like all others."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")


def parser() -> Parser:
    """The parser of the whole command line."""
    top = Parser(prog="pfl", description="Personalized federated learning, paper by paper.")
    top.add_argument("--version", action="version", version=f"pfl {_version()}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (figures, listings, run, runs, search, report):
        module.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command (default: from ``sys.argv``) and return its exit status.

    Every ValueError and OSError is printed as one line on stderr. Output is UTF-8 in any locale.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not in a notebook, where output is UTF-8 already
            stream.reconfigure(encoding="utf-8", errors=stream.errors)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # finds the user's modules, given as my_module:Name
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("always", message="record .* is damaged", category=UserWarning)
            warnings.showwarning = _show_warning
            args = parser().parse_args(argv)
            given = {
                "DASK_SCHEDULER_ADDRESS": getattr(args, "scheduler", None),
                deadline.VARIABLE: getattr(args, "stop_at", None),
            }
            with _environment({name: str(value) for name, value in given.items() if value}):
                return args.do(args)
    except BrokenPipeError:  # the reader (head, less) has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except deadline.TimeUpError as error:
        print("pfl:", error, file=sys.stderr)
        return TIME_UP
    except (ValueError, OSError) as error:
        print("pfl:", " ".join(str(error).split()), file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("pfl: interrupted; finished runs are stored, and the same command continues from there", file=sys.stderr)
        return INTERRUPTED


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Environment variables set for one command; notebook kernels inherit them."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _version() -> str:
    """The installed version, or "unknown" if the package is not installed."""
    try:
        return metadata.version("pfl-companion")
    except metadata.PackageNotFoundError:
        return "unknown"


def _show_warning(message: Warning | str, *where: object, **more: object) -> None:
    """Replaces ``warnings.showwarning``: prints the message without its category and source line."""
    print("pfl:", message, file=sys.stderr)

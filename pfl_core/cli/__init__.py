"""The ``pfl`` command: figures, methods, run, runs, data, compare, search.

Each module has ``add(commands)``, which describes arguments, and functions that take them and return the exit status:
0, 1 if a notebook failed, 2 for bad input.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import metadata
from typing import NoReturn

from pfl_core.cli import figures, listings, run, runs, search

BAD_INPUT, INTERRUPTED = 2, 130


class Parser(argparse.ArgumentParser):
    """Bad arguments are bad input like any other: one line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")


def parser() -> Parser:
    top = Parser(prog="pfl", description="Personalized federated learning, paper by paper.")
    top.add_argument("--version", action="version", version=f"pfl {_version()}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (figures, listings, run, runs, search):
        module.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command (default: the process's arguments) and return its exit status.

    A ValueError or OSError, whoever raises it, becomes one line on stderr. What is printed is UTF-8 in any locale.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a notebook's are not, and know no other encoding
            stream.reconfigure(encoding="utf-8", errors=stream.errors)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # for methods, models and data sets of one's own, my_module:Thing
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("always", message="record .* is damaged", category=UserWarning)
            warnings.showwarning = _one_line
            args = parser().parse_args(argv)
            return args.do(args)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        print("pfl:", " ".join(str(error).split()), file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("pfl: interrupted; finished runs are stored, the next call goes on from there", file=sys.stderr)
        return INTERRUPTED


def _version() -> str:
    """The installed version; "unknown" where the package is only on the path."""
    try:
        return metadata.version("pfl-companion")
    except metadata.PackageNotFoundError:
        return "unknown"


def _one_line(message: Warning | str, *where: object, **more: object) -> None:
    print("pfl:", message, file=sys.stderr)

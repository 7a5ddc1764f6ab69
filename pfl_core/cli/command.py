"""Parses the command line, runs the command, and reports every error as one line on stderr.

Each module of ``COMMANDS`` has ``add(commands)``, which declares the arguments of its commands. A command is a function
from the parsed arguments to the exit status.
"""

from __future__ import annotations

import argparse
import io
import os
import select
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from functools import partial
from typing import Any, NoReturn

import pfl_core
from pfl_core import deadline, notebooks
from pfl_core.cli import compare, data, figures, methods, report, run, runs, search, signals
from pfl_core.cli.specs import unknown_option
from pfl_core.data.registry import COMBINED, SINGLE, data_dir, npz_names
from pfl_core.files import environment
from pfl_core.papers import PAPERS, STUDIES
from pfl_core.plugins import MissingCodeWarning, text_of
from pfl_core.registry import METHODS, PARTITIONS
from pfl_core.study.presets import PRESETS

COMMANDS = (figures, methods, data, compare, run, runs, search, report)
FAILED, BAD_INPUT, TIME_UP = 1, 2, 3
MAX_LINE = 600  # characters of the line of an error; --debug prints all
MORE = " ... (--debug shows all)"


COMPLETIONS: dict[str, Callable[[], Iterable[str]]] = {  # argument, in any command -> the names that it takes
    "data": lambda: [*SINGLE, *COMBINED, *npz_names(data_dir())],
    "method": lambda: METHODS,
    "methods": lambda: METHODS,
    "names": lambda: [*PAPERS, *METHODS],
    "paper": lambda: STUDIES,
    "papers": lambda: PAPERS,
    "partition": lambda: PARTITIONS,
    "preset": lambda: PRESETS,
    "reading": lambda: ("paper", "authors_code"),
    "selection": lambda: [*STUDIES, *notebooks.names()],
}


class Parser(argparse.ArgumentParser):
    """An argument parser that raises its errors, so that all errors are printed alike.

    Every command has --debug and --quiet. The shell completes the arguments of COMPLETIONS.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="print the traceback of an error"
        )
        self.add_argument(
            "--quiet",
            action="store_true",
            default=argparse.SUPPRESS,
            help="print errors only, and what --json prints; no progress bar",
        )

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        argument = super().add_argument(*names, **options)
        if argument.dest in COMPLETIONS:
            vars(argument)["completer"] = partial(_completed, COMPLETIONS[argument.dest])  # read by argcomplete
        return argument

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")


def _completed(names: Callable[[], Iterable[str]], prefix: str, **context: Any) -> list[str]:
    """The names, also after a comma."""
    before, comma, _ = prefix.rpartition(",")
    return [f"{before}{comma}{name}" for name in names()]


def parser() -> Parser:
    """The parser of the whole command line."""
    top = Parser(prog="pfl", description="Personalized federated learning, paper by paper.")
    top.add_argument("--version", action="version", version=f"pfl {pfl_core.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add(commands)
    return top


def run_command(argv: Sequence[str] | None) -> int:
    """Run one command and return its exit status, see `main`. Raises KeyboardInterrupt if a signal ended it.

    Output is UTF-8 in any locale. Code of the user may raise anything.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not in a notebook, where output is UTF-8 already
            stream.reconfigure(encoding="utf-8", errors=stream.errors)
    debug = "--debug" in (sys.argv if argv is None else argv)
    try:
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # finds the user's modules, given as my_module:Name
        with warnings.catch_warnings():
            warnings.filterwarnings("always", message="record .* is damaged", category=UserWarning)
            warnings.filterwarnings("always", category=MissingCodeWarning)
            skipped: dict[str, None] = {}
            warnings.showwarning = partial(_show_warning, skipped)
            top = parser()
            if "_ARGCOMPLETE" in os.environ:  # the shell asks for completions
                import argcomplete

                argcomplete.autocomplete(top)
            args = _parsed(top, argv)
            quiet = getattr(args, "quiet", False)
            given = {
                "TQDM_DISABLE": "1" if quiet else None,
                "DASK_SCHEDULER_ADDRESS": getattr(args, "scheduler", None),
                deadline.VARIABLE: getattr(args, "stop_at", None),
            }
            silent = redirect_stdout(io.StringIO()) if quiet and not getattr(args, "json", False) else nullcontext()
            with environment({name: str(value) for name, value in given.items() if value}), silent:
                try:
                    status = _without_exit(args)
                finally:
                    _show_skipped(list(skipped))
        _flush()
        return status
    except BrokenPipeError as error:
        if not _reader_is_gone():
            return print_error(error, debug)
        _drop_output()  # the reader (head, less) has closed the pipe
        return 0
    except deadline.TimeUpError as error:
        print("pfl:", error, file=sys.stderr)
        return TIME_UP
    except (KeyboardInterrupt, SystemExit):  # SystemExit: --help
        raise
    except BaseException as error:  # code of the user may raise anything
        if number := signals.received():  # a library replaced the exception of the signal
            raise KeyboardInterrupt(number) from error
        return print_error(error, debug)


def _parsed(top: Parser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments. Raises ValueError for arguments that no command has, with a hint at --set where that exists."""
    args, others = top.parse_known_args(argv)
    if not others:
        return args
    hint = unknown_option(others[0], others[1:]) if "set" in args and others[0].startswith("--") else ""
    raise ValueError(f"unrecognized arguments: {' '.join(others)}{hint} (see pfl {args.command} --help)")


def print_error(error: BaseException, debug: bool) -> int:
    """Print an error as one line, after its traceback if ``debug``, and return the exit status.

    ValueError and OSError are bad input; their messages are complete. Others name their type.
    """
    if debug:
        traceback.print_exception(error)
    bad_input = isinstance(error, ValueError | OSError)
    text, name = text_of(error), type(error).__name__
    message = text if text and (bad_input or isinstance(error, deadline.SweepError)) else f"{name}: {text}".rstrip(": ")
    line = f"pfl: {' '.join(message.split())}"
    if not debug and len(line) > MAX_LINE:
        line = line[: MAX_LINE - len(MORE)] + MORE
    elif not (debug or bad_input):
        line += " (--debug shows the traceback)"
    print(line, file=sys.stderr)
    try:
        _flush()
    except OSError:
        _drop_output()
    return BAD_INPUT if bad_input else FAILED


def _without_exit(args: argparse.Namespace) -> int:
    """The status of the parsed command. Raises RuntimeError if code of the user calls ``sys.exit``."""
    try:
        return args.do(args)
    except SystemExit as stop:
        raise RuntimeError(f"a module that was loaded called sys.exit({stop.code!r})") from stop


def _flush() -> None:
    """Raises OSError if output cannot be written, e.g. because the disk is full."""
    if sys.stdout is not None:  # stdout may be closed
        sys.stdout.flush()


def _reader_is_gone() -> bool:
    """Whether the reader of stdout or stderr has closed it; else a BrokenPipeError came from code of the user."""
    if not hasattr(select, "poll"):  # Windows
        return True
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # not a file: in a notebook, or closed
            poll.register(stream.fileno(), 0)
    return bool(poll.poll(0))  # errors are reported in any case


def _drop_output() -> None:
    """What is still buffered for stdout cannot be written; Python would report that when it exits."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(skipped: dict[str, None], message: Warning | str, *where: object, **more: object) -> None:
    """Replaces ``warnings.showwarning``: prints the message without its category and source line.

    Those of records whose code is missing are added to ``skipped``, for one line at the end.
    """
    text = " ".join(str(message).split())
    if isinstance(message, MissingCodeWarning):
        skipped[text] = None
    else:
        print("pfl:", text, file=sys.stderr)


def _show_skipped(texts: list[str]) -> None:
    if texts:
        reason = texts[0].partition(": ")[2]  # "record 0123.json is skipped, it cannot be read here: model ..."
        print(
            f"pfl: skipped {len(texts)} stored run{'s'[: len(texts) - 1]}, because the code cannot be imported here "
            f"(`pfl runs clean --without-code` deletes those of the data folder); the first: {reason}",
            file=sys.stderr,
        )

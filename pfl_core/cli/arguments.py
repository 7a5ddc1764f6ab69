"""Parsers of argument values, and options that several commands share. Nothing heavy is imported."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, NoReturn

from pfl_core.deadline import now
from pfl_core.options import choices, did_you_mean
from pfl_core.registry import INSTRUMENTS, METHODS


class BadArgument(argparse.ArgumentTypeError, ValueError):
    """A wrong argument value. argparse shows its message; elsewhere, `run_command` prints it."""


# ---- names ----


def known(kind: str, names: Collection[str]) -> Callable[[str], str]:
    """The parser of a name that must be one of ``names``."""

    def parse(text: str) -> str:
        if text not in names:
            raise BadArgument(f"unknown {kind} {text!r}{choices(text, names)}")
        return text

    return parse


def method(text: str) -> str:
    """The name of a method. A user's own method, ``module:Class``, is checked when it is imported."""
    names = METHODS | INSTRUMENTS
    if ":" not in text and text not in names:
        raise BadArgument(
            f"unknown method {text!r}{did_you_mean(text, names)}; `pfl methods` lists all; "
            "give a method of your own as package.module:Class"
        )
    return text


# ---- values ----


def value(text: str) -> Any:
    """The text parsed as JSON (0.3, true, null, [1, 2]), or the text itself if it is not JSON."""
    try:
        return json.loads(text, parse_int=_json_integer, parse_constant=_refuse_constant)
    except json.JSONDecodeError:
        return text
    except RecursionError:
        raise BadArgument(f"{_start(text)} is nested too deeply; give a number, text, list or object") from None


def values(text: str) -> list[Any]:
    """The values of "0.1,0.3" or "[8],[16, 16]", each as by ``value``. A JSON list, such as [8, 16], is one value."""
    single = value(text)
    if single != text or "," not in text:
        return [single]
    several = value(f"[{text}]")
    return distinct(several if isinstance(several, list) else [value(part) for part in parts(text)])


def several(of: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """The parser of "a,b,c": each part is parsed by ``of``."""

    def parse(text: str) -> list[Any]:
        return distinct(of(part) for part in parts(text))

    return parse


def parts(text: str) -> list[str]:
    """The parts of "a,b,c". A comma before a space belongs to a part. Raises BadArgument if a part is empty."""
    found = re.split(",(?! )", text)
    if len(found) > 1 and "" in found:
        raise BadArgument(f"{_start(text)} has an empty value beside a comma")
    return found


def distinct(given: Iterable[Any]) -> list[Any]:
    """The values without repetitions. They may be lists or dictionaries."""
    return list({json.dumps(item, sort_keys=True): item for item in given}.values())


def _refuse_constant(text: str) -> NoReturn:
    """NaN, Infinity and -Infinity, which JSON does not have but Python's parser accepts."""
    raise BadArgument(f"{text} is not a finite number; give a finite number")


def _json_integer(text: str) -> int:
    """Refuses integers that do not fit into 64 bits, which torch and NumPy cannot read."""
    if len(text) > 20 or abs(int(text)) >= 2**63:
        raise BadArgument(f"{_start(text)} is too large for an integer; give a smaller number")
    return int(text)


def _start(text: str) -> str:
    """The first characters of a long value, for an error message."""
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def integer(text: str) -> int:
    """An integer of at most 18 digits."""
    if not re.fullmatch("[+-]?[0-9]{1,18}", text):
        raise BadArgument(f"{_start(text)} is not an integer of at most 18 digits")
    return int(text)


def positive(text: str) -> int:
    """An integer of at least 1."""
    if integer(text) < 1:
        raise BadArgument(f"{_start(text)} is not an integer of at least 1")
    return int(text)


def number(text: str) -> float:
    """A number, e.g. 0.1 or 1e-3."""
    try:
        return float(text)
    except ValueError:
        raise BadArgument(f"{_start(text)} is not a number; give e.g. 0.1") from None


def moment(text: str) -> float:
    """The time after a duration such as 2h, 90m or 45s, in seconds since 1970."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([hms])", text)
    if not match or not float(match[1]):
        raise BadArgument(f"{text!r} is not a duration above 0; give e.g. 2h, 90m or 45s")
    return now() + float(match[1]) * {"h": 3600, "m": 60, "s": 1}[match[2]]


def device(text: str) -> str:
    """The name of a device that torch can use on this machine."""
    if text == "cpu":
        return text
    import torch

    try:
        kind = torch.device(text).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda", "mps", "xpu"):
        raise BadArgument(f"{text!r} is not a device; give cpu, cuda or cuda:1")
    if kind == "cuda" and not torch.cuda.is_available():
        raise BadArgument(f"{text!r} is not available: torch finds no GPU on this machine; use cpu")
    return text


# ---- options that several commands share ----


def add_computing(command: argparse.ArgumentParser) -> None:
    """``--jobs``, ``--scheduler`` and ``--stop-after``.

    ``command.run_command`` puts the last two into the environment, where sweeps and kernels read them.
    """
    command.add_argument(
        "--jobs", type=positive, metavar="N", help="number of cores, for runs or clients of a run (default: all)"
    )
    command.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="compute on this Dask cluster, e.g. tcp://host:8786 (default: DASK_SCHEDULER_ADDRESS of the environment); "
        "see docs/cluster.md",
    )
    command.add_argument(
        "--stop-after",
        dest="stop_at",
        type=moment,
        metavar="TIME",
        help="stop after this time, e.g. 2h, 90m or 45s: unfinished runs save a checkpoint after their round, the exit "
        "status is 3, and the same command continues",
    )

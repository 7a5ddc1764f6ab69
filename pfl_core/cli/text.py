"""Parsing of argument values, and formatting of terminal output."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from pfl_core.deadline import now


class BadArgument(argparse.ArgumentTypeError, ValueError):
    """A wrong argument value. argparse shows its message; raised outside of argparse, `main` prints it."""


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
    return several if isinstance(several, list) else [value(part) for part in parts(text)]


def parts(text: str) -> list[str]:
    """The parts of "a,b,c". A comma before a space belongs to a part. Raises BadArgument if a part is empty."""
    found = re.split(",(?! )", text)
    if len(found) > 1 and "" in found:
        raise BadArgument(f"{_start(text)} has an empty value beside a comma")
    return found


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


def number(text: str) -> float:
    """A number, e.g. 0.1 or 1e-3."""
    try:
        return float(text)
    except ValueError:
        raise BadArgument(f"{_start(text)} is not a number; give e.g. 0.1") from None


def positive(text: str) -> int:
    """An integer of at least 1 and at most 18 digits."""
    if not re.fullmatch("[0-9]{1,18}", text) or int(text) < 1:
        raise BadArgument(f"{_start(text)} is not an integer of at least 1 and at most 18 digits")
    return int(text)


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


def as_json(content: Any) -> str:
    """JSON on one line; NaN and infinities become null."""
    return json.dumps(_finite(content), allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, float) and not math.isfinite(content):
        return None
    if isinstance(content, Mapping):
        return {name: _finite(part) for name, part in content.items()}
    return [_finite(part) for part in content] if isinstance(content, list | tuple) else content


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A text table with aligned columns and a header line; empty cells are shown as '-'."""
    lines = [list(columns), *([("-" if cell in (None, "") else str(cell)) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def duration(seconds: float) -> str:
    """Seconds in a readable unit: 0.4 s, 12 s, 3.5 min, 2.0 h, 1.5 days."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def size(num_bytes: float) -> str:
    """Bytes in a readable unit: 12 kB, 3.4 MB, 1.2 GB."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.0f} {unit}" if num_bytes >= 10 or unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"


def add_scheduler(command: argparse.ArgumentParser) -> None:
    """The option ``--scheduler``; ``main`` puts it into the environment, where sweeps and kernels read it."""
    command.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="compute on this Dask cluster, e.g. tcp://host:8786 (default: DASK_SCHEDULER_ADDRESS of the environment); "
        "see docs/cluster.md",
    )


def add_stop_after(command: argparse.ArgumentParser) -> None:
    """The option ``--stop-after``; ``main`` puts the time into the environment, where sweeps and kernels read it."""
    command.add_argument(
        "--stop-after",
        dest="stop_at",
        type=moment,
        metavar="TIME",
        help="stop after this time, e.g. 2h, 90m or 45s: unfinished runs save a checkpoint after their round, the exit "
        "status is 3, and the same command continues",
    )

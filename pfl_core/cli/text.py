"""What commands read from their arguments and print on the terminal."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn


class BadArgument(argparse.ArgumentTypeError, ValueError):
    """Of a flag or not: argparse keeps the message, and `main` prints it."""


def value(text: str) -> Any:
    """JSON where the text is JSON (0.3, true, null, [1, 2]), the text itself where it is not."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError:
        return text


def _no_number(text: str) -> NoReturn:
    raise BadArgument(f"{text} is no finite number; give one")


def positive(text: str) -> int:
    """An argument of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise BadArgument(f"{text!r} is no whole number of at least 1")
    return int(text)


def device(text: str) -> str:
    """A device that torch has here."""
    if text == "cpu":
        return text
    import torch

    try:
        kind = torch.device(text).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda", "mps", "xpu"):
        raise BadArgument(f"{text!r} is no device; give cpu, cuda or cuda:1")
    if kind == "cuda" and not torch.cuda.is_available():
        raise BadArgument(f"{text!r} is not available, torch sees no GPU here; use cpu")
    return text


def as_json(content: Any) -> str:
    """JSON on one line; numbers that are not finite become null."""
    return json.dumps(_finite(content), allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, float) and not math.isfinite(content):
        return None
    if isinstance(content, Mapping):
        return {name: _finite(part) for name, part in content.items()}
    return [_finite(part) for part in content] if isinstance(content, list | tuple) else content


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Aligned columns below their names; '-' where there is nothing."""
    lines = [list(columns), *([("-" if cell in (None, "") else str(cell)) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def duration(seconds: float) -> str:
    """0.4 s, 12 s, 3.5 min, 2.0 h, 1.5 days."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def size(num_bytes: float) -> str:
    """12 kB, 3.4 MB, 1.2 GB."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.0f} {unit}" if num_bytes >= 10 or unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"

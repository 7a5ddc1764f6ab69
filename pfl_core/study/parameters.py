"""The parameters of a notebook, as Python, ``papermill -p``, ``-y`` or ``-r`` pass them: numbers, lists or text."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

Seeds = int | str | Sequence[int] | None
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0", "none", "")


class BadParameter(ValueError):
    """A parameter that cannot be used. A notebook shows one line, without traceback."""

    def _render_traceback_(self) -> list[str]:  # what IPython prints
        return [str(self)]


def seeds_of(given: Seeds) -> list[int] | None:
    """SEEDS as a list: 3, "3", [3], "[3]", "0,2", "0-2". None, "None" and "" are the seeds of the preset.

    Raises ValueError for anything else.
    """
    if given is None or isinstance(given, str) and given.strip() in ("", "None", "null"):
        return None
    parts: Any = [given] if isinstance(given, int) else given
    if isinstance(given, str):
        parts = [part for part in re.split(r"[\s,]+", given.strip().strip("[]()")) if part]
    seeds: list[int] = []
    for part in parts if isinstance(parts, Sequence) else ():
        first, dash, last = str(part).partition("-")
        if isinstance(part, bool) or not first.isdecimal() or dash and not last.isdecimal():
            break
        if int(last or first) < int(first):
            break
        seeds += range(int(first), int(last or first) + 1)
    else:
        if seeds:
            return list(dict.fromkeys(seeds))
    raise ValueError(f'SEEDS = {given!r}: give seeds such as 0, [0, 1, 2] or "0-2", or None for those of the preset')


def overrides_of(given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """OVERRIDES as a dictionary, from one or from its text. Raises ValueError for anything else."""
    value: Any = given or {}
    readers: Any = (json.loads, ast.literal_eval) if isinstance(given, str) else ()
    for read in readers:
        with suppress(ValueError, SyntaxError):
            value = read(given)
            break
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"OVERRIDES = {given!r}: give fields and values, such as " + '{"rounds": 5}')
    return dict(value)


def truth_of(given: bool | str | int | None) -> bool:
    """TRAIN as True or False. Raises ValueError for a word that is neither."""
    word = str(given).strip().lower()
    if word not in (*TRUE, *FALSE):
        raise ValueError(f"TRAIN = {given!r}: give True or False")
    return word in TRUE

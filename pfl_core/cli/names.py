"""Checks and completion of names given as arguments. Nothing heavy is imported, so both are answered at once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from pfl_core.data.registry import COMBINED, SINGLE, data_dir, npz_names
from pfl_core.options import choices, did_you_mean
from pfl_core.registry import INSTRUMENTS, MODULES


def check(kind: str, name: str | None, known: Iterable[str]) -> None:
    """Raise ValueError if a name is given that is not known."""
    if name is not None and name not in known:
        raise ValueError(f"unknown {kind} {name!r}{choices(name, known)}")


def check_method(name: str) -> None:
    """Raise ValueError for an unknown method. A user's own method, ``module:Class``, is checked when it is imported."""
    known = MODULES | INSTRUMENTS
    if ":" not in name and name not in known:
        raise ValueError(
            f"unknown method {name!r}{did_you_mean(name, known)}; `pfl methods` lists all; "
            "give a method of your own as package.module:Class"
        )


def complete(argument: argparse.Action, names: Iterable[str] | Callable[[], Iterable[str]]) -> None:
    """Let the shell complete an argument with these names, also after a comma. See argcomplete's "completer"."""

    def completer(prefix: str, **context: Any) -> list[str]:
        before, comma, _ = prefix.rpartition(",")
        return [f"{before}{comma}{name}" for name in (names() if callable(names) else names)]

    vars(argument)["completer"] = completer


def data_sets() -> list[str]:
    """All names of data sets, with those of the files in the data folder."""
    return [*SINGLE, *COMBINED, *npz_names(data_dir())]

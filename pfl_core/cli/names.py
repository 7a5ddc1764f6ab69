"""Checks of names given as arguments. They import nothing heavy, so a typing error is reported at once."""

from __future__ import annotations

from collections.abc import Iterable

from pfl_core.options import did_you_mean
from pfl_core.registry import INSTRUMENTS, MODULES


def check(kind: str, name: str | None, known: Iterable[str]) -> None:
    """Raise ValueError if a name is given that is not known."""
    if name is not None and name not in known:
        raise ValueError(f"unknown {kind} {name!r}{did_you_mean(name, known)}; choose from {', '.join(known)}")


def check_method(name: str) -> None:
    """Raise ValueError for an unknown method. A user's own method, ``module:Class``, is checked when it is imported."""
    known = MODULES | INSTRUMENTS
    if ":" not in name and name not in known:
        raise ValueError(
            f"unknown method {name!r}{did_you_mean(name, known)}; `pfl methods` lists all; "
            "give a method of your own as package.module:Class"
        )

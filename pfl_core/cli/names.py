"""Names that arguments can have, and their checks, without importing what they name; a test compares the tables."""

from __future__ import annotations

from collections.abc import Iterable

from pfl_core.options import did_you_mean
from pfl_core.plugins import find
from pfl_core.registry import INSTRUMENTS, MODULES


def check(kind: str, name: str | None, known: Iterable[str]) -> None:
    """Raise ValueError if a name is given that is not known."""
    if name is not None and name not in known:
        raise ValueError(f"unknown {kind} {name!r}{did_you_mean(name, known)}; choose from {', '.join(known)}")


def check_method(name: str) -> None:
    """Raise ValueError for a method that does not exist; one's own, ``module:Class``, is looked up later."""
    if ":" not in name:
        find("method", name, MODULES | INSTRUMENTS)

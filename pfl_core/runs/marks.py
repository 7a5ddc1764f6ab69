"""Marks: checkpoints of a run after certain rounds, from which other runs of a sweep branch.

A sweep notes which runs need the marks of a shared run, in a file beside them. So the marks that a killed sweep left
are kept for its continuation, and deleted by any later sweep once all these runs are stored.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pfl_core.files import atomic_write, parsed, remove
from pfl_core.runs.store import Store

MARK = ".mark"  # suffix of the files


@dataclass(frozen=True)
class Branch:
    """Another run with identical first rounds: a run can start from any of its marks up to ``rounds``."""

    key: str
    rounds: int


def mark_path(store: Store, key: str, rounds: int) -> Path:
    """The checkpoint of run ``key`` after this number of rounds."""
    return store.root / f"{key}.{rounds}{MARK}"


def rounds_of(mark: Path) -> int:
    """The number of rounds in the name of a mark."""
    return int(mark.name.split(".")[1])


def marks_of(store: Store, *branches: Branch) -> list[Path]:
    """The existing marks of runs up to their number of rounds, those with most rounds first."""
    paths = [
        path
        for branch in branches
        for path in store.root.glob(f"{branch.key}.*{MARK}")
        if rounds_of(path) <= branch.rounds
    ]
    return sorted(paths, key=rounds_of, reverse=True)


def _note(store: Store, key: str) -> Path:
    return store.root / f"{key}.branches"


def note_needs(store: Store, key: str, needed_by: Iterable[str]) -> None:
    """Note that these runs need the marks of run ``key``, in addition to those noted before."""
    note = _note(store, key)
    atomic_write(note, json.dumps(sorted({*_needs(note), *needed_by})).encode())


def _needs(note: Path) -> list[str]:
    """Keys of the runs in a note; none if it is missing or damaged, which costs time but no result."""
    with suppress(OSError, ValueError):
        keys = parsed(note.read_bytes())
        if isinstance(keys, list):
            return [key for key in keys if isinstance(key, str) and key.isalnum()]
    return []


def remove_unneeded(store: Store, failed: Collection[str] = ()) -> None:
    """Delete all marks that are needed only by runs that are stored or ``failed``."""
    for note in store.own("*.branches"):
        before = _needs(note)
        needs = [key for key in before if key not in failed and not _is_complete(store, key)]
        if not needs:
            remove(note)
        elif needs != before:
            with suppress(OSError):
                atomic_write(note, json.dumps(needs).encode())
    for mark in store.own(f"*{MARK}"):
        if not _note(store, mark.name.split(".")[0]).exists():
            remove(mark)


def _is_complete(store: Store, key: str) -> bool:
    record = store.get(key)
    return record is not None and not record.partial

"""An index of a store: what a command shows of each record, so that it does not read all records again.

The index is a cache in the store's folder. An entry is used only while its file is unchanged and while the package that
computed it is the same. Records whose spec names code of the user are read each time, because that code may change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pfl_core.files import fingerprint, read_cache, write_cache
from pfl_core.runs.record import Record
from pfl_core.runs.store import Store

Entry = list[Any]  # fingerprint of the record's file, completed rounds, value
OTHER = -1  # in place of the rounds: the record belongs to another paper


def indexed(store: Store, name: str, value_of: Callable[[Record, Path], Any], paper: str | None = None) -> list[Any]:
    """``value_of(record, path)`` for each readable record of the store; if two files have the same key, the one with
    more rounds.

    ``name`` is that of the index, one for each function. The value is JSON data. It must depend only on the record, on
    its path, and on the code and tables of this package. ``paper``: only records that were made for this paper, with an
    index of their own.
    """
    name = name if paper is None else f"{name}-{paper}"
    path, key = store.root / "cache" / f"index-{name}.json", code_digest()
    before: dict[str, Entry] = read_cache(path, key) or {}
    after: dict[str, Entry] = {}

    def entry_of(file: Path) -> Entry | None:
        """The entry of a file, added to ``after`` if a later call may use it. None if the record cannot be read."""
        try:
            state = fingerprint(
                file
            )  # before reading: a file that is replaced meanwhile is read again by the next call
            known = before.get(str(file))
            if state is not None and known is not None and known[0] == list(state):
                after[str(file)] = known
                return known
            other = paper is not None and f'"paper":"{paper}"'.encode() not in file.read_bytes()
        except OSError:  # deleted by another process
            return None
        record = None if other else store.read(file)
        if record is None and not other:
            return None
        if record is None or paper not in (None, record.spec.paper):
            entry = [state and list(state), OTHER, None]
        else:
            entry = [state and list(state), record.rounds, value_of(record, file)]
        if state is not None and (record is None or not _names_users_code(record.spec.to_json())):
            after[str(file)] = entry
        return entry

    values = []
    for files in store.files().values():
        entries = [entry for file in files if (entry := entry_of(file)) is not None and entry[1] != OTHER]
        if entries:
            values.append(max(entries, key=lambda entry: entry[1])[2])
    if after != before:
        write_cache(path, key, after)
    return values


def _names_users_code(content: Any) -> bool:
    """Whether any text in JSON data may be a name such as "module:function"."""
    if isinstance(content, Mapping):
        return any(_names_users_code(part) for part in content.values())
    if isinstance(content, list):
        return any(map(_names_users_code, content))
    return isinstance(content, str) and ":" in content


@cache
def code_digest() -> str:
    """SHA-256 (hex) of the package's modules and tables, the same for all kinds of line ends."""
    digest, folder = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(path for suffix in ("py", "json") for path in folder.rglob(f"*.{suffix}")):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()

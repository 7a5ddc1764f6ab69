"""Files that several processes and machines may write at once: atomic writing, and small caches in JSON."""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

REPLACE_ATTEMPTS, REPLACE_SECONDS = 5, 0.05  # see ``_replace``
PART = ".*.part"  # pattern of the temporary files of ``atomic_write``


def atomic_write(path: Path, content: bytes) -> None:
    """Write a temporary file, then rename it, so that a reader sees the old file or the new one.

    The temporary name is random, because processes of several machines and containers may share the folder. Raises
    OSError with a one-line message that names the path.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        _replace(temporary, path)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        remove(temporary)


def _replace(source: Path, target: Path) -> None:
    """``os.replace``, repeated for a short time: on Windows it fails while another process has the target open."""
    for attempt in range(REPLACE_ATTEMPTS):
        try:
            return os.replace(source, target)
        except PermissionError:
            if attempt == REPLACE_ATTEMPTS - 1:
                raise
            time.sleep(REPLACE_SECONDS)


def remove(path: Path) -> None:
    """Delete a temporary file if possible: on Windows, deleting fails while another process has the file open."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def cached(path: Path, key: Any, compute: Callable[[], Any]) -> Any:
    """The value in the cache file ``path`` if it was stored for this ``key``, else ``compute()``, which is then stored.

    ``key`` and value are JSON data. The file has a checksum: a damaged file, or one of another key, is replaced. A
    cache that cannot be written is no error; the value is then computed again by the next process.
    """
    key = json.loads(json.dumps(key))
    try:
        entry = json.loads(path.read_bytes())
        if entry["key"] == key and entry["sha256"] == _checksum(entry["key"], entry["value"]):
            return entry["value"]
    except (OSError, ValueError, KeyError, TypeError):  # missing, damaged, or not an entry
        pass
    value = compute()
    with suppress(OSError):  # the disk is full, or the folder is read-only
        content = {"key": key, "value": value, "sha256": _checksum(key, value)}
        atomic_write(path, json.dumps(content).encode() + b"\n")
    return value


def _checksum(key: Any, value: Any) -> str:
    return hashlib.sha256(json.dumps([key, value], sort_keys=True).encode()).hexdigest()

"""Files that several processes and machines may write at once, small caches in JSON, and environment variables."""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

REPLACE_ATTEMPTS, REPLACE_SECONDS = 5, 0.05  # see ``_replace``
PART = ".*.part"  # pattern of the temporary files of ``atomic_write``
SETTLED = 2_000_000_000  # nanoseconds; the coarsest times of file systems in use


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


@contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for the processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def parsed(content: bytes | str) -> Any:
    """The data of JSON text. Raises ValueError for everything else, also if it is nested too deeply to be read."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def cached(path: Path, key: Any, compute: Callable[[], Any]) -> Any:
    """The value in the cache file ``path`` if it was stored for this ``key``, else ``compute()``, which is then stored.

    ``key`` and value are JSON data; the value is not None.
    """
    value = read_cache(path, key)
    if value is None:
        value = compute()
        write_cache(path, key, value)
    return value


def read_cache(path: Path, key: Any) -> Any:
    """The value in a cache file; None if it is missing or damaged, or was stored for another ``key``."""
    key = json.loads(json.dumps(key))
    with suppress(OSError, ValueError, KeyError, TypeError):
        entry = parsed(path.read_bytes())
        if entry["key"] == key and entry["sha256"] == checksum([key, entry["value"]]):
            return entry["value"]
    return None


def write_cache(path: Path, key: Any, value: Any) -> None:
    """Write a cache file with a checksum. A cache that cannot be written is no error: the value is computed again."""
    with suppress(OSError):  # the disk is full, or the folder is read-only
        content = {"key": key, "value": value, "sha256": checksum([key, value])}
        atomic_write(path, json.dumps(content).encode() + b"\n")


def checksum(content: Any) -> str:
    """SHA-256 (hex) of JSON data. It does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def fingerprint(path: Path) -> tuple[int, ...] | None:
    """Size, times and inode of a file, which are different after any change of its content.

    None if the file changed just now: a second change could get the same times. Raises OSError if there is no file.
    """
    state = path.stat()
    if abs(time.time_ns() - max(state.st_mtime_ns, state.st_ctime_ns)) < SETTLED:
        return None
    # The time of the last change of content can be set to any value, that of the inode's (ctime) cannot.
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino

"""What there is, whether it is here and sound, and what its content hashes to."""

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pfl_core.data.combine import RECIPES, recipe
from pfl_core.data.dataset import Dataset
from pfl_core.data.entry import Info
from pfl_core.data.lookup import (
    data_dir,
    entry_of,
    files_of,
    load,
    missing,
    npz_of,
    obtain,
    outside,
    own_files,
    single_names,
)
from pfl_core.plugins import code_of

REMEMBERED = 10_000_000  # bytes; the sums of smaller files are quicker made than found
FOR_ALL = {"normalise", "resize", "channels", "offline"}  # options of load() that do not touch the content
VERSIONS: dict[str, int] = {}  # data set, "combine" or "corrupt" -> version; 1 where not listed (runs/versions.py)


def names(folder: str | Path | None = None) -> dict[str, Info]:
    """Every data set by name: the known ones, combinations, and other .npz files of the data folder."""
    at = data_dir(folder)
    known = (*single_names(), *RECIPES)
    return {name: _info(name, at) for name in (*known, *(own for own in own_files(at) if own not in known))}


def _info(name: str, folder: Path) -> Info:
    how = recipe(name)
    if how:
        parts = [_info(part, folder) for part in how.parts]
        return Info(
            name=name,
            where=f"made of {', '.join(how.parts)}",
            licence="; ".join(dict.fromkeys(part.licence for part in parts)),
            size="; ".join(part.size for part in parts),
            available=all(part.available for part in parts),
        )
    entry = entry_of(name, folder)
    return Info(name, entry.where, entry.licence, entry.size, available=files_of(name, folder) is not None)


def checksum(name: str, *, folder: str | Path | None = None, **options: Any) -> str:
    """sha256 (hex) of what `name` is made of, for the keys of runs: equal content gives an equal sum on every machine.

    Of files: their names and bytes, read once while size and time stay the same; of generated sets, which have no
    content of their own: ""; of combinations: their parts; of "module:function": the arrays that it returns for these
    options. Options of `load` are accepted; of known sets they do not matter. Raises FileNotFoundError if a file is
    missing; downloads nothing.
    """
    if ":" in name:
        own = {key: value for key, value in options.items() if key not in FOR_ALL}
        return _sum_of_arrays(name, json.dumps(own, sort_keys=True))
    at, how = data_dir(folder), recipe(name)
    if how:
        return _sha256([checksum(part, folder=at) for part in how.parts])
    files = files_of(name, at)
    if files is None:
        raise FileNotFoundError(missing(name, at))
    if not files:
        return ""
    return _sha256(
        [part for file in files for part in (file.relative_to(at).as_posix(), _known_sum(at, *_state(file)))]
    )


def versions(name: str) -> dict[str, int | str]:
    """Data set -> version of its reader, or the hash of the user's module behind it; of a combination: its parts."""
    if ":" in name:
        return {name: code_of(name.partition(":")[0])}
    how = recipe(name)
    parts = (name,) if how is None else ("combine", *how.parts)
    return {part: VERSIONS.get(part, 1) for part in parts}


def _sha256(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _state(path: Path) -> tuple[Path, int, int]:
    state = path.stat()
    return path.resolve(), state.st_size, state.st_mtime_ns


@cache
def _known_sum(folder: Path, path: Path, size: int, mtime_ns: int) -> str:
    """sha256 of a file; read once for each (path, size, time), and remembered below ``folder`` for other processes."""
    if size < REMEMBERED:
        return _sum_of_file(path, "sha256")
    from joblib import Memory

    remembered = Memory(folder / "runs" / "checksums", verbose=0).cache(_sum_of_file)
    return remembered(path, "sha256", (size, mtime_ns))


def _sum_of_file(path: Path, kind: str, _state: tuple[int, int] | None = None) -> str:
    """Hex digits of a file's bytes; ``_state`` only tells those who remember the answer when to ask again."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


@cache
def _sum_of_arrays(name: str, options: str) -> str:
    data = outside(name, json.loads(options))
    total = hashlib.sha256(f"{data.num_classes} {data.mean} {data.std}".encode())
    for values in (data.x, data.y, data.source, data.is_test):
        total.update(f"{values.dtype} {list(values.shape)}".encode())
        total.update(values.contiguous().numpy().tobytes())
    return total.hexdigest()


def fetch(wanted: Sequence[str] = (), folder: str | Path | None = None, offline: bool = False) -> list[dict[str, str]]:
    """A row for each data set: name, status, note, where, licence, size.

    Without `wanted`: all of them as they are, nothing read or downloaded; status "built in", "here" or "missing".
    With `wanted`: each is downloaded if it is missing (unless `offline`), then read from end to end; a combination
    gives the rows of its parts. Status "built in", "verified" (the official checksum), "sound" (reads well; there is no
    official checksum for this file), or "missing", "not downloaded", "damaged" with the reason in `note`; one bad set
    does not stop the others. Raises ValueError for an unknown name.
    """
    at = data_dir(folder)
    if not wanted:
        return [_row(info, "here" if info.available else "missing", "", at) for info in names(at).values()]
    recipes = {name: recipe(name) for name in wanted}
    single = dict.fromkeys(part for name, how in recipes.items() for part in (how.parts if how else (name,)))
    return [_row(info, *_checked(info, at, offline), at) for info in [_info(name, at) for name in single]]


def _row(info: Info, status: str, note: str, folder: Path) -> dict[str, str]:
    generated = recipe(info.name) is None and files_of(info.name, folder) == []
    status = "built in" if generated else status
    return dict(name=info.name, status=status, note=note, where=info.where, licence=info.licence, size=info.size)


def _checked(info: Info, folder: Path, offline: bool) -> tuple[str, str]:
    """Status and note after a download where needed, and a reading."""
    try:
        if not info.available:
            obtain(info.name, folder, offline)
        data = load(info.name, folder=folder)
    except FileNotFoundError as error:
        return "missing", str(error)
    except ConnectionError as error:
        return "not downloaded", str(error)
    except ValueError as error:
        return "damaged", str(error)
    return ("verified" if _is_official(info.name, folder) else "sound"), _count(data)


def _is_official(name: str, folder: Path) -> bool:
    """True if every byte was compared with its publisher's checksum."""
    files, entry = files_of(name, folder) or [], entry_of(name, folder)
    if entry.md5:
        return [_sum_of_file(file, "md5") for file in files] == [entry.md5]
    return entry.checked_by_reader and npz_of(name, folder) not in files


def _count(data: Dataset) -> str:
    test = int(data.is_test.sum())
    return f"{len(data.y) - test:,} + {test:,} samples {'x'.join(map(str, data.x.shape[1:]))}"

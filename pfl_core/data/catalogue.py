"""The catalogue of data sets: where each comes from, whether it is here and sound, how it is loaded, what it hashes to.

A name is served by `<name>.npz` in the data folder, else by its owner's files, else by a download if that is allowed.
"""

import hashlib
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pfl_core.data import builtin, femnist, folders, medmnist_sets, torchvision_sets
from pfl_core.data.combine import combine, recipe
from pfl_core.data.dataset import UNOFFICIAL, Dataset, DatasetEntry, finished
from pfl_core.data.npz import read_npz
from pfl_core.data.registry import COMBINED, MEDMNIST, SINGLE, check_name, data_dir, own_files
from pfl_core.options import check_options
from pfl_core.plugins import code_of, find

ENTRIES = builtin.ENTRIES | torchvision_sets.ENTRIES | femnist.ENTRIES | folders.ENTRIES
VERSIONS: dict[str, int] = {}  # data set, "combine" or "corrupt" -> version; 1 where not listed (runs/versions.py)
REMEMBERED = 10_000_000  # bytes; checksums of larger files are kept on disk, those of smaller files are made quickly
FOR_ALL = {"normalise", "resize", "channels", "offline"}  # options of load() that do not touch the content


@dataclass(frozen=True)
class Info:
    """What `names()` tells about a data set."""

    name: str
    where: str
    licence: str
    size: str
    available: bool  # here now, without a network
    generated: bool = False  # needs no file


def load(
    name: str,
    *,
    normalise: str = "unit",
    resize: int | None = None,
    channels: int | None = None,
    folder: str | Path | None = None,
    offline: bool = True,
    **options: Any,
) -> Dataset:
    """The data set `name`: a known name, any `<name>.npz` of the data folder, "a+b", or "my_module:function".

    Looked up in this order: `<name>.npz` in the data folder (`folder`, else PFL_DATA_DIR, else data/), the owner's
    files below it, a download if `offline` is False. "my_module:function" is yours: it is called with the options and
    must return a Dataset, e.g. `load("my_module:my_data", size=100)`. A combination is always made of its parts.

    normalise: how `Dataset.prepare` scales, one of NORMALISE; "unit" (v / 255, or what your own Dataset says), "half",
        "raw", "mnist", "cifar10", "imagenet". resize: side of the images in pixels, bilinear. channels: 1 or 3.
    options: of the set itself: `samples_per_class` and `seed` of combinations; `writer_share`, `min_images` and `seed`
        of femnist; `test_per_class` (mini_imagenet) or `test_share` (office_home) and `seed` of picture folders.

    Raises ValueError for an unknown name or option and for a damaged file, FileNotFoundError if the set is not here and
    must not or cannot be downloaded, ConnectionError if the download fails.
    """
    return finished(_pool(name, data_dir(folder), offline, options), normalise, resize, channels)


def _pool(name: str, folder: Path, offline: bool, options: dict[str, Any]) -> Dataset:
    if ":" in name:
        return _plugin(name, options)
    how = recipe(name)
    if how:
        options = {"samples_per_class": how.samples_per_class} | options
        check_options(f"data set {name!r}", combine, options, reserved=3)
        return combine(name, how, [_pool(part, folder, offline, {}) for part in how.parts], **options)
    entry = _entry(name, folder)
    check_options(f"data set {name!r}", entry.finish, options, reserved=1)
    if _files(name, folder) is None:
        _download(name, folder, offline)
    npz = folder / f"{name}.npz"
    data = read_npz(npz, name, entry.class_names) if npz.is_file() else entry.read(folder)
    return entry.finish(_marked(data, entry), **options)


def _marked(data: Dataset, entry: DatasetEntry) -> Dataset:
    """`data` as it is, or marked in `about` if it has other numbers of images than the published set of its name.

    Numbers and not the checksum: results were published on releases whose sums are not known any more.
    """
    test = int(data.is_test.sum())
    if not entry.counts or (len(data.y) - test, test) in entry.counts:
        return data
    own = f"; {data.about}" if data.about else ""
    return replace(data, about=f"{data.name}, {UNOFFICIAL}: {len(data.y):,} images{own}")


def _plugin(name: str, options: dict[str, Any]) -> Dataset:
    """The Dataset that `function` of "module:function" returns. Raises ValueError if there is none."""
    make = find("data set", name, {})
    check_options(f"data set {name!r}", make, options, reserved=0)
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        raise ValueError(f"data set {name!r}: {error}; give it as an option of the data set") from error
    data = make(**options)
    if not isinstance(data, Dataset):
        raise ValueError(f"data set {name!r} returned a {type(data).__name__}; return a pfl_core.data.Dataset")
    return data


def _entry(name: str, folder: Path) -> DatasetEntry:
    """The entry of a single set; a file `<name>.npz` that nobody else claims is an entry too.

    Raises ValueError for a name that is not known and has no file.
    """
    check_name(name, folder)
    if name in MEDMNIST:
        return medmnist_sets.entry(name)
    own = DatasetEntry(
        "your own file", "yours to know", "as in the file", lambda at: read_npz(at / f"{name}.npz", name)
    )
    return ENTRIES.get(name, own)


def _files(name: str, folder: Path) -> list[Path] | None:
    """The files that `name` is read from: its .npz, else its owner's; [] if generated, None if they are missing."""
    entry, npz = _entry(name, folder), folder / f"{name}.npz"
    if npz.is_file():
        return [npz]
    matches = [sorted(path for path in folder.glob(pattern) if path.is_file()) for pattern in entry.files]
    return sum(matches, start=[]) if all(matches) else None


def _download(name: str, folder: Path, offline: bool) -> None:
    """Raises FileNotFoundError if a download is not allowed or not possible, ConnectionError if it fails."""
    entry = _entry(name, folder)
    if offline or entry.download is None:
        raise _not_here(name, folder)
    try:
        entry.download(folder)
    except (OSError, RuntimeError, ValueError) as error:  # no network, torchvision's and pooch's wrong checksum
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConnectionError(
            f"data set {name!r} could not be downloaded from {entry.where} ({reason}); try again with a network, "
            f"or put {name}.npz into {folder}"
        ) from error


def _not_here(name: str, folder: Path) -> FileNotFoundError:
    """One line: what was looked for, where, what is here, and what to do."""
    entry = _entry(name, folder)
    here = dict.fromkeys([known for known in SINGLE if _files(known, folder) is not None] + own_files(folder))
    to_do = f"fetch it with `pfl data {name}`" if entry.download else "bring its files, see data/README.md"
    looked_for = " or ".join([f"{name}.npz", *(file for file in entry.files if file != f"{name}.npz")][:2])
    return FileNotFoundError(
        f"data set {name!r} is not here: no {looked_for} in {folder}; here are {', '.join(here)}; {to_do}, "
        "or set PFL_DATA_DIR to the folder that has it"
    )


def names(folder: str | Path | None = None) -> dict[str, Info]:
    """Every data set by name: the known ones, combinations, and other .npz files of the data folder."""
    at = data_dir(folder)
    return {name: _info(name, at) for name in dict.fromkeys((*SINGLE, *COMBINED, *own_files(at)))}


def _info(name: str, folder: Path) -> Info:
    how = recipe(name)
    if how:
        parts = [_info(part, folder) for part in how.parts]
        licences = "; ".join(dict.fromkeys(part.licence for part in parts))
        sizes = "; ".join(part.size for part in parts)
        return Info(name, f"made of {', '.join(how.parts)}", licences, sizes, all(part.available for part in parts))
    entry, files = _entry(name, folder), _files(name, folder)
    return Info(name, entry.where, entry.licence, entry.size, available=files is not None, generated=files == [])


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
        return [_row(info, "here" if info.available else "missing", "") for info in names(at).values()]
    recipes = {name: recipe(name) for name in wanted}
    single = dict.fromkeys(part for name, how in recipes.items() for part in (how.parts if how else (name,)))
    return [_row(info, *_checked(info, at, offline)) for info in [_info(name, at) for name in single]]


def _row(info: Info, status: str, note: str) -> dict[str, str]:
    status = "built in" if info.generated else status
    return dict(name=info.name, status=status, note=note, where=info.where, licence=info.licence, size=info.size)


def _checked(info: Info, folder: Path, offline: bool) -> tuple[str, str]:
    """Status and note after a download where needed, and a reading."""
    try:
        if not info.available:
            _download(info.name, folder, offline)
        data = load(info.name, folder=folder)
    except (FileNotFoundError, ConnectionError, ValueError) as error:
        status = {FileNotFoundError: "missing", ConnectionError: "not downloaded"}.get(type(error), "damaged")
        return status, str(error)
    test = int(data.is_test.sum())
    note = f"{len(data.y) - test:,} + {test:,} samples {'x'.join(map(str, data.x.shape[1:]))}"
    return ("verified" if _is_official(info.name, folder) else "sound"), note


def _is_official(name: str, folder: Path) -> bool:
    """True if every byte was compared with its publisher's checksum."""
    files, entry = _files(name, folder) or [], _entry(name, folder)
    if entry.md5:
        return [_sum_of_file(file, "md5") for file in files] == [entry.md5]
    return entry.checked_by_reader and folder / f"{name}.npz" not in files


def versions(name: str) -> dict[str, int | str]:
    """Data set -> version of its reader, or the hash of the user's module behind it; of a combination: its parts."""
    if ":" in name:
        return {name: code_of(name.partition(":")[0])}
    how = recipe(name)
    return {part: VERSIONS.get(part, 1) for part in (("combine", *how.parts) if how else (name,))}


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
    files = _files(name, at)
    if files is None:
        raise _not_here(name, at)
    return _sha256([text for file in files for text in (file.relative_to(at).as_posix(), _sha256_of(file, at))])


def _sha256(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest() if parts else ""


def _sha256_of(file: Path, folder: Path) -> str:
    state = file.stat()
    return _remembered_sum(folder, file.resolve(), state.st_size, state.st_mtime_ns)


@cache
def _remembered_sum(folder: Path, path: Path, size: int, mtime_ns: int) -> str:
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
    data = _plugin(name, json.loads(options))
    total = hashlib.sha256(f"{data.num_classes} {data.mean} {data.std}".encode())
    for values in (data.x, data.y, data.source, data.is_test):
        total.update(f"{values.dtype} {list(values.shape)}".encode())
        total.update(values.contiguous().numpy().tobytes())
    return total.hexdigest()

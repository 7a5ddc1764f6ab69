"""The catalogue of data sets: listing, loading, downloading, verifying and hashing by name.

A name is looked up as `<name>.npz` in the data folder, then in the publisher's files, then downloaded if allowed.
"""

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pfl_core.data import builtin, femnist, folders, medmnist_sets, torchvision_sets
from pfl_core.data.combine import combine, recipe
from pfl_core.data.dataset import UNOFFICIAL, Dataset, DatasetEntry, Published, finished
from pfl_core.data.npz import read_npz
from pfl_core.data.registry import COMBINED, MEDMNIST, SINGLE, check_name, data_dir, npz_names
from pfl_core.files import cached, fingerprint
from pfl_core.options import PositiveInt, check_options, parameters
from pfl_core.plugins import find, users_code, version_of

ENTRIES = builtin.ENTRIES | torchvision_sets.ENTRIES | femnist.ENTRIES | folders.ENTRIES
VERSIONS: dict[str, int] = {}  # data set, "combine" or "corrupt" -> version, by default 1 (see runs/versions.py)
CACHED_SIZE = 10_000_000  # bytes; checksums of larger files are cached on disk
FOR_ALL = {"normalise", "resize", "channels", "offline"}  # options of load() that do not change the content


@dataclass(frozen=True)
class Info:
    """Description of a data set in `names()`."""

    name: str
    where: str
    licence: str
    size: str
    available: bool  # can be loaded without a network
    generated: bool = False  # needs no file


def load(
    name: str,
    *,
    normalise: Literal["unit", "half", "raw", "mnist", "cifar10", "imagenet", "standard"] = "unit",
    resize: PositiveInt | None = None,
    channels: Literal[1, 3] | None = None,
    folder: str | Path | None = None,
    offline: bool = True,
    **options: Any,
) -> Dataset:
    """The data set `name`: a known name, any `<name>.npz` of the data folder, "a+b", or "my_module:function".

    A name is looked up in this order: `<name>.npz` in the data folder (`folder`, else PFL_DATA_DIR, else data/), the
    publisher's files below it, a download if `offline` is False. Combinations "a+b" are always made from their parts.
    "my_module:function" is your function: it is called with the options and must return a Dataset, e.g.
    `load("my_module:my_data", size=100)`.

    normalise: scaling by `Dataset.prepare`, one of NORMALISE: "unit" (v / 255, or the mean and std of your Dataset),
        "half", "raw", "mnist", "cifar10", "imagenet". Features: "standard" is (x - mean) / std of the training
        samples, the default for ``Dataset.from_arrays``; "raw" changes nothing.
    resize: side of the images in pixels, bilinear.
    channels: 1 or 3.
    options: options of single sets: `samples_per_class` and `seed` of combinations; `writer_share`, `min_images` and
        `seed` of femnist; `test_per_class` and `seed` of mini_imagenet; `test_share` and `seed` of office_home.

    Raises ValueError for an unknown name or option and for a damaged file, FileNotFoundError if the files are missing
    and may not or cannot be downloaded, ConnectionError if the download fails.
    """
    return finished(_pool(name, data_dir(folder), offline, options), normalise, resize, channels)


def check_load(name: str, options: Mapping[str, Any], more: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Check the options of ``load(name, ...)`` without reading or importing anything.

    The options of a user's function are checked when it is called. ``more``: further options, name -> type.
    Raises ValueError for an unknown option, a wrong type and a number out of bounds.
    """
    function: Callable
    if ":" in name:
        function, reserved = load, 1
    elif recipe(name):
        function, reserved = combine, 3
    else:
        function, reserved = (ENTRIES[name].finish if name in ENTRIES else DatasetEntry.finish), 1
    check_options(f"data set {name!r}", function, options, reserved, {**parameters(load, 1)[0], **more})


def _pool(name: str, folder: Path, offline: bool, options: dict[str, Any]) -> Dataset:
    """The data set with its own options applied, before the options for all sets."""
    if ":" in name:
        return _plugin(name, options)
    combination = recipe(name)
    if combination:
        options = {"samples_per_class": combination.samples_per_class} | options
        check_options(f"data set {name!r}", combine, options, reserved=3)
        return combine(name, combination, [_pool(part, folder, offline, {}) for part in combination.parts], **options)
    entry = _entry(name, folder)
    check_options(f"data set {name!r}", entry.finish, options, reserved=1)
    if not _is_here(name, folder):
        _download(name, folder, offline)
    npz = folder / f"{name}.npz"
    data = read_npz(npz, name, entry.class_names) if npz.is_file() else entry.read(folder)
    if npz.is_file() or not entry.checked_by_reader:
        data = replace(data, differs=entry.published.difference(data))
    return entry.finish(data, **options)


def _plugin(name: str, options: dict[str, Any]) -> Dataset:
    """The Dataset returned by the function "module:function".

    Raises ValueError if the function fails or returns something else.
    """
    make = find("data set", name, {})
    if taken := parameters(load, 0)[0].keys() & parameters(make, 0)[0].keys():
        raise ValueError(f"data set {name!r}: each data set has the option {min(taken)}; give yours another name")
    check_options(f"data set {name!r}", make, options, reserved=0)
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        raise ValueError(f"data set {name!r}: {error}; give it as an option of the data set") from error
    with users_code("data set", name):
        data = make(**options)
    if not isinstance(data, Dataset):
        raise ValueError(f"data set {name!r} returned a {type(data).__name__}; return a pfl_core.data.Dataset")
    return data


def _entry(name: str, folder: Path) -> DatasetEntry:
    """The entry of a single data set, or of a user's file `<name>.npz`.

    Raises ValueError for an unknown name without a file.
    """
    check_name(name, folder)
    if name in MEDMNIST:
        return medmnist_sets.entry(name)
    users_file = DatasetEntry(
        "your own file", "not known here", "as in the file", lambda at: read_npz(at / f"{name}.npz", name)
    )
    return ENTRIES.get(name, users_file)


def _files(name: str, folder: Path) -> list[Path] | None:
    """The files of `name`: its .npz, else the publisher's files; [] if generated, None if files are missing."""
    entry, npz = _entry(name, folder), folder / f"{name}.npz"
    if npz.is_file():
        return [npz]
    matches = [sorted(path for path in folder.glob(pattern) if path.is_file()) for pattern in entry.files]
    return sum(matches, start=[]) if all(matches) else None


def _is_here(name: str, folder: Path) -> bool:
    """Whether all files of ``name`` are there, without listing them."""
    if (folder / f"{name}.npz").is_file():
        return True
    if name in MEDMNIST:  # it has no other file
        return False
    return all(any(path.is_file() for path in folder.glob(pattern)) for pattern in _entry(name, folder).files)


def _download(name: str, folder: Path, offline: bool) -> None:
    """Download `name`. Raises FileNotFoundError if this is not allowed or impossible, ConnectionError if it fails."""
    entry = _entry(name, folder)
    if offline or entry.download is None:
        raise _not_here(name, folder)
    try:
        entry.download(folder)
    except (OSError, RuntimeError, ValueError) as error:  # no network; wrong checksum (torchvision, pooch)
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConnectionError(
            f"data set {name!r} could not be downloaded from {entry.where} ({reason}); try again with a network, "
            f"or put {name}.npz into {folder}"
        ) from error


def _not_here(name: str, folder: Path) -> FileNotFoundError:
    """The error for missing files: what was searched, what is available, and what to do."""
    entry = _entry(name, folder)
    available = dict.fromkeys([known for known in SINGLE if _is_here(known, folder)] + npz_names(folder))
    to_do = f"download it with `pfl data {name}`" if entry.download else "add its files, see data/README.md"
    missing = " or ".join([f"{name}.npz", *(file for file in entry.files if file != f"{name}.npz")][:2])
    return FileNotFoundError(
        f"data set {name!r} is not here: no {missing} in {folder}; available: {', '.join(available)}; {to_do}, "
        "or set PFL_DATA_DIR to the folder that contains it"
    )


def names(folder: str | Path | None = None) -> dict[str, Info]:
    """All data sets by name: known sets, combinations, and other .npz files in the data folder."""
    at = data_dir(folder)
    return {name: _info(name, at) for name in dict.fromkeys((*SINGLE, *COMBINED, *npz_names(at)))}


def _info(name: str, folder: Path) -> Info:
    combination = recipe(name)
    if combination:
        parts = [_info(part, folder) for part in combination.parts]
        licences = "; ".join(dict.fromkeys(part.licence for part in parts))
        sizes = "; ".join(part.size for part in parts)
        return Info(
            name,
            f"combination of {', '.join(combination.parts)}",
            licences,
            sizes,
            all(part.available for part in parts),
        )
    entry, is_here = _entry(name, folder), _is_here(name, folder)
    generated = not entry.files and not (folder / f"{name}.npz").is_file()
    return Info(name, entry.where, entry.licence, entry.size, available=is_here, generated=generated)


def fetch(wanted: Sequence[str] = (), folder: str | Path | None = None, offline: bool = False) -> list[dict[str, str]]:
    """One row per data set: name, status, note, where, licence, size.

    Without `wanted`: lists all data sets without downloading; status "built in", "here", "not official" or "missing".
    A `<name>.npz` of a published set is read once, and again only if it was replaced or written to.

    With `wanted`: downloads missing files (unless `offline`) and reads every file completely. A combination gives one
    row for each part. Status "built in", "verified" (by the official checksum), "sound" (readable; this file has no
    official checksum) or "not official" (other images than the published ones; `note` has the difference); or
    "missing", "not downloaded", "damaged" with the reason in `note`. An error in one set does not stop the others.
    Raises ValueError for an unknown name.
    """
    at = data_dir(folder)
    if not wanted:
        return [_row(info, *_listed(info, at)) for info in names(at).values()]
    recipes = {name: recipe(name) for name in wanted}
    single = dict.fromkeys(part for name, r in recipes.items() for part in (r.parts if r else (name,)))
    return [_row(info, *_checked(info, at, offline)) for info in [_info(name, at) for name in single]]


def _row(info: Info, status: str, note: str) -> dict[str, str]:
    status = "built in" if info.generated else status
    return dict(name=info.name, status=status, note=note, where=info.where, licence=info.licence, size=info.size)


def _listed(info: Info, folder: Path) -> tuple[str, str]:
    """(status, note) without downloading."""
    if not info.available:
        return "missing", ""
    combination = recipe(info.name)
    found = {part: _difference(part, folder) for part in (combination.parts if combination else (info.name,))}
    note = "; ".join(f"{part} is {UNOFFICIAL}: {difference}" for part, difference in found.items() if difference)
    return ("not official" if note else "here"), note


def _difference(name: str, folder: Path) -> str:
    """How the images of `<name>.npz` differ from the published set of this name.

    "" if they do not, if there is no such file or published set, or if the file cannot be read.
    """
    npz = folder / f"{name}.npz"
    if not npz.is_file() or _entry(name, folder).published == Published():
        return ""
    try:
        state = fingerprint(npz)
        return _differs(name, folder) if state is None else _cached_difference(name, folder, state)
    except ValueError:
        return ""


@cache
def _cached_difference(name: str, folder: Path, state: tuple[int, ...]) -> str:
    """The difference, computed once for each (size, times, inode); cached on disk."""
    key = [repr(_entry(name, folder).published), VERSIONS.get(name, 1), *state]
    return cached(folder / "runs" / "cache" / f"difference-{name}.json", key, partial(_differs, name, folder))


def _differs(name: str, folder: Path) -> str:
    return load(name, folder=folder).differs


def _checked(info: Info, folder: Path, offline: bool) -> tuple[str, str]:
    """(status, note) after downloading missing files and reading the set."""
    try:
        if not info.available:
            _download(info.name, folder, offline)
        data = load(info.name, folder=folder)
    except (FileNotFoundError, ConnectionError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            return "missing", str(error)
        return ("not downloaded" if isinstance(error, ConnectionError) else "damaged"), str(error)
    test = int(data.is_test.sum())
    note = f"{len(data.y) - test:,} + {test:,} samples {'x'.join(map(str, data.x.shape[1:]))}"
    if _is_official(info.name, folder):
        return "verified", note
    if data.differs:
        return "not official", f"{UNOFFICIAL}: {data.differs}; {note}"
    return "sound", f"{note}; {data.about}" if data.about else note


def _is_official(name: str, folder: Path) -> bool:
    """Whether all files were compared with the publisher's checksums."""
    files, entry = _files(name, folder) or [], _entry(name, folder)
    if entry.md5:
        return [_sum_of_file(file, "md5") for file in files] == [entry.md5]
    return entry.checked_by_reader and folder / f"{name}.npz" not in files


def versions(name: str) -> dict[str, int | str]:
    """Data set -> version of its reader, or hash of the user's module; a combination gives one entry per part."""
    if ":" in name:
        return {name: _version_of(name)}
    combination = recipe(name)
    return {part: VERSIONS.get(part, 1) for part in (("combine", *combination.parts) if combination else (name,))}


def _version_of(name: str) -> str:
    """Hash of the code of a user's data set, and of the files that it names."""
    return version_of(name.partition(":")[0], find("data set", name, {}))


def checksum(name: str, *, folder: str | Path | None = None, **options: Any) -> str:
    """sha256 (hex) of the content of `name`; equal content has an equal checksum on every machine.

    Files: their names and bytes; a file is read again only if it was replaced or written to. Generated sets: "".
    Combinations: the checksums of their parts. "module:function": the arrays that it returns for these options.

    Options of `load` are accepted; for known sets they do not change the checksum. Raises FileNotFoundError if a file
    is missing. Downloads nothing.
    """
    if ":" in name:
        plugin_options = {key: value for key, value in options.items() if key not in FOR_ALL}
        return _sum_of_arrays(name, json.dumps(plugin_options, sort_keys=True), _version_of(name))
    at, combination = data_dir(folder), recipe(name)
    if combination:
        return _sha256([checksum(part, folder=at) for part in combination.parts])
    files = _files(name, at)
    if files is None:
        raise _not_here(name, at)
    return _sha256([text for file in files for text in (file.relative_to(at).as_posix(), _sha256_of(file, at))])


def _sha256(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest() if parts else ""


def _sha256_of(file: Path, folder: Path) -> str:
    """sha256 of a file. It is read again if its size, its times or its inode have changed, or changed just now."""
    path, state = file.resolve(), fingerprint(file)
    return _sum_of_file(path, "sha256") if state is None else _cached_sum(folder, path, state)


@cache
def _cached_sum(folder: Path, path: Path, state: tuple[int, ...]) -> str:
    """sha256 of a file, computed once for each (size, times, inode). Large files are cached on disk in ``folder``."""
    if state[0] < CACHED_SIZE:
        return _sum_of_file(path, "sha256")
    name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    cache_file = folder / "runs" / "cache" / f"checksum-{name}.json"
    return cached(cache_file, [str(path), *state], lambda: _sum_of_file(path, "sha256"))


def _sum_of_file(path: Path, kind: str) -> str:
    """Hash of a file (hex)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


@cache
def _sum_of_arrays(name: str, options: str, code: str) -> str:
    """sha256 of the arrays of a user's data set; ``options`` is JSON, ``code`` its ``_version_of``."""
    sums = {_sum_of(_plugin(name, json.loads(options))) for _ in range(2)}
    if len(sums) > 1:
        raise ValueError(
            f"data set {name!r} returns other samples at its second call; it must not depend on the time or on "
            "np.random.default_rng() without a seed"
        )
    return sums.pop()


def _sum_of(data: Dataset) -> str:
    """sha256 of the arrays of a data set."""
    total = hashlib.sha256(f"{data.num_classes} {data.mean} {data.std}".encode())
    for values in (data.x, data.y, data.source, data.is_test):
        total.update(f"{values.dtype} {list(values.shape)}".encode())
        total.update(values.contiguous().numpy().tobytes())
    return total.hexdigest()

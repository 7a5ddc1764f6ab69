"""From a name to a pool of samples: data folder first, then the set's owner, then the network if allowed."""

import inspect
import os
from pathlib import Path
from typing import Any

import pfl_core
from pfl_core.data import builtin, femnist, folders, medmnist_sets, torchvision_sets
from pfl_core.data.combine import RECIPES, combine, recipe
from pfl_core.data.dataset import Dataset, finished
from pfl_core.data.entry import Entry
from pfl_core.data.npz import read_npz
from pfl_core.plugins import check_options, find

ENTRIES = builtin.ENTRIES | torchvision_sets.ENTRIES | femnist.ENTRIES | folders.ENTRIES


def data_dir(folder: str | Path | None = None) -> Path:
    """The data folder: `folder`, else PFL_DATA_DIR, else the repository's data/ (installed: the working folder's)."""
    if folder is None:
        folder = os.environ.get("PFL_DATA_DIR") or None
    if folder is not None:
        return Path(folder).expanduser()
    root = Path(pfl_core.__file__).parent.parent
    return (root if (root / "pyproject.toml").is_file() else Path.cwd()) / "data"


def single_names() -> tuple[str, ...]:
    """The sets that are not made of others."""
    return (*ENTRIES, *medmnist_sets.NAMES)


def entry_of(name: str, folder: Path) -> Entry:
    """The entry of a single set; a file `<name>.npz` that nobody else claims is an entry too.

    Raises ValueError for a name that is not known and has no file.
    """
    if name in ENTRIES:
        return ENTRIES[name]
    if name in medmnist_sets.NAMES:
        return medmnist_sets.entry(name)
    if name in medmnist_sets.REFUSED:
        raise ValueError(
            f"data set {name!r} {medmnist_sets.REFUSED[name]}; choose one of {', '.join(medmnist_sets.NAMES)}"
        )
    if npz_of(name, folder).is_file():
        return Entry(
            "your own file", "yours to know", "as in the file", read=lambda at: read_npz(npz_of(name, at), name)
        )
    known = ", ".join((*single_names(), *RECIPES))
    raise ValueError(
        f"data set {name!r} is unknown and {folder} has no {name}.npz; known: {known}, 'a+b', 'module:function'; "
        f"files in that folder: {', '.join(own_files(folder)) or 'none'}"
    )


def is_name(name: str) -> bool:
    """Letters, digits, - and _ only, so that a name cannot leave the data folder."""
    return name.replace("_", "").replace("-", "").isalnum()


def npz_of(name: str, folder: Path) -> Path:
    """Where `<name>.npz` would lie. Raises ValueError for a name that would leave the folder."""
    if not is_name(name):
        raise ValueError(
            f"data set {name!r} is no name; give letters, digits, - and _ only, 'a+b' or 'module:function'"
        )
    return folder / f"{name}.npz"


def own_files(folder: Path) -> list[str]:
    """Names of the .npz files in the data folder that can be loaded by name."""
    other = medmnist_sets.REFUSED.keys() | RECIPES.keys()
    return sorted(path.stem for path in folder.glob("*.npz") if is_name(path.stem) and path.stem not in other)


def files_of(name: str, folder: Path) -> list[Path] | None:
    """The files that `name` is read from: its .npz, else its owner's; [] if generated, None if they are missing."""
    npz, entry = npz_of(name, folder), entry_of(name, folder)
    if npz.is_file():
        return [npz]
    matches = [sorted(path for path in folder.glob(pattern) if path.is_file()) for pattern in entry.files]
    return sum(matches, start=[]) if all(matches) else None


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
        return outside(name, options)
    how = recipe(name)
    if how is None:
        return _single(name, folder, offline, options)
    options = {"samples_per_class": how.samples_per_class} | options
    check_options(f"data set {name!r}", combine, options, reserved=3)
    return combine(name, how, [_single(part, folder, offline, {}) for part in how.parts], **options)


def _single(name: str, folder: Path, offline: bool, options: dict[str, Any]) -> Dataset:
    entry = entry_of(name, folder)
    check_options(f"data set {name!r}", entry.finish, options, reserved=1)
    if files_of(name, folder) is None:
        obtain(name, folder, offline)
    npz = npz_of(name, folder)
    return entry.finish(read_npz(npz, name, entry.class_names) if npz.is_file() else entry.read(folder), **options)


def obtain(name: str, folder: Path, offline: bool) -> None:
    """Downloads the files of a set that is not here.

    Raises FileNotFoundError if that is not allowed or not possible, ConnectionError if it fails.
    """
    entry = entry_of(name, folder)
    if offline or entry.download is None:
        raise FileNotFoundError(missing(name, folder))
    try:
        entry.download(folder)
    except (OSError, RuntimeError, ValueError) as error:  # no network, torchvision's and pooch's wrong checksum
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConnectionError(
            f"data set {name!r} could not be downloaded from {entry.where} ({reason}); try again with a network, "
            f"or put {name}.npz into {folder}"
        ) from error


def missing(name: str, folder: Path) -> str:
    """One line: what was looked for, where, what is here, and what to do."""
    entry = entry_of(name, folder)
    here = [known for known in single_names() if files_of(known, folder) is not None]
    here += [own for own in own_files(folder) if own not in here]
    to_do = f"fetch it with `pfl data {name}`" if entry.download else "bring its files, see data/README.md"
    owners = [file for file in entry.files if file != f"{name}.npz"]
    looked_for = f"{name}.npz" + (f" or {owners[0]}" if owners else "")
    return (
        f"data set {name!r} is not here: no {looked_for} in {folder}; here are {', '.join(here)}; {to_do}, "
        "or set PFL_DATA_DIR to the folder that has it"
    )


def outside(name: str, options: dict[str, Any]) -> Dataset:
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

"""A named data set: where it comes from and how it is read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pfl_core.data.dataset import Dataset


def unchanged(data: Dataset) -> Dataset:
    """The last step of a set that has no options of its own."""
    return data


@dataclass(frozen=True)
class Entry:
    """How one name is served. `<name>.npz` in the data folder, where there is one, takes the place of `read`."""

    where: str  # who owns and publishes it
    licence: str
    size: str  # for people
    read: Callable[[Path], Dataset]  # data folder -> pool: reads the owner's files, or generates
    files: tuple[str, ...] = ()  # patterns below the data folder that must all match; () if the set is generated
    download: Callable[[Path], None] | None = None  # puts the files into the data folder; None if that is up to you
    finish: Callable[..., Dataset] = unchanged  # (pool, **options) -> pool: the set's own options, with defaults
    class_names: tuple[str, ...] = ()  # for files that have labels only
    md5: str = ""  # the official <name>.npz
    checked_by_reader: bool = False  # `read` compares its files with official checksums


@dataclass(frozen=True)
class Info:
    """What `names()` tells about a data set."""

    name: str
    where: str
    licence: str
    size: str
    available: bool  # here now, without a network

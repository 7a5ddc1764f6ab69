"""MedMNIST's two-dimensional single-label sets (28x28), in the official files `<name>.npz`.

URLs, MD5 sums, licences and class names come from the table of the medmnist package. Validation images may be used for
training. The table of medmnist 3 describes the files since version 2.2.4. These lack blank images of earlier versions:
20 training images of `organamnist`, 8 training and 2 test images of `organsmnist`.
"""

import runpy
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pfl_core.data.dataset import Dataset, DatasetEntry, Published
from pfl_core.data.npz import read_npz

BLANK = {"organamnist": (20, 0), "organsmnist": (8, 2)}  # blank (training, test) images before version 2.2.4


@cache
def info_table() -> dict[str, dict[str, Any]]:
    """medmnist.INFO, read from its file: importing the package takes seconds and needs plotting libraries."""
    spec = find_spec("medmnist")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("the package medmnist is not installed; install it with `pip install medmnist`")
    return runpy.run_path(str(Path(spec.submodule_search_locations[0], "info.py")))["INFO"]


def entry(name: str) -> DatasetEntry:
    """The entry of a name in registry.MEDMNIST."""
    info = info_table()[name]
    names = tuple(info["label"][str(c)] for c in range(len(info["label"])))
    train, val, test = (f"{info['n_samples'][part]:,}" for part in ("train", "val", "test"))
    return DatasetEntry(
        where="MedMNIST v2, Zenodo",
        licence=info["license"],
        size=f"{train} + {val} + {test} images {info['n_channels']}x28x28, {len(names)} classes",
        read=lambda folder: read_npz(folder / f"{name}.npz", name, names),
        files=(f"{name}.npz",),
        download=partial(download, name=name),
        class_names=names,
        finish=note_as_about,
        md5=info["MD5"],
        published=Published(counts=image_counts(name), shape=(info["n_channels"], 28, 28)),
    )


def note_as_about(data: Dataset) -> Dataset:
    """The mark of other images than the published ones is part of ``about``, as in the golden results."""
    return replace(data, about=data.note)


def image_counts(name: str) -> tuple[tuple[int, int], ...]:
    """(images outside the test part, images in it) of the current file and of those before version 2.2.4."""
    parts = info_table()[name]["n_samples"]
    current, (train, test) = (parts["train"] + parts["val"], parts["test"]), BLANK.get(name, (0, 0))
    return current, (current[0] + train, current[1] + test)


def download(folder: Path, name: str) -> None:
    """Download `<name>.npz`; the file is kept only if its MD5 sum is that of medmnist's table."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    info = info_table()[name]
    pooch.retrieve(info["url"], known_hash=f"md5:{info['MD5']}", fname=f"{name}.npz", path=folder)

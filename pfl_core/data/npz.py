"""Data sets in MedMNIST's file layout: one `<name>.npz`.

train_images [n, h, w] or [n, h, w, c] uint8      train_labels [n] or [n, 1] integers
val_..., test_...                                 the same, optional; test images are marked as such, validation
                                                  images may be used for training
train_source, val_source, test_source [n]         optional: writer, site or domain of each image (numbers or text)
about                                             optional note, shown beside every result
"""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pfl_core.data.dataset import Dataset

PARTS = ("train", "val", "test")


def read_npz(path: Path, name: str, class_names: Sequence[str] = ()) -> Dataset:
    """The samples of a file, parts in the order train, val, test.

    Without `class_names` the classes are 0..largest label. Raises ValueError if the file is damaged or has another
    layout.
    """
    try:
        with path.open("rb") as opened:  # np.load given a path leaves a damaged file open
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it contains a single array")
            return _pool(file, name, tuple(class_names))
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, TypeError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{path} is damaged or not in MedMNIST's layout ({reason}); delete it and download or write it "
            "again, see data/README.md"
        ) from error


def _pool(file: np.lib.npyio.NpzFile, name: str, class_names: tuple[str, ...]) -> Dataset:
    parts = [part for part in PARTS if f"{part}_images" in file]
    if "train" not in parts:
        raise ValueError("no train_images")
    x = np.concatenate([_images(file[f"{part}_images"], part) for part in parts])
    y = np.concatenate([_labels(file[f"{part}_labels"], part) for part in parts])
    if y.max(initial=-1) >= len(y):  # otherwise a list of that many class names could fill the memory
        raise ValueError(f"a label is {y.max()}, with {len(y)} samples: labels are 0, 1, ... without gaps")
    sizes = [len(file[f"{part}_labels"]) for part in parts]
    class_names = class_names or tuple(str(c) for c in range(int(y.max(initial=-1)) + 1))
    return Dataset(
        name=name,
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        source=torch.from_numpy(_sources(file, parts, sizes)),
        is_test=torch.from_numpy(np.repeat([part == "test" for part in parts], sizes)),
        num_classes=len(class_names),
        class_names=class_names,
        about=str(file["about"]) if "about" in file else "",
    )


def _images(images: np.ndarray, part: str) -> np.ndarray:
    """[n, h, w] or [n, h, w, c] -> [n, c, h, w]."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise ValueError(f"{part}_images is {images.dtype} {list(images.shape)}, not uint8 [n, h, w] or [n, h, w, c]")
    return images[:, None] if images.ndim == 3 else np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _labels(labels: np.ndarray, part: str) -> np.ndarray:
    """[n] or [n, 1] -> [n] int64."""
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise ValueError(f"{part}_labels has {labels.shape[1]} columns: multi-label sets cannot be used")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{part}_labels is {labels.dtype}, not integers")
    return labels.reshape(-1).astype(np.int64)


def _sources(file: np.lib.npyio.NpzFile, parts: list[str], sizes: list[int]) -> np.ndarray:
    """Source numbers 0, 1, ... of all parts in the sorted order of the ids; zeros if the file has no sources."""
    sources = [file[f"{part}_source"].reshape(-1) for part in parts if f"{part}_source" in file]
    if not sources:
        return np.zeros(sum(sizes), dtype=np.int64)
    if [len(ids) for ids in sources] != sizes:
        raise ValueError("the _source arrays must have one id per image in every part")
    return np.unique(np.concatenate(sources), return_inverse=True)[1].astype(np.int64)

"""Data sets in MedMNIST's file layout: one `<name>.npz`.

train_images [n, h, w] or [n, h, w, c] uint8,     train_labels [n] or [n, 1] integers
or feature vectors [n, f] float32
val_..., test_...                                 the same, optional; test images are marked as such, validation
                                                  images may be used for training
train_source, val_source, test_source [n]         optional: writer, site or domain of each image (numbers or text)
about                                             optional note, shown beside every result

A file with other arrays is refused: an array with a damaged name must not be ignored. Pickled objects are never loaded.
"""

import io
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pfl_core.data.dataset import Dataset
from pfl_core.data.registry import COMBINED, REFUSED, SINGLE, data_dir, is_name
from pfl_core.files import atomic_write

PARTS = ("train", "val", "test")
KINDS = ("images", "labels", "source")
MEMBERS = (*(f"{part}_{kind}" for part in PARTS for kind in KINDS), "about")
END_SIZE = 22  # bytes of the record at the end of a zip file, without its comment; bytes 10 and 11 count the members


def read_npz(path: Path, name: str, class_names: Sequence[str] = ()) -> Dataset:
    """The samples of a file, parts in the order train, val, test.

    Without `class_names` the classes are 0..largest label. Raises ValueError if the file is damaged or has another
    layout.
    """
    try:
        return _pool(_arrays(path), name, tuple(class_names))
    except Exception as error:  # zipfile, its decompressors and NumPy raise a dozen types for damaged bytes
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__  # may quote damaged bytes
        raise ValueError(
            f"{path} is damaged or not in MedMNIST's layout ({reason}); delete it and download or write it "
            "again, see data/README.md"
        ) from error


def write_npz(data: Dataset, file: str, folder: str | Path | None = None) -> Path:
    """Write a data set to ``file`` in the data folder, see ``Dataset.save``."""
    stem = file.removesuffix(".npz")
    if not is_name(stem):
        raise ValueError(f"{file!r} is not a file name for a data set; use letters, digits, - and _, e.g. 'mine.npz'")
    if stem in (*SINGLE, *COMBINED, *REFUSED):
        raise ValueError(f"{stem!r} is a known data set; choose another name for your own")
    if data.has_images and (set(data.mean), set(data.std)) != ({0.0}, {1.0}):
        raise ValueError(
            f"mean={data.mean}, std={data.std} are not part of a file; save the images without them and give "
            "`normalise` when they are loaded"
        )
    path = data_dir(folder) / f"{stem}.npz"
    x = data.x.permute(0, 2, 3, 1) if data.has_images else data.x.to(torch.float32)  # [n, h, w, c] or [n, f]
    members: dict[str, Any] = {}
    for part, chosen in (("train", ~data.is_test), ("test", data.is_test)):
        if chosen.any():
            kinds = zip(KINDS, (x, data.y, data.source), strict=True)
            members |= {f"{part}_{kind}": values[chosen].numpy() for kind, values in kinds}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **members, about=np.array(data.about))
    atomic_write(path, buffer.getvalue())
    return path


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of the file by name. Every member is read to its end, where its checksum (CRC-32) is compared.

    The archive's table of contents has no checksum: unknown names and a wrong number of members are errors.
    """
    arrays: dict[str, np.ndarray] = {}
    with path.open("rb") as opened, zipfile.ZipFile(opened) as archive:
        members = archive.infolist()
        opened.seek(-END_SIZE - len(archive.comment), os.SEEK_END)
        expected = int.from_bytes(opened.read(END_SIZE)[10:12], "little")
        if len(members) != expected:  # zipfile does not compare them
            raise ValueError(f"{len(members)} of {expected} members are listed")
        for info in members:
            name = info.filename.removesuffix(".npy")
            if name not in MEMBERS or name == info.filename:
                raise ValueError(f"the member {info.filename!r} is unknown; expected {', '.join(MEMBERS)}")
            if name in arrays:
                raise ValueError(f"two members are named {name}")
            with archive.open(info) as member:
                arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
                if member.read(1):
                    raise ValueError(f"{name} has bytes after its array")
    return arrays


def _pool(file: Mapping[str, np.ndarray], name: str, class_names: tuple[str, ...]) -> Dataset:
    parts = [part for part in PARTS if f"{part}_images" in file]
    if "train" not in parts:
        raise ValueError("no train_images")
    for member in file:
        part, _, kind = member.partition("_")
        if kind and part not in parts:
            raise ValueError(f"{member} without {part}_images")
    if missing := [part for part in parts if f"{part}_labels" not in file]:
        raise ValueError(f"{missing[0]}_images without {missing[0]}_labels")
    images, labels = ([read(file, part) for part in parts] for read in (_images, _labels))
    sizes = [len(y) for y in labels]
    x, y = np.concatenate(images), np.concatenate(labels)
    if y.max() >= len(y):  # otherwise a list of that many class names could fill the memory
        raise ValueError(f"a label is {y.max()}, with {len(y)} samples: labels are 0, 1, ... without gaps")
    class_names = class_names or tuple(str(c) for c in range(int(y.max()) + 1))
    return Dataset(
        name=name,
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        source=torch.from_numpy(_sources(file, parts, sizes)),
        is_test=torch.from_numpy(np.repeat([part == "test" for part in parts], sizes)),
        num_classes=len(class_names),
        class_names=class_names,
        about=_about(file),
    )


def _images(file: Mapping[str, np.ndarray], part: str) -> np.ndarray:
    """[n, h, w] or [n, h, w, c] -> [n, c, h, w]; features [n, f] as they are."""
    images = file[f"{part}_images"]
    if images.dtype == np.float32 and images.ndim == 2:
        return images
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise ValueError(
            f"{part}_images is {images.dtype} {list(images.shape)}, not uint8 [n, h, w] or [n, h, w, c], nor "
            "float32 [n, f]"
        )
    if not images.size and (part == "train" or len(images)):  # validation and test part may be empty
        raise ValueError(f"{part}_images is {list(images.shape)}: it has no pixels")
    return images[:, None] if images.ndim == 3 else np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _labels(file: Mapping[str, np.ndarray], part: str) -> np.ndarray:
    """[n] or [n, 1] -> [n] int64."""
    labels, count = file[f"{part}_labels"], len(file[f"{part}_images"])
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise ValueError(f"{part}_labels has {labels.shape[1]} columns: multi-label sets cannot be used")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{part}_labels is {labels.dtype}, not integers")
    if labels.shape not in ((count,), (count, 1)):
        raise ValueError(f"{part}_labels is {list(labels.shape)}, not [{count}], one entry per sample")
    return labels.reshape(-1).astype(np.int64)


def _sources(file: Mapping[str, np.ndarray], parts: list[str], sizes: list[int]) -> np.ndarray:
    """Source numbers 0, 1, ... of all parts in the sorted order of the ids; zeros if the file has no sources."""
    sources = [file[f"{part}_source"].reshape(-1) for part in parts if f"{part}_source" in file]
    if not sources:
        return np.zeros(sum(sizes), dtype=np.int64)
    if [len(ids) for ids in sources] != sizes:
        raise ValueError("the _source arrays must have one id per image in every part")
    ids = np.concatenate(sources)
    if ids.dtype.kind not in "biufUS" or (ids.dtype.kind == "f" and not np.isfinite(ids).all()):
        raise ValueError(f"the _source arrays are {ids.dtype}, not finite numbers or text")
    return np.unique(ids, return_inverse=True)[1].astype(np.int64)


def _about(file: Mapping[str, np.ndarray]) -> str:
    """The note, one text; "" if there is none."""
    about = file.get("about", np.array(""))
    if about.dtype.kind != "U" or about.size != 1:
        raise ValueError(f"about is {about.dtype} {list(about.shape)}, not one text")
    return str(about.reshape(()))

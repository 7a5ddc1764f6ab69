"""Data sets in MedMNIST's file layout: one `<name>.npz`.

train_images [n, h, w] or [n, h, w, c] uint8,     train_labels [n] or [n, 1] integers
or feature vectors [n, f] float32
val_..., test_...                                 the same, optional; test images are marked as such, validation
                                                  images may be used for training
train_source, val_source, test_source [n]         optional: writer, site or domain of each image (numbers or text)
class_names [c]                                   optional: text, the name of each class
mean, std [1], [c] or [f]                         optional: of pixels in 0..1 or of features, see ``Dataset``
about                                             optional note, shown beside every result

A file with other arrays is refused: an array with a damaged name must not be ignored. Pickled objects are never loaded.
"""

import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import torch

from pfl_core.data.arrays import BRIGHT, CHANNELS
from pfl_core.data.dataset import PLAIN, Dataset

PARTS = ("train", "val", "test")
KINDS = ("images", "labels", "source")
MEMBERS = (*(f"{part}_{kind}" for part in PARTS for kind in KINDS), "mean", "std", "class_names", "about")
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
END_SIZE = 22  # bytes of the record at the end of a zip file, without its comment; bytes 10 and 11 count the members


def read_npz(path: Path, name: str, class_names: Sequence[str] = ()) -> Dataset:
    """The samples of a file, parts in the order train, val, test.

    Without `class_names`, here or in the file, the classes are 0..largest label. Raises ValueError if the file is
    damaged or has another layout.
    """
    try:
        return _pool(_arrays(path), name, tuple(class_names))
    except Exception as error:  # zipfile, its decompressors and NumPy raise a dozen types for damaged bytes
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__  # may quote damaged bytes
        raise ValueError(
            f"{path} is damaged or not in MedMNIST's layout ({reason}); delete it and download or write it "
            "again, see data/README.md"
        ) from error


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of the file by name. The layout is checked by the headers, before any array is read.

    Every member is read to its end, where its checksum (CRC-32) is compared. The archive's table of contents has no
    checksum: unknown names and a wrong number of members are errors.
    """
    with path.open("rb") as opened, zipfile.ZipFile(opened) as archive:
        members = archive.infolist()
        opened.seek(-END_SIZE - len(archive.comment), os.SEEK_END)
        expected = int.from_bytes(opened.read(END_SIZE)[10:12], "little")
        if len(members) != expected:  # zipfile does not compare them
            raise ValueError(f"{len(members)} of {expected} members are listed")
        headers: dict[str, np.ndarray] = {}
        for info in members:
            name = info.filename.removesuffix(".npy")
            if name not in MEMBERS or name == info.filename:
                raise ValueError(f"the member {info.filename!r} is unknown; expected {', '.join(MEMBERS)}")
            if name in headers:
                raise ValueError(f"two members are named {name}")
            with archive.open(info) as member:
                headers[name] = _header(member, name, info.file_size)
        _parts(headers)
        arrays: dict[str, np.ndarray] = {}
        for info, name in zip(members, headers, strict=True):
            with archive.open(info) as member:
                arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
                member.read(1)  # compares the checksum
    return arrays


def _header(member: IO[bytes], name: str, size: int) -> np.ndarray:
    """Zeros with the shape and type of the array in a member of ``size`` bytes; they take no memory."""
    if (version := np.lib.format.read_magic(member)) not in HEADERS:
        raise ValueError(f"{name} has the format {version}")
    shape, _, dtype = HEADERS[version](member)
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which are never loaded; save it as numbers or text")
    length = math.prod(shape) * dtype.itemsize
    if size != member.tell() + length:
        raise ValueError(f"{name} has bytes after its array" if size > member.tell() + length else f"{name} is cut")
    return np.broadcast_to(np.zeros((), dtype), shape)


def _parts(file: Mapping[str, np.ndarray]) -> list[str]:
    """The parts in the file. Raises ValueError unless its arrays have the types and shapes of the layout."""
    parts = [part for part in PARTS if f"{part}_images" in file]
    if "train" not in parts:
        raise ValueError("no train_images")
    for member in file:
        part, _, kind = member.partition("_")
        if kind in KINDS and part not in parts:
            raise ValueError(f"{member} without {part}_images")
    for part in parts:
        if f"{part}_labels" not in file:
            raise ValueError(f"{part}_images without {part}_labels")
        images = file[f"{part}_images"]
        _check_images(images, part)
        _check_labels(file[f"{part}_labels"], len(images), part)
        if images.shape[1:] != (first := file["train_images"].shape[1:]):
            raise ValueError(f"{part}_images are {images.shape[1:]}, train_images {first}; they must match exactly")
    _check_text(file)
    return parts


def _pool(file: Mapping[str, np.ndarray], name: str, class_names: tuple[str, ...]) -> Dataset:
    parts = _parts(file)
    labels = [file[f"{part}_labels"].reshape(-1).astype(np.int64) for part in parts]
    sizes = [len(y) for y in labels]
    x, y = np.concatenate([_images(file[f"{part}_images"]) for part in parts]), np.concatenate(labels)
    if y.max() >= len(y):  # otherwise a list of that many class names could fill the memory
        raise ValueError(f"a label is {y.max()}, with {len(y)} samples: labels are 0, 1, ... without gaps")
    notes = [str(file["about"].reshape(())) if "about" in file else ""]
    if not (class_names := class_names or tuple(file.get("class_names", np.array(())).tolist())):
        class_names = tuple(str(c) for c in range(int(y.max()) + 1))
        if absent := sorted(set(range(len(class_names))) - set(y.tolist())):
            notes.append(f"no sample has label {absent[0]}")
        if x.dtype == np.uint8 and x.max() < BRIGHT:
            notes.append(f"no pixel is above {x.max()} of 255")
    return Dataset(
        name=name,
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        source=torch.from_numpy(_sources(file, parts, sizes)),
        is_test=torch.from_numpy(np.repeat([part == "test" for part in parts], sizes)),
        num_classes=len(class_names),
        class_names=class_names,
        about="; ".join(note for note in notes if note),
        mean=tuple(map(float, file.get("mean", PLAIN[0]))),
        std=tuple(map(float, file.get("std", PLAIN[1]))),
    )


def _check_images(images: np.ndarray, part: str) -> None:
    shape = f"{part}_images is {images.dtype} {list(images.shape)}"
    if images.ndim == 5 or (images.ndim == 4 and len({*images.shape[1:]}) == 1 and images.shape[3] not in CHANNELS):
        raise ValueError(f"{shape}: volumes cannot be used, only images and features")
    if images.dtype == np.float32 and images.ndim == 2:
        return
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise ValueError(f"{shape}, not uint8 [n, h, w] or [n, h, w, c], nor float32 [n, f]")
    if not images.size and (part == "train" or len(images)):  # validation and test part may be empty
        raise ValueError(f"{shape}: it has no pixels")


def _check_labels(labels: np.ndarray, count: int, part: str) -> None:
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise ValueError(f"{part}_labels has {labels.shape[1]} columns: multi-label sets cannot be used")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{part}_labels is {labels.dtype}, not integers")
    if labels.shape not in ((count,), (count, 1)):
        raise ValueError(f"{part}_labels is {list(labels.shape)}, not [{count}], one entry per sample")


def _check_text(file: Mapping[str, np.ndarray]) -> None:
    """Check the members that are not samples."""
    if "about" in file and (file["about"].dtype.kind != "U" or file["about"].size != 1):
        raise ValueError(f"about is {file['about'].dtype} {list(file['about'].shape)}, not one text")
    for member, kind, what in (("class_names", "U", "text"), ("mean", "f", "floats"), ("std", "f", "floats")):
        if member in file and (file[member].dtype.kind != kind or file[member].ndim != 1):
            raise ValueError(f"{member} is {file[member].dtype} {list(file[member].shape)}, not a list of {what}")


def _images(images: np.ndarray) -> np.ndarray:
    """[n, h, w] or [n, h, w, c] -> [n, c, h, w]; features [n, f] as they are."""
    if images.ndim == 2:
        return images
    return images[:, None] if images.ndim == 3 else np.ascontiguousarray(images.transpose(0, 3, 1, 2))


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

"""Data sets in image folders: Mini-ImageNet (one folder per class) and Office-Home (domain, then class).

Neither has an official split into training and test images. It is drawn here and depends only on the option `seed`. A
file `<name>.npz` with test images keeps its own split.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from annotated_types import Gt, Lt
from torch import Tensor

from pfl_core.data.arrays import hold_out
from pfl_core.data.dataset import Dataset, DatasetEntry, Published

SUFFIXES = {".jpg", ".jpeg", ".png"}


def read_folders(name: str, domains: Sequence[Path], short_side: int, crop: int) -> Dataset:
    """Read the class folders of one or more domains; domain k is source k, classes are numbered by sorted name.

    Each image is converted to RGB, resized to a short side of `short_side` pixels (bilinear) and cropped at the centre;
    x is [n, 3, crop, crop]. Raises ValueError if an image cannot be read or there is no image.
    """
    files = [(k, path) for k, domain in enumerate(domains) for path in _pictures(domain)]
    if not files:
        raise ValueError(f"{name}: no {'/'.join(sorted(SUFFIXES))} images in class folders; see data/README.md")
    classes = tuple(sorted({path.parent.name for _, path in files}))
    number = {c: i for i, c in enumerate(classes)}
    x = torch.empty(len(files), 3, crop, crop, dtype=torch.uint8)
    for i, (_, path) in enumerate(files):
        x[i] = read_picture(path, short_side, crop)
    return Dataset(
        name=name,
        x=x,
        y=torch.tensor([number[path.parent.name] for _, path in files]),
        source=torch.tensor([k for k, _ in files]),
        is_test=torch.zeros(len(files), dtype=torch.bool),
        num_classes=len(classes),
        class_names=classes,
    )


def _pictures(domain: Path) -> list[Path]:
    """Image files sorted by class folder, then by file name (case-sensitive)."""
    return sorted(path for path in domain.glob("*/*") if path.suffix.lower() in SUFFIXES)


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def read_picture(path: Path, short_side: int, crop: int) -> Tensor:
    """An image as [3, crop, crop] uint8."""
    from PIL import Image

    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # Pillow: a broken PNG is a SyntaxError
        raise ValueError(f"{path} is damaged or not an image ({error}); replace it") from error
    scale = short_side / min(image.size)  # the short side becomes ``short_side``, then the centre is cropped
    width, height = (max(crop, round(scale * side)) for side in image.size)
    left, top = (width - crop) // 2, (height - crop) // 2
    image = image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + crop, top + crop))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def mini_imagenet(folder: Path) -> Dataset:
    """100 classes of 600 images, 84x84: `mini_imagenet/<class>/*.jpg`."""
    return read_folders("mini_imagenet", [folder / "mini_imagenet"], short_side=84, crop=84)


def office_home(folder: Path) -> Dataset:
    """Four domains of the same 65 classes: `office_home/<domain>/<class>/*.jpg`; short side 256, centre crop 224."""
    return read_folders("office_home", _subfolders(folder / "office_home"), short_side=256, crop=224)


def hold_out_count(data: Dataset, *, test_per_class: int = 100, seed: int = 0) -> Dataset:
    """Mark `test_per_class` random images of each class as test (FedSelect gives no split; here 500 / 100)."""
    smallest = int(data.y.bincount(minlength=data.num_classes).min())
    if not data.is_test.any() and not 0 < test_per_class < smallest:
        raise ValueError(
            f"{data.name}: test_per_class={test_per_class} is outside 1..{smallest - 1}; "
            f"the smallest class has {smallest} images"
        )
    return _hold_out(data, lambda _size: test_per_class, seed)


def hold_out_share(data: Dataset, *, test_share: Annotated[float, Gt(0), Lt(1)] = 0.5, seed: int = 0) -> Dataset:
    """Mark a fraction of each class of each domain, rounded down, as test (FedSelect gives no split; here one half)."""
    return _hold_out(data, lambda size: math.floor(test_share * size), seed)


def _hold_out(data: Dataset, count: Callable[[int], int], seed: int) -> Dataset:
    """Mark ``count(n)`` of the n images of each class and source as test, unless test images are marked already."""
    if data.is_test.any():
        return data
    return replace(data, is_test=hold_out(torch.stack([data.source, data.y], 1), count, seed, data.name))


ENTRIES = {
    "mini_imagenet": DatasetEntry(
        where="Vinyals et al. 2016, from ImageNet; you must provide the images, see data/README.md",
        licence="ImageNet's terms: non-commercial research",
        size="60,000 images 3x84x84, 100 classes",
        read=mini_imagenet,
        files=("mini_imagenet/*/*",),
        finish=hold_out_count,
        published=Published(total=60_000),
    ),
    "office_home": DatasetEntry(
        where="Venkateswara et al. 2017 (hemanthdv.org); you must provide the images, see data/README.md",
        licence="non-commercial research",
        size="15,588 images (3x224x224 here) of 4 domains, 65 classes",
        read=office_home,
        files=("office_home/*/*/*",),
        finish=hold_out_share,
        published=Published(total=15_588),
    ),
}

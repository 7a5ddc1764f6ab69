"""Sets that are folders of pictures: Mini-ImageNet (a folder for each class) and Office-Home (domain, then class).

Neither has an official split into training and test images, so one is drawn here, always the same for a given `seed`
of the data. A file `<name>.npz` that has test images keeps its own.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pfl_core.data.dataset import Dataset, DatasetEntry
from pfl_core.seeding import generator

SUFFIXES = {".jpg", ".jpeg", ".png"}


def read_folders(name: str, domains: Sequence[Path], short_side: int, crop: int) -> Dataset:
    """Class folders of one or more domains; the domain becomes the source, class names are sorted over all domains.

    Each picture: RGB, short side to `short_side` (bilinear), centre crop of `crop` pixels. x is [n, 3, crop, crop].
    Raises ValueError if a picture cannot be read or there is none.
    """
    files = [(k, path) for k, domain in enumerate(domains) for path in _pictures(domain)]
    if not files:
        raise ValueError(f"{name}: no {'/'.join(sorted(SUFFIXES))} pictures in class folders; see data/README.md")
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
    """Sorted by class folder, then by file name; names are compared as they are written."""
    return sorted(path for path in domain.glob("*/*") if path.suffix.lower() in SUFFIXES)


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def read_picture(path: Path, short_side: int, crop: int) -> Tensor:
    """One picture as [3, crop, crop] uint8."""
    from PIL import Image

    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # Pillow: a broken PNG is a SyntaxError
        raise ValueError(f"{path} is damaged or no picture ({error}); replace it") from error
    scale = short_side / min(image.size)
    size = tuple(max(crop, round(scale * side)) for side in image.size)
    left, top = ((side - crop) // 2 for side in size)
    image = image.resize(size, Image.Resampling.BILINEAR).crop((left, top, left + crop, top + crop))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def mini_imagenet(folder: Path) -> Dataset:
    """100 classes of 600 pictures, 84x84: `mini_imagenet/<class>/*.jpg`."""
    return read_folders("mini_imagenet", [folder / "mini_imagenet"], short_side=84, crop=84)


def office_home(folder: Path) -> Dataset:
    """Four domains of the same 65 classes: `office_home/<domain>/<class>/*.jpg`; short side 256, centre crop 224."""
    return read_folders("office_home", _subfolders(folder / "office_home"), short_side=256, crop=224)


def hold_out_count(data: Dataset, *, test_per_class: int = 100, seed: int = 0) -> Dataset:
    """Marks `test_per_class` random images of every class as test (fedselect, section 8: 500 / 100)."""
    smallest = int(data.y.bincount(minlength=data.num_classes).min())
    if not data.is_test.any() and not 0 < test_per_class < smallest:
        raise ValueError(
            f"{data.name}: test_per_class={test_per_class} is outside 1..{smallest - 1}; "
            f"the smallest class has {smallest} images"
        )
    return _hold_out(data, lambda _size: test_per_class, seed)


def hold_out_share(data: Dataset, *, test_share: float = 0.5, seed: int = 0) -> Dataset:
    """Marks a share of each class of each domain as test, rounded down (fedselect, section 8: 0.5, option 0.4)."""
    if not 0 < test_share < 1:
        raise ValueError(f"{data.name}: test_share={test_share} is outside (0, 1); the default is 0.5")
    return _hold_out(data, lambda size: math.floor(test_share * size), seed)


def _hold_out(data: Dataset, count: Callable[[int], int], seed: int) -> Dataset:
    if data.is_test.any():
        return data
    is_test = torch.zeros_like(data.is_test)
    for k in data.source.unique().tolist():
        for c in range(data.num_classes):
            mine = torch.nonzero((data.source == k) & (data.y == c))[:, 0]
            order = torch.randperm(len(mine), generator=generator(seed, data.name, "test", k, c))
            is_test[mine[order[: count(len(mine))]]] = True
    return replace(data, is_test=is_test)


ENTRIES = {
    "mini_imagenet": DatasetEntry(
        where="Vinyals et al. 2016, cut from ImageNet; bring the pictures yourself, see data/README.md",
        licence="ImageNet's terms: non-commercial research",
        size="60,000 images 3x84x84, 100 classes",
        read=mini_imagenet,
        files=("mini_imagenet/*/*",),
        finish=hold_out_count,
    ),
    "office_home": DatasetEntry(
        where="Venkateswara et al. 2017 (hemanthdv.org); bring the pictures yourself, see data/README.md",
        licence="non-commercial research",
        size="15,588 pictures (3x224x224 here) of 4 domains, 65 classes",
        read=office_home,
        files=("office_home/*/*/*",),
        finish=hold_out_share,
    ),
}

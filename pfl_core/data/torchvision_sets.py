"""Data sets read and downloaded by torchvision: MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100, EMNIST (by class).

Their files are in torchvision's layout below the data folder. torchvision checks the MD5 sums of CIFAR at each reading,
those of the MNIST family only after a download.
"""

import os
import string
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_core.data.dataset import Dataset, DatasetEntry, Published

DIGITS = tuple(string.digits)
BY_CLASS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)  # EMNIST's and FEMNIST's 62 classes
CLOTHES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
OPTIONS: dict[str, dict[str, Any]] = {"EMNIST": {"split": "byclass"}}


def open_split(class_name: str, folder: Path, train: bool, download: bool = False) -> Any:
    """torchvision's data set object of the official training or test part."""
    from pfl_core.vision import torchvision

    reader = getattr(torchvision().datasets, class_name)
    return reader(root=str(folder), train=train, download=download, **OPTIONS.get(class_name, {}))


def read(folder: Path, name: str, class_name: str, class_names: tuple[str, ...] = ()) -> Dataset:
    """The training part followed by the test part. Default of `class_names`: torchvision's names.

    EMNIST's files contain transposed images; they are transposed back here. Raises ValueError if files are damaged.
    """
    try:
        splits = [open_split(class_name, folder, train) for train in (True, False)]
    except (RuntimeError, ValueError, TypeError, AssertionError, EOFError, LookupError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"{name}: the files below {folder / TORCHVISION_FILES[class_name][0]} are damaged ({reason}); delete them "
            f"and download them again with `pfl data {name}`"
        ) from error
    x = torch.cat([_images(split.data) for split in splits])
    y = torch.cat([torch.as_tensor(split.targets, dtype=torch.int64) for split in splits])
    class_names = class_names or tuple(splits[0].classes)
    return Dataset(
        name=name,
        x=x.transpose(2, 3).contiguous() if class_name == "EMNIST" else x,
        y=y,
        source=torch.zeros_like(y),
        is_test=torch.arange(len(y)) >= len(splits[0].targets),
        num_classes=len(class_names),
        class_names=class_names,
    )


def _images(images: Tensor | np.ndarray) -> Tensor:
    """[n, h, w] or [n, h, w, c] -> [n, c, h, w]."""
    x = torch.as_tensor(images)
    return x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()


def download(folder: Path, class_name: str) -> None:
    """Let torchvision download and check the archives in a temporary folder, then move the files into place."""
    folder.mkdir(parents=True, exist_ok=True)
    base = TORCHVISION_FILES[class_name][0]
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as temporary:
        open_split(class_name, Path(temporary), train=True, download=True)
        for pattern in TORCHVISION_FILES[class_name][1]:
            for path in Path(temporary, base).glob(pattern):
                (folder / base).mkdir(parents=True, exist_ok=True)
                os.replace(path, folder / base / path.name)


IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
EMNIST_IDX = tuple(f"emnist-byclass-{p}-{k}-ubyte" for p in ("train", "test") for k in ("images-idx3", "labels-idx1"))
TORCHVISION_FILES: dict[str, tuple[str, tuple[str, ...]]] = {  # torchvision class -> (folder, its files)
    "MNIST": ("MNIST/raw", IDX),
    "FashionMNIST": ("FashionMNIST/raw", IDX),
    "EMNIST": ("EMNIST/raw", EMNIST_IDX),
    "CIFAR10": ("cifar-10-batches-py", (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta")),
    "CIFAR100": ("cifar-100-python", ("train", "test", "meta")),
}

# ``pixels`` follows from the mean training and test pixels that are often quoted: 33.318421 and 33.791224 (MNIST),
# 72.940352 and 73.146567 (Fashion-MNIST), 120.70756512369792 (CIFAR-10, training) and the means of CIFAR-10's test
# channels divided by 255: 0.4942142800245097, 0.48513138901654346, 0.4504090927542889.
PUBLISHED = {
    "mnist": Published(
        counts=((60_000, 10_000),),
        shape=(1, 28, 28),
        per_class=(
            (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
            (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
        ),
        pixels=(1_567_298_545, 264_923_200),
    ),
    "fashion_mnist": Published(
        counts=((60_000, 10_000),),
        shape=(1, 28, 28),
        per_class=((6000,) * 10, (1000,) * 10),
        pixels=(3_431_114_169, 573_469_082),
    ),
    "cifar10": Published(
        counts=((50_000, 10_000),),
        shape=(3, 32, 32),
        per_class=((5000,) * 10, (1000,) * 10),
        pixels=(18_540_682_003, 3_733_375_634),
    ),
    "cifar100": Published(counts=((50_000, 10_000),), shape=(3, 32, 32), per_class=((500,) * 100, (100,) * 100)),
    "emnist": Published(counts=((697_932, 116_323),), shape=(1, 28, 28)),
}


def _entry(
    name: str, class_name: str, class_names: tuple[str, ...], where: str, licence: str, size: str
) -> DatasetEntry:
    base, files = TORCHVISION_FILES[class_name]
    return DatasetEntry(
        where=f"{where}, through torchvision",
        licence=licence,
        size=size,
        read=partial(read, name=name, class_name=class_name, class_names=class_names),
        files=tuple(f"{base}/{file}" for file in files),
        download=partial(download, class_name=class_name),
        class_names=class_names,
        published=PUBLISHED[name],
        checked_by_reader=class_name.startswith("CIFAR"),
    )


_UNSTATED = "none stated by its authors; cite Krizhevsky 2009"
ENTRIES = {
    name: _entry(name, class_name, class_names, where, licence, size)
    for name, class_name, class_names, where, licence, size in (
        (
            "mnist",
            "MNIST",
            DIGITS,
            "LeCun, Cortes, Burges",
            "CC BY-SA 3.0",
            "60,000 + 10,000 images 1x28x28, 10 classes",
        ),
        ("fashion_mnist", "FashionMNIST", CLOTHES, "Zalando", "MIT", "60,000 + 10,000 images 1x28x28, 10 classes"),
        ("cifar10", "CIFAR10", OBJECTS, "Krizhevsky", _UNSTATED, "50,000 + 10,000 images 3x32x32, 10 classes"),
        ("cifar100", "CIFAR100", (), "Krizhevsky", _UNSTATED, "50,000 + 10,000 images 3x32x32, 100 classes"),
        (
            "emnist",
            "EMNIST",
            BY_CLASS,
            "Cohen et al.; NIST",
            "none stated",
            "697,932 + 116,323 images 1x28x28, 62 classes",
        ),
    )
}

"""Data sets by their content: built-in ones, and every reader on small files that are written here."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from pfl_core.data import CORRUPTIONS, NORMALISE, Dataset, corrupt, load
from pfl_core.data.dataset import finished, resized, with_channels
from pfl_core.vision import torchvision
from tests.data.conftest import cifar_files, idx_files, npz_file, some_images
from tests.data.test_femnist import leaf
from tests.data.test_folders import picture
from tests.golden.digest import Numbers, checksum, digest

Write = Callable[[Path], object]  # puts files into a data folder
EMNIST = ("emnist-byclass-train", "emnist-byclass-test")


def mnist_like(base: str, prefixes: tuple[str, str] = ("train", "t10k")) -> Write:
    return lambda folder: idx_files(
        folder / base / "raw", prefixes, some_images(8, 28, 28), np.array([3, 1, 4, 1, 5, 9, 2, 6])
    )


def leaf_json(folder: Path) -> None:
    """Pixels are not whole numbers of 255ths, so that they are rounded."""
    for part, users in (("train", {"f01": [1, 2, 61], "f00": [5, 5], "f02": [0, 3, 9, 9]}), ("test", {"f00": [7]})):
        (folder / "femnist" / part).mkdir(parents=True)
        found = json.loads(leaf(users))
        for user in found["user_data"].values():
            user["x"] = (0.997 * np.array(user["x"])).tolist()
        (folder / "femnist" / part / "all_data_0.json").write_text(json.dumps(found), encoding="utf-8")


def pictures(*classes: str, side: int) -> Write:
    """Three pictures in each of these folders, of different heights."""

    def write(folder: Path) -> None:
        for k, name in enumerate(classes):
            for i in range(3):
                picture(folder / name / f"{i}.png", side + 2 * i + k, side + 3)

    return write


def combined(folder: Path) -> None:
    """Of one size: resized bytes are rounded floats, which "resize" looks at."""
    npz_file(folder, "mnist", train=60, test=30, shape=(32, 32), classes=10)
    npz_file(folder, "cifar10", train=80, test=40, shape=(32, 32, 3), classes=10)


def medical(name: str, *colour: int) -> Write:
    val = {"val_images": some_images(2, 28, 28, *colour), "val_labels": np.array([[0], [1]])}
    return lambda folder: npz_file(folder, name, train=12, shape=(28, 28, *colour), classes=9, **val)


def sources(folder: Path) -> None:
    ids = {"train_source": np.array(list("caacca")), "test_source": np.array(list("bbca"))}
    npz_file(folder, "mine", shape=(5, 4, 3), about=np.array("text"), **ids)


def nothing(folder: Path) -> None:
    pass


SETS: dict[str, tuple[str, Write, dict]] = {  # component -> name, its files, options
    "digits": ("digits", nothing, {}),
    "fashion_small": ("fashion_small", nothing, {}),
    "synthetic_32k": ("synthetic_32k", nothing, {}),
    "synthetic_3200": ("synthetic_3200", nothing, {}),
    "npz": ("mine", sources, {}),
    "mnist": ("mnist", mnist_like("MNIST"), {}),
    "fashion_mnist": ("fashion_mnist", mnist_like("FashionMNIST"), {}),
    "emnist": ("emnist", mnist_like("EMNIST", EMNIST), {}),
    "femnist": ("femnist", leaf_json, {"writer_share": 0.7}),
    "mini_imagenet": ("mini_imagenet", pictures("mini_imagenet/b", "mini_imagenet/a", side=80), {"test_per_class": 1}),
    "office_home": (
        "office_home",
        pictures("office_home/Art/b", "office_home/Art/a", "office_home/Clipart/a", side=20),
        {"test_share": 0.4},
    ),
    "medmnist": ("organamnist", medical("organamnist"), {}),
    "medmnist, colour": ("pathmnist", medical("pathmnist", 3), {}),
    "combine": ("cifar_mnist", combined, {"samples_per_class": [5, 2]}),
    "combine, by plus": ("cifar10+mnist", combined, {"channels": 1}),
}
CIFAR = {"cifar10": ("CIFAR10", "labels", 10), "cifar100": ("CIFAR100", "fine_labels", 100)}
WORK = ("corrupt", "prepare", "resize")  # on pictures that have been read


def wanted() -> tuple[str, ...]:
    return (*SETS, *CIFAR, *WORK)


def component(text: str) -> str:
    return f"data {text.partition(',')[0]}"


def numbers(text: str) -> Numbers:
    if text in WORK:
        return {"corrupt": corrupted, "prepare": prepared, "resize": sized}[text]()
    with tempfile.TemporaryDirectory() as folder:
        if text in SETS:
            name, write, options = SETS[text]
            write(Path(folder))
            return content(load(name, folder=folder, **options))
        reader = getattr(torchvision().datasets, CIFAR[text][0])
        with patch.multiple(reader, **cifar_files(Path(folder), *CIFAR[text])):  # which checks MD5 sums
            return content(load(text, folder=folder))


def content(data: Dataset) -> Numbers:
    """Exact where samples are bytes; features are computed in floats, so that their last bits may differ."""
    found = {name: checksum(getattr(data, name).numpy().tobytes()) for name in ("y", "source", "is_test")}
    x = {"x": checksum(data.x.numpy().tobytes())} if data.has_images else digest(data.x, "x")
    about = repr((data.name, data.num_classes, data.class_names, data.about, data.mean, data.std))
    return found | x | {"shape": list(data.x.shape), "about": checksum(about.encode())}


def photo(channels: int = 3, side: int = 6) -> torch.Tensor:
    """[1, c, side, side] bytes."""
    stream = torch.Generator().manual_seed(channels)
    return torch.randint(0, 256, (1, channels, side, side), dtype=torch.uint8, generator=stream)


def hexed(x: torch.Tensor) -> str:
    return x.contiguous().numpy().tobytes().hex()


def corrupted() -> Numbers:
    """All bytes of one picture: a float near a half is rounded up on one processor and down on another."""
    found = {}
    for kind in CORRUPTIONS:
        for severity in range(1, 6):
            stream = torch.Generator().manual_seed(severity)
            found[f"{kind} {severity}, bytes"] = hexed(corrupt(photo(), kind, severity, stream))
    return found


def prepared() -> Numbers:
    """What the network sees, float32."""
    found = {}
    for name in NORMALISE:
        data = Dataset("photo", photo(), *(torch.zeros(1, dtype=torch.int64),) * 2, torch.zeros(1).bool(), 1, ("0",))
        data = finished(data, name, None, None)
        found |= digest(data.prepare(data.x), name)
    return found


def sized() -> Numbers:
    """To other sizes and channels."""
    x = photo()
    return {f"{size}, bytes": hexed(resized(x, size)) for size in (5, 13)} | {
        "grey, bytes": hexed(with_channels(x, 1)),
        "colour, bytes": hexed(with_channels(photo(1), 3)),
    }

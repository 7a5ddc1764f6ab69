"""Data sets that cannot be downloaded here: preset paper on small files in their official layouts, for a round.

Network, training and partition are the paper's. The number of images, and of clients where it follows from the data,
are smaller. FedPeWS has two rounds, one of them with its masks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pfl_core.data import data_dir
from pfl_core.papers import paper
from pfl_core.runs import execute
from pfl_core.vision import torchvision
from tests.data.conftest import idx_files, npz_file, some_images
from tests.data.test_femnist import leaf
from tests.data.test_folders import picture

Write = Callable[[Path], object]  # puts files into a data folder


def image_folders(*classes: str, images: int, side: int) -> Write:
    def write(folder: Path) -> None:
        for name in classes:
            for i in range(images):
                picture(folder / name / f"{i}.jpg", side, side + 4)

    return write


def medical(*names: str, images: int = 60, colour: tuple[int, ...] = (), classes: int = 3) -> Write:
    """MedMNIST's files, with validation images, which this project does not use."""

    def write(folder: Path) -> None:
        val = {"val_images": some_images(3, 28, 28, *colour), "val_labels": np.zeros((3, 1), dtype=np.uint8)}
        for name in names:
            npz_file(folder, name, train=images, test=images // 2, shape=(28, 28, *colour), classes=classes, **val)

    return write


def emnist(folder: Path) -> None:
    labels = np.arange(3_100) % 62  # a tenth of them is used
    prefixes = ("emnist-byclass-train", "emnist-byclass-test")
    idx_files(folder / "EMNIST" / "raw", prefixes, some_images(len(labels), 28, 28), labels)


def femnist(folder: Path) -> None:
    """40 writers in two files. The paper uses 15 % of the writers."""
    for part in range(2):
        users = {f"f{20 * part + k:04}": [(k + i) % 62 for i in range(8)] for k in range(20)}
        path = folder / "femnist" / "train" / f"all_data_{part}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(leaf(users), encoding="utf-8")


def path_oct_tissue(folder: Path) -> None:
    medical("pathmnist", images=90, colour=(3,), classes=9)(folder)
    medical("octmnist", classes=4)(folder)
    medical("tissuemnist", images=80, classes=8)(folder)


def cifar100(folder: Path) -> None:
    """In this project's own layout; a test of the reader has the official one."""
    npz_file(folder, "cifar100", train=400, test=100, shape=(32, 32, 3), classes=100)


@dataclass(frozen=True)
class Case:
    paper: str
    setting: str
    write: Write
    overrides: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)  # of the partition


CASES = {
    "mini_imagenet": Case(
        "fedselect",
        "mini_imagenet",
        image_folders(*(f"mini_imagenet/n{k:02}" for k in range(10)), images=8, side=84),
        {"clients": 2, "data": {"test_per_class": 4}},
        {"train_per_class": 1, "test_per_class": 1},
    ),
    "office_home": Case(
        "fedselect",
        "office_home",
        image_folders(*(f"office_home/{d}/{c}" for d in ("Art", "Real World") for c in "ab"), images=2, side=230),
        {"clients": 2},
    ),
    "organamnist": Case("star_pfl", "axial", medical("organamnist", images=300, classes=11), {"clients": 4}),
    "organsmnist": Case("star_pfl", "sagital", medical("organsmnist", images=300, classes=11), {"clients": 4}),
    "path_oct_tissue": Case(
        "fedpews", "path_oct_tissue", path_oct_tissue, {"rounds": 2, "data": {"samples_per_class": [4, 2]}}
    ),
    "cifar100, classes": Case("fedpews", "classes of cifar100", cifar100, {"rounds": 2}),
    "cifar100": Case("pfedgate", "cifar100", cifar100, {"clients": 4}),
    "emnist": Case("pfedgate", "emnist", emnist, {"clients": 10}),
    "femnist": Case("pfedgate", "femnist", femnist, {"clients": 6}),
}


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the place of torchvision's ImageNet weights, which FedSelect starts from on Office-Home."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    resnets = torchvision().models
    file = tmp_path / "hub" / "checkpoints" / resnets.ResNet18_Weights.IMAGENET1K_V1.url.rpartition("/")[2]
    file.parent.mkdir(parents=True)
    torch.save(resnets.resnet18().state_dict(), file)


@pytest.mark.parametrize("name", CASES)
def test_a_short_run(name, folders, store, request):
    case = CASES[name]
    if name == "office_home":
        request.getfixturevalue("weights")
    data_dir().mkdir()
    case.write(data_dir())
    settings = paper(case.paper).settings
    whole = settings.spec(case.paper, preset="paper", setting=case.setting)
    small = {
        **{"rounds": 1, "eval_every": 1, "partition": {**whole.partition, **case.options}, **case.overrides},
        "data": {**whole.data, **case.overrides.get("data", {})},
    }
    record = execute(settings.spec(case.paper, preset="paper", setting=case.setting, overrides=small), store)
    assert (record.spec.model, record.spec.train) == (whole.model, whole.train)
    assert record.rounds == small["rounds"]
    losses = record.values("loss").to_numpy()
    assert losses.shape == (small["rounds"], record.spec.clients) and np.isfinite(losses).all()

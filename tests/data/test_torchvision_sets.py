"""torchvision's sets, read from small files in torchvision's layout."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pfl_core.data import catalogue, fetch, load
from pfl_core.data.dataset import UNOFFICIAL, Published
from pfl_core.data.torchvision_sets import ENTRIES, PUBLISHED
from pfl_core.vision import torchvision
from tests.helpers import one_line

from .conftest import md5, some_images

IDX = ("train", "t10k")


@pytest.mark.parametrize(("name", "base"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_family(folder, write_idx, name, base):
    images, labels = some_images(8, 28, 28), np.array([3, 1, 4, 1, 5, 9, 2, 6])
    write_idx(folder / base / "raw", IDX, images, labels)
    data = load(name)
    assert torch.equal(data.x[:, 0], torch.from_numpy(images))
    assert data.y.tolist() == labels.tolist() and data.num_classes == 10
    assert data.is_test.tolist() == [False] * 4 + [True] * 4


def test_class_names_are_those_of_torchvision():
    """The class names listed here, which do not need torchvision, may differ in case only."""
    sets = torchvision().datasets
    for name, theirs in (
        ("fashion_mnist", sets.FashionMNIST.classes),
        ("emnist", sets.EMNIST.classes_split_dict["byclass"]),
    ):
        listed = ENTRIES[name].class_names
        assert [c.lower() for c in listed] == [c.lower() for c in theirs]


def test_emnist_by_class_is_turned_upright(folder, write_idx):
    images = some_images(4, 28, 28)
    write_idx(
        folder / "EMNIST" / "raw", ("emnist-byclass-train", "emnist-byclass-test"), images, np.array([0, 10, 36, 61])
    )
    data = load("emnist")
    assert torch.equal(data.x[:, 0], torch.from_numpy(images).transpose(1, 2))
    assert [data.class_names[c] for c in data.y] == ["0", "A", "a", "z"] and data.num_classes == 62


@pytest.mark.parametrize(
    ("name", "class_name", "label_key", "classes", "train"),
    [("cifar10", "CIFAR10", "labels", 10, 10), ("cifar100", "CIFAR100", "fine_labels", 100, 2)],
)
def test_cifar(write_cifar, name, class_name, label_key, classes, train):
    write_cifar(class_name, label_key, classes)
    data = load(name)
    assert data.x.shape == (train + 2, 3, 32, 32) and data.num_classes == classes
    assert data.is_test.tolist() == [False] * train + [True] * 2
    rows = torch.from_numpy(some_images(2, 3072) // 8).reshape(2, 3, 32, 32)
    assert torch.equal(data.x[:2], rows) and data.y[:2].tolist() == [0, 1]
    assert data.class_names[1] == ("automobile" if name == "cifar10" else "class 1")


def test_a_file_whose_checksum_is_wrong_is_damaged(write_cifar):
    base = write_cifar("CIFAR100", "fine_labels", 100)
    (base / "train").write_bytes((base / "train").read_bytes() + b" ")
    with pytest.raises(
        ValueError, match=r"cifar100: the files below .*cifar-100-python are damaged .*`pfl data cifar100`"
    ):
        load("cifar100")
    assert fetch(["cifar100"], offline=True)[0]["status"] == "damaged"


@pytest.mark.parametrize("content", [b"", b"\0\0\x08\x03\0\0\0\x04", b"<html>not found</html>"])
def test_a_damaged_file_of_the_mnist_family(folder, write_idx, content):
    write_idx(folder / "MNIST" / "raw", IDX, some_images(4, 28, 28), np.arange(4))
    (folder / "MNIST" / "raw" / "train-images-idx3-ubyte").write_bytes(content)
    with one_line(r"mnist: the files below .* are damaged"):
        load("mnist")


@pytest.fixture
def mnist_online(server, write_idx, monkeypatch):
    """torchvision's MNIST with mirrors and checksums of small local files."""
    address, served = server
    images, labels = some_images(8, 28, 28), np.arange(8)
    write_idx(served / "mnist", IDX, images, labels, pack=True)
    reader = torchvision().datasets.MNIST
    names = [f"{part}-{kind}-ubyte.gz" for part in IDX for kind in ("images-idx3", "labels-idx1")]
    monkeypatch.setattr(reader, "mirrors", [f"{address}/mnist/"])
    monkeypatch.setattr(reader, "resources", [(name, md5(served / "mnist" / name)) for name in names])
    return images, served / "mnist" / names[0]


def test_download_leaves_only_what_is_read(folder, mnist_online):
    with pytest.raises(FileNotFoundError):
        load("mnist")  # offline by default
    data = load("mnist", offline=False)
    assert torch.equal(data.x[:, 0], torch.from_numpy(mnist_online[0]))
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert files == [
        f"MNIST/raw/{part}-{kind}-ubyte" for part in ("t10k", "train") for kind in ("images-idx3", "labels-idx1")
    ]


def test_a_download_with_a_wrong_checksum_leaves_nothing(folder, mnist_online):
    mnist_online[1].write_bytes(b"something else")
    with one_line("data set 'mnist' could not be downloaded", ConnectionError):
        load("mnist", offline=False)
    assert list(folder.rglob("*")) == []


def test_no_network(folder, monkeypatch):
    monkeypatch.setattr(torchvision().datasets.CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(ConnectionError, match="cifar10.*try again with a network, or put cifar10.npz into"):
        load("cifar10", offline=False)
    assert list(folder.iterdir()) == []


PLAIN = Published(counts=((6, 4),), shape=(1, 4, 4), per_class=((3, 3), (2, 2)))


@pytest.mark.parametrize(
    ("file", "about"),
    [
        ({}, ""),
        ({"test": 3}, "9 images"),
        ({"shape": (4, 5)}, "images of 1x4x5"),
        ({"train_labels": np.zeros(6, int)}, "other numbers of images per class"),
        ({"train_images": np.zeros((6, 4, 4), np.uint8)}, "other pixels"),
        ({"test_images": np.zeros((4, 4, 4), np.uint8)}, "other pixels"),
        ({"train_images": np.zeros((6, 4, 4), np.uint8), "about": np.array("JPEG copy")}, "JPEG copy"),
        ({"test": 3, "about": np.array("JPEG copy")}, "9 images; JPEG copy"),
    ],
)
def test_other_images_under_a_published_name_are_marked(write_npz, monkeypatch, file, about):
    """The classes of a published set are known, so that here labels 2 to 9 have no images."""
    official = write_npz("mnist")
    pixels = tuple(int(official[f"{part}_images"].sum(dtype=np.int64)) for part in ("train", "test"))
    per_class = tuple((*n, *[0] * 8) for n in PLAIN.per_class)
    entry = replace(ENTRIES["mnist"], published=replace(PLAIN, per_class=per_class, pixels=pixels))
    monkeypatch.setitem(catalogue.ENTRIES, "mnist", entry)
    write_npz("mnist", **file)
    marked = f"mnist, {UNOFFICIAL}: {about}" if about not in ("", "JPEG copy") else about
    assert load("mnist").note == marked


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar100", "emnist"])
def test_a_handmade_file_of_a_published_name_is_marked(write_npz, name):
    write_npz(name)
    assert load(name).note == f"{name}, {UNOFFICIAL}: 10 images"


def test_published_numbers_of_images_agree():
    for name, published in PUBLISHED.items():
        assert [sum(part) for part in published.per_class] in ([], list(published.counts[0])), name


def test_files_that_torchvision_has_verified_are_not_marked(write_cifar):
    write_cifar("CIFAR10", "labels", 10)
    assert load("cifar10").note == ""

"""MedMNIST: names against medmnist's info_table, small files, downloads from a server on this machine."""

import numpy as np
import pytest

from pfl_core.data import fetch, load, medmnist_sets, names
from pfl_core.data.dataset import UNOFFICIAL
from pfl_core.data.medmnist_sets import info_table
from pfl_core.data.registry import MEDMNIST, REFUSED

from .conftest import md5, some_images


def test_every_flat_single_label_set_of_medmnist_has_a_name():
    flat = {name: info for name, info in info_table().items() if not name.endswith("3d")}
    assert set(MEDMNIST) == {name for name, info in flat.items() if "multi-label" not in info["task"]}
    assert set(REFUSED) == set(info_table()) - set(MEDMNIST)


def test_the_table_is_medmnists():
    medmnist = pytest.importorskip("medmnist")
    assert info_table() == medmnist.INFO


@pytest.mark.parametrize("name", MEDMNIST)
def test_each_set_from_a_small_file(write_npz, name):
    info = info_table()[name]
    classes, colour = len(info["label"]), info["n_channels"] == 3
    val = dict(val_images=some_images(2, 28, 28, *[3] * colour), val_labels=np.array([[0], [1]]))
    write_npz(name, train=classes, test=4, shape=(28, 28, *[3] * colour), classes=classes, **val)
    data = load(name)
    assert data.x.shape == (classes + 6, info["n_channels"], 28, 28)
    assert data.num_classes == classes and data.class_names[1] == info["label"]["1"]
    assert int(data.is_test.sum()) == 4  # the validation part is not marked


def test_number_of_classes_does_not_depend_on_the_file(write_npz):
    write_npz("organsmnist", shape=(28, 28), classes=3)
    assert load("organsmnist").num_classes == 11


@pytest.mark.parametrize("counts", [(34_561 + 6_491, 17_778), (34_581 + 6_491, 17_778)])
def test_the_official_numbers_of_images_are_those_of_two_releases(counts):
    assert counts in medmnist_sets.image_counts("organamnist")
    assert medmnist_sets.image_counts("pathmnist")[0] == (89_996 + 10_004, 7_180)


def test_a_handmade_file_of_a_published_name_is_marked(write_npz, monkeypatch):
    write_npz("organamnist", train=400, test=280, shape=(28, 28), classes=11)
    assert load("organamnist").about == f"organamnist, {UNOFFICIAL}: 680 images"
    monkeypatch.setattr(medmnist_sets, "image_counts", lambda name: ((400, 280),))
    assert load("organamnist").about == "", "as many images as the published set"
    write_npz("organamnist", train=401, test=280, shape=(28, 28), classes=11, about="mine")
    assert load("organamnist").about == f"organamnist, {UNOFFICIAL}: 681 images; mine"


def test_multi_label_is_refused_even_where_the_file_is_here(write_npz):
    write_npz("chestmnist")
    with pytest.raises(ValueError, match="'chestmnist' is multi-label.*choose one of pathmnist"):
        load("chestmnist")
    assert "chestmnist" not in names()


@pytest.fixture
def online(server, monkeypatch, write_npz, folder):
    """breastmnist's info_table entry with the URL of a small local file."""
    address, served = server
    write_npz("breastmnist", shape=(28, 28))
    (folder / "breastmnist.npz").rename(served / "breastmnist.npz")
    monkeypatch.setitem(info_table()["breastmnist"], "url", f"{address}/breastmnist.npz?download=1")
    monkeypatch.setitem(info_table()["breastmnist"], "MD5", md5(served / "breastmnist.npz"))
    return served / "breastmnist.npz"


def test_download_and_verify(folder, online):
    assert fetch(["breastmnist"], offline=True)[0]["status"] == "missing"
    row = fetch(["breastmnist"])[0]
    assert row["status"] == "verified" and row["note"] == "6 + 4 samples 1x28x28"
    assert (folder / "breastmnist.npz").read_bytes() == online.read_bytes()
    online.unlink()
    assert load("breastmnist", offline=False).x.shape == (10, 1, 28, 28)  # not fetched a second time


def test_a_download_with_a_wrong_checksum_leaves_nothing(folder, online):
    online.write_bytes(b"something else")
    row = fetch(["breastmnist"])[0]
    assert row["status"] == "not downloaded" and "breastmnist" in row["note"] and "\n" not in row["note"]
    assert list(folder.iterdir()) == []


def test_no_network(folder, online):
    online.unlink()  # 404
    with pytest.raises(ConnectionError, match="'breastmnist' could not be downloaded from MedMNIST.*404"):
        load("breastmnist", offline=False)

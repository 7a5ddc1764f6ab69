"""Files in MedMNIST's layout, intact and damaged."""

import pickle
import re
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest
import torch

from pfl_core.data import load
from pfl_core.seeding import numpy_generator
from tests.helpers import one_line


def test_own_file_by_its_name(write_npz):
    made = write_npz("mine", about=np.array("a made-up set"))
    data = load("mine")
    assert data.name == "mine" and data.about == "a made-up set"
    assert data.x.shape == (10, 1, 4, 4) and data.num_classes == 2 and data.class_names == ("0", "1")
    assert data.y.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    assert data.is_test.tolist() == [False] * 6 + [True] * 4
    assert torch.equal(data.x[6:, 0], torch.from_numpy(made["test_images"]))
    assert not data.source.any()


def test_colour_comes_channels_first(write_npz):
    made = write_npz("mine", shape=(5, 4, 3))
    x = load("mine").x
    assert x.shape == (10, 3, 5, 4) and x.is_contiguous()
    assert x[2, 1, 4, 3] == made["train_images"][2, 4, 3, 1]


def test_validation_images_count_as_trainable(write_npz):
    write_npz("mine", val_images=np.zeros((3, 4, 4), dtype=np.uint8), val_labels=np.array([1, 1, 1]))
    data = load("mine")
    assert data.is_test.tolist() == [False] * 9 + [True] * 4
    assert data.y[6:9].tolist() == [1, 1, 1]


def test_the_test_part_may_be_missing(write_npz, folder):
    made = write_npz("mine")
    np.savez(folder / "mine.npz", train_images=made["train_images"], train_labels=made["train_labels"][:, 0])
    assert not load("mine").is_test.any()


def test_sources_are_numbered_over_all_parts(write_npz):
    write_npz("mine", train_source=np.array(list("caacca")), test_source=np.array(list("bbca")))
    assert load("mine").source.tolist() == [2, 0, 0, 2, 2, 0, 1, 1, 2, 0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (dict(train_images=np.zeros((6, 4, 4))), "train_images is float64"),
        (dict(train_images=np.zeros((6, 16), dtype=np.uint8)), r"train_images is uint8 \[6, 16\]"),
        (dict(train_labels=np.zeros((6, 14), dtype=np.uint8)), "multi-label"),
        (dict(train_labels=np.zeros(6)), "train_labels is float64"),
        (dict(train_labels=np.zeros(5, dtype=np.uint8)), r"train_labels is \[5\], not \[6\], one entry per sample"),
        (dict(train_labels=np.full(6, -1)), "labels run from -1"),
        (dict(train_source=np.arange(6)), "_source arrays"),
        (dict(test_images=np.zeros((4, 9, 9), dtype=np.uint8)), "must match exactly"),
        (dict(train_labels=np.zeros((2, 3, 1), dtype=np.uint8)), r"train_labels is \[2, 3, 1\], not \[6\]"),
        (dict(train_labels=np.array(0)), r"train_labels is \[\], not \[6\]"),
        (dict(train_labels=np.array([0, 1, 0, 1, 0, np.nan])), "train_labels is float64"),
        (dict(train_images=np.zeros((6, 4, 4), dtype=complex)), "train_images is complex128"),
        (dict(train_images=np.zeros((0, 4, 4), np.uint8), train_labels=np.zeros(0, int)), "has no pixels"),
        (dict(train_images=np.zeros((6, 0, 4), np.uint8)), "has no pixels"),
        (dict(val_labels=np.zeros(3, int)), "val_labels without val_images"),
        (dict(val_source=np.zeros(3, int)), "val_source without val_images"),
        (dict(val_images=np.zeros((3, 4, 4), np.uint8)), "val_images without val_labels"),
        (dict(train_source=np.zeros(6), test_source=np.array([0, 1, np.nan, 2])), "not finite numbers or text"),
        (dict(about=np.array({"pickled": "object"}, dtype=object)), "holds Python objects, which are never loaded"),
        (dict(train_source=np.array([None] * 6)), "holds Python objects, which are never loaded"),
        (dict(about=np.array(["two", "notes"])), r"about is <U5 \[2\], not one text"),
        (dict(about=np.array(b"bytes")), "about is .S5 .*not one text"),
        (dict(test_imagas=np.zeros(3)), "the member 'test_imagas.npy' is unknown; expected train_images"),
        (dict(class_name=np.array(["even", "odd"])), "the member 'class_name.npy' is unknown"),
        (dict(class_names=np.array([0, 1])), r"class_names is int64 \[2\], not a list of text"),
        (dict(class_names=np.array(["even"])), "labels run from 0 to 1; with num_classes=1"),
        (dict(mean=np.array(0.5)), r"mean is float64 \[\], not a list of floats"),
        (dict(std=np.array([0.0])), r"std=\(0.0,\); give numbers above 0"),
        (dict(train_images=np.zeros((6, 28, 28, 28), np.uint8)), "volumes cannot be used"),
        (dict(train_images=np.zeros((6, 28, 28, 28, 1), np.uint8)), "volumes cannot be used"),
    ],
)
def test_a_wrong_layout_is_named(write_npz, change, reason):
    write_npz("mine", **change)
    with pytest.raises(ValueError, match=rf"mine\.npz is damaged or not in MedMNIST's layout \(.*{reason}.*delete it"):
        load("mine")


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "one array", "no train", "flipped"])
def test_a_damaged_file_gives_one_line_with_its_name(write_npz, folder, damage):
    made, path = write_npz("mine", shape=(28, 28)), folder / "mine.npz"
    content = path.read_bytes()
    middle = len(content) // 2
    if damage == "one array":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    elif damage == "no train":
        np.savez(path, test_images=made["test_images"], test_labels=made["test_labels"])
    else:
        flipped = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
        path.write_bytes({"cut": content[:middle], "empty": b"", "text": b"<html>", "flipped": flipped}[damage])
    with one_line(f"{re.escape(str(path))}.*damaged"):
        load("mine")


def test_labels_beyond_the_known_classes_are_refused(write_npz):
    write_npz("mnist", classes=11, train=22)
    with pytest.raises(ValueError, match="labels run from 0 to 10; with num_classes=10"):
        load("mnist")


def archive(path, members):
    """A zip file with these (name, content) pairs, of which names may repeat."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as out:
        warnings.simplefilter("ignore")  # of repeated names
        for name, content in members:
            out.writestr(name, content)


@pytest.mark.parametrize("case", ["twice", "folder", "no suffix", "more bytes", "pickle", "huge"])
def test_members_that_numpy_would_not_write(write_npz, folder, case):
    write_npz("mine")
    path = folder / "mine.npz"
    with zipfile.ZipFile(path) as file:
        members = [(name, file.read(name)) for name in file.namelist()]
    images = members[0][1]
    changed, reason = {
        "twice": ([*members, members[0]], "two members are named train_images"),
        "folder": ([*members, ("more/", b"")], "the member 'more/' is unknown"),
        "no suffix": ([("train_images", images), *members[1:]], "the member 'train_images' is unknown"),
        "more bytes": ([(members[0][0], images + b"0"), *members[1:]], "train_images has bytes after its array"),
        "pickle": ([(members[0][0], pickle.dumps([1])), *members[1:]], "magic string is not correct"),
        "huge": ([(members[0][0], images.replace(b"(6, 4, 4)", b"(6000000, 4000000, 4)")), *members[1:]], ""),
    }[case]
    archive(path, changed)
    with one_line(rf"mine\.npz is damaged or not in MedMNIST's layout \(.*{reason}"):
        load("mine")


def test_a_file_is_refused_by_its_headers(folder):
    """200 MB of zeros are a tiny file."""
    zeros = np.broadcast_to(0.0, (10**6, 26))
    np.savez_compressed(folder / "mine.npz", train_images=zeros, train_labels=np.zeros(10**6, np.uint8))
    tracemalloc.start()
    with pytest.raises(ValueError, match="train_images is float64"):
        load("mine")
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()


def test_names_of_classes_and_scaling_are_read(write_npz):
    write_npz("mine", class_names=np.array(["even", "odd", "none"]), mean=np.array([0.25]), std=np.array([0.5]))
    data = load("mine")
    assert (data.class_names, data.mean, data.std) == (("even", "odd", "none"), (0.25,), (0.5,))
    assert data.about == ""


@pytest.mark.parametrize(
    ("change", "about"),
    [
        (
            dict(train_images=np.full((6, 4, 4), 16, np.uint8), test_images=np.zeros((4, 4, 4), np.uint8)),
            "no pixel is above 16 of 255",
        ),
        (dict(train_labels=np.full(6, 1), test_labels=np.full(4, 2)), "no sample has label 0"),
    ],
)
def test_an_unusual_file_is_read_as_it_is_with_a_note(write_npz, change, about):
    write_npz("mine", **change)
    assert load("mine").about == about


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_flipped_bits_change_no_data_unnoticed(write_npz, folder, save):
    """A damaged file is read with equal content, or refused in one line; whatever bit of it is wrong."""
    made, path = write_npz("mine", about=np.array("a made-up set")), folder / "mine.npz"
    save(path, **made)
    intact, content = load("mine"), path.read_bytes()
    stream = numpy_generator(0, "flips", save.__name__)
    refused = 0
    # Half of the flips are at the end, where the table of contents is.
    table = content.index(b"PK\1\2")
    positions = [*stream.integers(0, len(content), 100), *stream.integers(table, len(content), 100)]
    for position in positions:
        damaged = bytearray(content)
        damaged[position] ^= 1 << stream.integers(8)
        path.write_bytes(damaged)
        try:
            data = load("mine")
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            refused += 1
        else:
            assert torch.equal(data.x, intact.x) and torch.equal(data.y, intact.y)
            assert torch.equal(data.is_test, intact.is_test) and data.about == intact.about
    assert 100 < refused < 200

"""A user's arrays as a data set: nothing is read in another way without a note, nothing is misread."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from pfl_core.cli import main
from pfl_core.data import Dataset, load
from pfl_core.data import dataset as module
from pfl_core.seeding import numpy_generator
from tests.helpers import one_line

LABELS = [0, 1, 0, 1]


def pixels(values, **options) -> tuple[list[int], str]:
    """The four pixels of four images of one pixel, and the note."""
    data = Dataset.from_arrays(np.asarray(values).reshape(4, 1, 1), LABELS, **options)
    assert data.x.dtype == torch.uint8
    return data.x.flatten().tolist(), data.about


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("values", "expected", "note"),
    [
        ([0, 8, 12, 16], [0, 128, 191, 255], "pixels up to 16 were scaled to 0..255"),
        ([0, 1, 2, 15], [0, 17, 34, 255], "pixels up to 15 were scaled to 0..255"),
        ([3, 50, 100, 127], [6, 100, 201, 255], "pixels up to 127 were scaled to 0..255"),
        ([0, 16, 100, 128], [0, 16, 100, 128], ""),
        ([0, 16, 100, 255], [0, 16, 100, 255], ""),
    ],
)
def test_the_range_of_whole_numbers_decides_how_pixels_are_read(dtype, values, expected, note):
    assert pixels(np.array(values, dtype)) == (expected, note)


@pytest.mark.parametrize(
    ("values", "note"),
    [
        (np.array([0, 1, 1, 0], np.uint8), "pixels 0 and 1 were scaled to 0 and 255"),
        (np.array([False, True, True, False]), "pixels 0 and 1 were scaled to 0 and 255"),
        (np.array([0.0, 1.0, 1.0, 0.0]), ""),
    ],
)
def test_black_and_white_images(values, note):
    assert pixels(values) == ([0, 255, 255, 0], note)


def test_training_and_test_images_are_read_in_one_way():
    x, y = np.array([0, 16]).reshape(2, 1, 1), [0, 1]
    data = Dataset.from_arrays(x, y, test=(np.array([0, 8]).reshape(2, 1, 1), y), about="mine")
    assert data.x.flatten().tolist() == [0, 255, 0, 128]
    assert data.about == "mine; pixels up to 16 were scaled to 0..255"


@pytest.mark.parametrize(
    ("y", "expected", "names", "note"),
    [
        ([0, 1, 2, 1], [0, 1, 2, 1], "012", ""),
        ([False, True, True, False], [0, 1, 1, 0], "01", ""),
        ([1, 2, 3, 2], [0, 1, 2, 1], "123", "labels 1 to 3 were numbered 0 to 2"),
        ([0, 7, 7, 900], [0, 1, 1, 2], ("0", "7", "900"), "labels 0 to 900 were numbered 0 to 2"),
        (["b", "a", "c", "a"], [1, 0, 2, 0], "abc", "labels a to c were numbered 0 to 2"),
        (np.array([b"b", b"a", b"c", b"a"]), [1, 0, 2, 0], "abc", "labels a to c were numbered 0 to 2"),
        (np.array(list("baca"), object), [1, 0, 2, 0], "abc", "labels a to c were numbered 0 to 2"),
        (pd.Series(list("baca")), [1, 0, 2, 0], "abc", "labels a to c were numbered 0 to 2"),
        (pd.Categorical(list("baca")), [1, 0, 2, 0], "abc", "labels a to c were numbered 0 to 2"),
        (torch.tensor([[5], [6], [5], [5]]), [0, 1, 0, 0], "56", "labels 5 to 6 were numbered 0 to 1"),
    ],
)
def test_labels_are_numbered_and_their_names_are_kept(y, expected, names, note):
    data = Dataset.from_arrays(np.zeros((4, 2, 2)), y)
    assert (data.y.tolist(), data.class_names, data.about) == (expected, tuple(names), note)
    assert data.num_classes == len(names)


def test_a_class_that_only_test_samples_have_is_a_class():
    data = Dataset.from_arrays(np.zeros((2, 2, 2)), ["a", "c"], test=(np.zeros((1, 2, 2)), ["b"]))
    assert data.y.tolist() == [0, 2, 1] and data.class_names == ("a", "b", "c")


@pytest.mark.parametrize("kind", [list, np.array, pd.Series, lambda names: np.array(names, object)])
def test_names_of_sites(kind):
    data = Dataset.from_arrays(np.zeros((4, 2, 2)), LABELS, source=kind(["Oslo", "Bern", "Oslo", "Rome"]))
    assert data.source.tolist() == [1, 0, 1, 2]


def test_samples_keep_the_users_order():
    x = np.arange(40.0).reshape(20, 2)
    data = Dataset.from_arrays(x, np.arange(20) % 2, test_share=0.3)
    assert torch.equal(data.x, torch.from_numpy(x).float()) and int(data.is_test.sum()) == 6
    assert not data.is_test.sort().values.equal(data.is_test), "test samples lie among the others"


BAD = {
    "volumes": (np.zeros((4, 1, 3, 3, 3)), LABELS, "x has volumes"),
    "cubes": (np.zeros((4, 28, 28, 28)), LABELS, "neither the second nor the last axis can be the channels"),
    "several labels": (np.zeros((4, 3, 3)), np.zeros((4, 14), int), "y has 14 labels for each sample"),
    "negative labels": (np.zeros((4, 3, 3)), [0, -1, 1, 1], "y has 1 labels below 0, first -1"),
    "fractional labels": (np.zeros((4, 3, 3)), [0.5, 1, 1, 1], "y is float64; give integers 0, 1, ... or names"),
    "labels with gaps": (np.zeros((4, 3, 3)), np.array(["a", None, "b", "c"], object), "y is not an array of"),
    "wide pixels": (np.full((4, 3, 3), 4095), LABELS, "from 4095 to 4095; give bytes 0..255, or floats"),
    "negative pixels": (np.full((4, 3, 3), -0.5), LABELS, "from -0.5 to -0.5; give bytes 0..255, or floats"),
    "fractions above 1": (np.full((4, 3, 3), 1.5), LABELS, "from 1.5 to 1.5; give bytes 0..255, or floats"),
    "names as images": (np.full((4, 3, 3), "a"), LABELS, "x is <U1; give numbers"),
    "names as features": (np.full((4, 3), "a"), LABELS, "x is <U1; give numbers"),
    "beyond single precision": (np.full((4, 3), 1e300), LABELS, "x has features beyond 3.4e38"),
    "NaN": (np.array([[0.0], [np.nan], [0.0], [0.0]]), LABELS, "x has NaN or infinite values, first in sample 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_refused_in_one_line(case):
    x, y, message = BAD[case]
    with one_line(message):
        Dataset.from_arrays(x, y)


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ((np.zeros((1, 2, 5)), [0]), r"a sample of x is \[2, 2\], of test x \[2, 5\]"),
        ((np.full((1, 2, 2), 255), [0]), "images of float64 from 0.5 to 255.0"),
        ((np.zeros((1, 2, 2)), ["a"]), "some labels are numbers and some are text"),
    ],
)
def test_test_samples_must_fit(test, message):
    with pytest.raises(ValueError, match=message):
        Dataset.from_arrays(np.full((4, 2, 2), 0.5), LABELS, test=test)


def table(**options) -> Dataset:
    stream = numpy_generator(0, "table")
    x = stream.normal(size=(60, 3)) * [1, 1000, 0] + [0, 5e4, 7]  # the last column is constant
    return Dataset.from_arrays(x, np.arange(60) % 3, test_share=0.5, **options)


def test_features_are_standardised_by_training_samples():
    data = table()
    training = data.prepare(data.x[~data.is_test])
    torch.testing.assert_close(training.mean(dim=0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(training.std(dim=0, correction=0), torch.tensor([1.0, 1.0, 0.0]))
    assert abs(float(data.prepare(data.x[data.is_test])[:, 1].mean())) > 1e-3, "test samples decide nothing"
    raw = module.finished(data, "raw", None, None)
    assert torch.equal(raw.prepare(raw.x), data.x)
    again = module.finished(raw, "standard", None, None)
    assert (again.mean, again.std) == (data.mean, data.std)


def test_images_are_not_standardised():
    data = Dataset.from_arrays([Image.new("L", (2, 2), shade) for shade in (0, 9, 200, 255)], LABELS)
    assert (data.mean, data.std) == module.PLAIN
    with pytest.raises(ValueError, match="normalise='standard' is for features, 'arrays' has images"):
        module.finished(data, "standard", None, None)


def test_a_saved_data_set_is_read_as_it_was(folder):
    for name, data in (
        ("table", table()),
        ("names", Dataset.from_arrays(np.full((4, 2, 2), 0.5), list("baca"), test_share=0.5, about="mine")),
    ):
        data.save(f"{name}.npz")
        read, order = load(name), data.is_test.to(torch.uint8).argsort(stable=True)
        assert (read.class_names, read.about, read.mean, read.std) == (
            data.class_names,
            data.about,
            data.mean,
            data.std,
        )
        assert torch.equal(read.prepare(read.x), data.prepare(data.x[order])) and torch.equal(read.y, data.y[order])


def test_a_class_without_samples_is_kept_in_a_file(folder):
    data = replace(table(), num_classes=4, class_names=("0", "1", "2", "3"))
    data.save("mine")
    assert load("mine").class_names == data.class_names


def test_samples_that_a_file_cannot_hold_are_refused(folder):
    data = table()
    with one_line(r"mine.npz: a file has training samples.*float32 \[60, 1, 3\]"):
        replace(data, x=data.x[:, None], mean=module.PLAIN[0], std=module.PLAIN[1]).save("mine.npz")
    with one_line("60 of them for testing"):
        replace(data, is_test=torch.ones(60, dtype=torch.bool)).save("mine.npz")


@pytest.mark.parametrize(("normalise", "warned"), [("unit", True), ("standard", False)])
def test_columns_of_very_different_size_give_a_warning(write_npz, capsys, normalise, warned):
    data, arrays = table(), {}
    for part, chosen in (("train", ~data.is_test), ("test", data.is_test)):
        arrays |= {f"{part}_images": data.x[chosen].numpy(), f"{part}_labels": data.y[chosen].numpy()}
    write_npz("mine", **arrays)
    run = ["run", "fedavg", "--data", "mine", "--partition", "iid", "--clients", "2", "--model", "mlp", "--rounds", "1"]
    assert main([*run, "--set", f"data.normalise={normalise}"]) == 0
    assert ("data: columns differ by a factor of" in capsys.readouterr().err) == warned


@pytest.mark.parametrize("name", ["chestmnist", "organmnist3d", "synapsemnist3d"])
def test_volumes_and_several_labels_are_refused_in_words(folder, capsys, name):
    assert main(["run", "fedavg", "--data", name]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and ("has volumes" in lines[0] or "is multi-label" in lines[0])

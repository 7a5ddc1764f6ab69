"""Lookup by name: order, errors, and a user's data sets."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import pfl_core
from pfl_core.data import Dataset, data_dir, load

MODULE = """
import torch
from pfl_core.data import Dataset

def points(size=4, *, shift: float = 0.0):
    y = torch.arange(size) % 2
    return Dataset("points", y[:, None] + torch.full((size, 1), shift), y, y * 0, y > 1, 2, ("even", "odd"))

def needs(size):
    return points(size)

def resized(resize=2):
    return points(resize)

def wrong():
    return [1, 2, 3]

def exits():
    raise SystemExit(2)

def fails():
    return points().missing

NUMBER = 3
"""


@pytest.fixture
def outside(tmp_path_factory, monkeypatch):
    where = tmp_path_factory.mktemp("outside")
    (where / "their_data.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(where))
    monkeypatch.delitem(sys.modules, "their_data", raising=False)


def test_data_dir(monkeypatch, tmp_path):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    assert data_dir() == tmp_path and data_dir("other") == Path("other")
    for unset in ("", None):
        monkeypatch.delenv("PFL_DATA_DIR") if unset is None else monkeypatch.setenv("PFL_DATA_DIR", unset)
        assert data_dir() == Path(pfl_core.__file__).parents[1] / "data"


def test_npz_goes_before_the_owners_files_and_before_what_is_built_in(write_npz, write_idx, folder):
    write_idx(folder / "MNIST" / "raw", ("train", "t10k"), np.zeros((4, 28, 28)), np.arange(4))
    assert len(load("mnist").y) == 4
    write_npz("mnist")
    assert len(load("mnist").y) == 10
    write_npz("digits")
    assert len(load("digits").y) == 10
    assert len(load("digits", folder=folder / "elsewhere").y) == 1797


def test_the_error_of_a_missing_set_says_what_is_here_and_what_to_do(write_npz, folder):
    write_npz("mine")
    write_npz("organamnist")
    (folder / "office_home" / "art" / "bed").mkdir(parents=True)
    (folder / "office_home" / "art" / "bed" / "1.jpg").touch()
    with pytest.raises(FileNotFoundError) as caught:
        load("cifar10")
    line = str(caught.value)
    assert "mini_imagenet" not in line
    assert "\n" not in line
    for part in (
        "'cifar10'",
        "cifar10.npz or cifar-10-batches-py",
        str(folder),
        "digits",
        "mine",
        "organamnist",
        "office_home",
        "`pfl data cifar10`",
    ):
        assert part in line


def test_part_of_the_owners_files_is_not_enough(write_cifar):
    (write_cifar("CIFAR10", "labels", 10) / "data_batch_4").unlink()
    with pytest.raises(FileNotFoundError, match="'cifar10' is not here"):
        load("cifar10")


def test_sets_without_a_download(folder):
    with pytest.raises(FileNotFoundError, match="add its files, see data/README.md"):
        load("office_home", offline=False)


@pytest.mark.parametrize("name", ["cifar11", "CIFAR10", "", "../mine", "a/b", ".hidden", "organmnist4d"])
def test_unknown_names(write_npz, name):
    write_npz("mine")
    with pytest.raises(ValueError, match="^data set .* (is unknown|is not a valid name)") as caught:
        load(name)
    assert repr(name) in str(caught.value) and "\n" not in str(caught.value)


def test_unknown_options(write_npz):
    write_npz("mine")
    with pytest.raises(ValueError, match="'mine' has no option 'shrink'"):
        load("mine", shrink=2)


def test_a_users_data_set(outside):
    data = load("their_data:points", size=6, shift=0.5)
    assert isinstance(data, Dataset) and torch.equal(data.x[:, 0], data.y + 0.5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("no_such_module:f", {}, "no_such_module cannot be imported"),
        ("their_data:none", {}, "has no class or function 'none'"),
        ("their_data:NUMBER", {}, "has no class or function 'NUMBER'"),
        ("their_data:points", {"sise": 3}, "has no option 'sise'"),
        ("their_data:points", {"shift": "far"}, "shift='far': input should be a valid number"),
        ("their_data:needs", {}, "missing a required argument: 'size'"),
        ("their_data:wrong", {}, "returned a list; return a pfl_core.data.Dataset"),
        ("their_data:exits", {}, r"'their_data:exits' failed \(SystemExit: 2\); correct the function"),
        ("their_data:fails", {}, r"failed \(AttributeError: 'Dataset' object has no attribute 'missing'\)"),
        ("their_data:resized", {}, "each data set has the option resize; give yours another name"),
        ("their_data:points", {"size": 0}, r"x is \[0, 1\]; give at least one sample"),
    ],
)
def test_errors_of_a_users_data_set(outside, name, options, message):
    with pytest.raises(ValueError, match=message):
        load(name, **options)

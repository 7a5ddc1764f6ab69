"""FEMNIST from a file with writer ids, and from LEAF's JSON."""

import json

import numpy as np
import pytest
import torch

from pfl_core.data import load

from .conftest import some_images


@pytest.fixture
def twenty_writers(write_npz):
    """Writer k has k images, 0 to 19: 190 in all."""
    ids = np.repeat(np.arange(20), np.arange(20))
    return write_npz("femnist", train=190, test=0, shape=(28, 28), classes=62, train_source=ids, test_source=ids[:0])


def test_writers_with_few_images_are_dropped(twenty_writers):
    data = load("femnist")
    assert data.source.bincount().tolist() == list(range(3, 20))  # default: at least 3 images
    assert data.num_classes == 62
    assert load("femnist", min_images=1).source.bincount().tolist() == list(range(1, 20))


def test_a_share_of_the_writers_is_drawn_by_the_seed(twenty_writers):
    sizes = [load("femnist", writer_share=0.3, seed=seed).source.bincount().tolist() for seed in (0, 0, 1)]
    assert len(sizes[0]) == 5  # floor(0.3 * 17)
    assert sizes[0] == sizes[1] != sizes[2]
    assert set(sizes[0]) <= set(range(3, 20))


def test_images_stay_with_their_writer(twenty_writers):
    data = load("femnist", writer_share=0.5)
    given = torch.from_numpy(twenty_writers["train_images"])
    first = {k: given[sum(range(k))] for k in range(3, 20)}  # writer k's first image
    for k in range(int(data.source.max()) + 1):
        mine = data.x[data.source == k, 0]
        assert torch.equal(mine[0], first[len(mine)])


@pytest.mark.parametrize("options", [dict(writer_share=0.0), dict(writer_share=1.5), dict(min_images=50)])
def test_no_writer_left(twenty_writers, options):
    with pytest.raises(ValueError, match="femnist'?: "):
        load("femnist", **options)


def leaf(users: dict[str, list[int]]) -> str:
    """LEAF's file format: flat images with values in 0..1."""
    part = {user: {"x": (some_images(len(labels), 784) / 255).tolist(), "y": labels} for user, labels in users.items()}
    return json.dumps({"users": list(users), "num_samples": [len(v) for v in users.values()], "user_data": part})


def test_leafs_folders(folder):
    for part, users in (("train", {"f01": [1, 2, 61], "f00": [5, 5]}), ("test", {"f00": [7]})):
        (folder / "femnist" / part).mkdir(parents=True)
        (folder / "femnist" / part / "all_data_0.json").write_text(leaf(users), encoding="utf-8")
    data = load("femnist")
    assert data.y.tolist() == [1, 2, 61, 5, 5, 7] and data.source.tolist() == [1, 1, 1, 0, 0, 0]
    assert data.is_test.tolist() == [False] * 5 + [True]
    assert torch.equal(data.x[:3].flatten(1), torch.from_numpy(some_images(3, 784)))


def test_leafs_folder_without_a_split(folder):
    (folder / "femnist" / "all_data").mkdir(parents=True)
    (folder / "femnist" / "all_data" / "a.json").write_text(leaf({"w": [0, 1, 2]}), encoding="utf-8")
    assert not load("femnist").is_test.any()


@pytest.mark.parametrize("content", ["{", '{"user_data": {"w": {"x": [[0.5]], "y": [1]}}}', '{"users": []}'])
def test_a_damaged_json_is_named(folder, content):
    (folder / "femnist" / "train").mkdir(parents=True)
    (folder / "femnist" / "train" / "bad.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"bad\.json is damaged or not LEAF's JSON"):
        load("femnist")

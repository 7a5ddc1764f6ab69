"""Digits, the small Fashion-MNIST, and FedPeWS's synthetic sets against a table of their clusters."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
import torch

import pfl_core
from pfl_core.data import Dataset, builtin, load
from tests.data.write_fashion_small import reduced

# (x, y, angle in degrees) of the four clusters of each class
CLUSTERS = {
    0: [(-4.5, -4.5, 0), (4.5, -1.5, 135), (1.5, 1.5, 90), (-1.5, 4.5, 45)],
    1: [(-1.5, -4.5, 90), (-4.5, -1.5, 45), (4.5, 1.5, 0), (1.5, 4.5, 135)],
    2: [(1.5, -4.5, 0), (-1.5, -1.5, 135), (-4.5, 1.5, 90), (4.5, 4.5, 45)],
    3: [(4.5, -4.5, 90), (1.5, -1.5, 45), (-1.5, 1.5, 0), (-4.5, 4.5, 135)],
}
COVARIANCE = {  # its table as well
    0: [[0.1296, 0.0], [0.0, 0.0441]],
    90: [[0.0441, 0.0], [0.0, 0.1296]],
    45: [[0.08685, 0.04275], [0.04275, 0.08685]],
    135: [[0.08685, -0.04275], [-0.04275, 0.08685]],
}


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def test_digits_has_a_fixed_test_part_of_30_percent_of_each_class(digits):
    assert digits.x.shape == (1797, 1, 8, 8) and digits.num_classes == 10
    for c in range(10):
        mine = digits.y == c
        assert digits.is_test[mine].sum() == round(0.3 * int(mine.sum()))
    assert torch.equal(load("digits").is_test, digits.is_test)
    assert not digits.source.any()


def test_digits_fills_the_bytes_evenly(digits):
    levels = digits.x.unique()
    assert levels.tolist() == [round(255 * v / 16) for v in range(17)]


def test_digits_images_belong_to_their_labels(digits):
    x = digits.prepare(digits.x).flatten(1)
    centres = torch.stack([x[(digits.y == c) & ~digits.is_test].mean(0) for c in range(10)])
    guess = torch.cdist(x[digits.is_test], centres).argmin(1)
    assert (guess == digits.y[digits.is_test]).float().mean() > 0.85


def test_fashion_small_has_500_and_200_images_of_each_class():
    data = load("fashion_small")
    assert data.x.shape == (7000, 1, 14, 14) and data.num_classes == 10
    assert data.class_names[9] == "ankle boot" and "Fashion-MNIST" in data.about
    for part, size in ((~data.is_test, 500), (data.is_test, 200)):
        assert data.y[part].bincount().tolist() == [size] * 10


def test_fashion_small_is_small_and_a_wheel_has_it_and_its_licence():
    package = Path(pfl_core.__file__).parent
    project = tomllib.loads((package.parent / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["pfl_core"]
    licence = builtin.FASHION_SMALL.with_suffix(".LICENSE")
    assert builtin.FASHION_SMALL.stat().st_size < 1_000_000
    assert "Zalando" in licence.read_text(encoding="utf-8")
    for path in (builtin.FASHION_SMALL, licence):
        assert any(fnmatch(path.relative_to(package).as_posix(), pattern) for pattern in patterns), path


def test_a_changed_file_is_refused(tmp_path, monkeypatch):
    changed = tmp_path / "fashion_small.npz"
    changed.write_bytes(builtin.FASHION_SMALL.read_bytes() + b"0")
    monkeypatch.setattr(builtin, "FASHION_SMALL", changed)
    with pytest.raises(ValueError, match=r"fashion_small\.npz is damaged.*install"):
        load("fashion_small")


def test_reduced_images_are_means_of_2x2_of_the_first_of_each_class():
    """Class 1 comes first; sums of 1, 2 and 1020 are means of 0, 1 (a half goes up) and 255."""
    x = torch.zeros(3, 1, 2, 4, dtype=torch.uint8)
    x[0, 0, 0, 1], x[1, 0, 0, :2], x[2] = 1, 1, 255
    data = Dataset("three", x, torch.tensor([1, 0, 1]), torch.zeros(3).long(), torch.tensor([0, 0, 1]).bool(), 2, "ab")
    made = reduced(data)
    assert made["train_images"].tolist() == [[[0, 0]], [[1, 0]]] and made["train_labels"].tolist() == [1, 0]
    assert made["test_images"].tolist() == [[[255, 255]]] and made["test_labels"].tolist() == [1]


@pytest.mark.realdata("fashion_mnist")
def test_fashion_small_is_what_the_whole_set_is_reduced_to():
    with np.load(builtin.FASHION_SMALL) as file:
        for name, array in reduced(load("fashion_mnist")).items():
            assert np.array_equal(file[name], array), name


@pytest.mark.parametrize(("name", "per_cluster"), [("synthetic_32k", 2000), ("synthetic_3200", 200)])
def test_synthetic_has_the_expected_clusters(name, per_cluster):
    data = load(name)
    assert data.x.shape == (16 * per_cluster + 8000, 5) and data.x.dtype == torch.float32
    for part, size in ((~data.is_test, per_cluster), (data.is_test, 500)):
        x, y = data.x[part].double(), data.y[part]
        for c, clusters in CLUSTERS.items():
            mine = x[y == c, :2]
            nearest = torch.cdist(mine, torch.tensor(clusters, dtype=torch.float64)[:, :2]).argmin(1)
            assert nearest.bincount().tolist() == [size] * 4
            for k, (a, b, angle) in enumerate(clusters):
                points = mine[nearest == k]
                error = 4 * 0.36 / size**0.5  # four standard errors
                torch.testing.assert_close(points.mean(0), torch.tensor([a, b]).double(), atol=error, rtol=0)
                expected = torch.tensor(COVARIANCE[angle], dtype=torch.float64)
                torch.testing.assert_close(points.T.cov(), expected, atol=6 * 0.13 / size**0.5, rtol=0)


def test_synthetic_features_are_x_y_and_their_products():
    x = load("synthetic_3200").x
    a, b = x[:, 0], x[:, 1]
    torch.testing.assert_close(x[:, 2:], torch.stack([a * a, b * b, a * b], dim=1))


def test_the_two_synthetic_sets_share_their_test_points_and_nothing_else():
    large, small = load("synthetic_32k"), load("synthetic_3200")
    assert torch.equal(large.x[large.is_test], small.x[small.is_test])
    train, test = (set(map(tuple, small.x[part].tolist())) for part in (~small.is_test, small.is_test))
    assert len(train) == 3200 and len(test) == 8000
    assert not train & test
    assert not train & set(map(tuple, large.x[~large.is_test].tolist()))


def test_the_optimal_classifier_makes_no_error():
    """A classifier that knows the 16 Gaussians is correct on the whole test set."""
    data = load("synthetic_32k")
    x, y = data.x[data.is_test, :2].double(), data.y[data.is_test]
    scores = []
    for c in range(4):
        each = []
        for a, b, angle in CLUSTERS[c]:
            away = x - torch.tensor([a, b])
            precision = torch.linalg.inv(torch.tensor(COVARIANCE[angle], dtype=torch.float64))
            each.append(-((away @ precision) * away).sum(1))
        scores.append(torch.stack(each).amax(0))
    assert torch.equal(torch.stack(scores).argmax(0), y)


@pytest.mark.parametrize("name", ["digits", "fashion_small", "synthetic_32k"])
def test_the_seed_of_a_run_does_not_change_the_data(name):
    with pytest.raises(ValueError, match=f"data set '{name}' has no option 'seed'"):
        load(name, seed=1)

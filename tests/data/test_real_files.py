"""Checks of the real files, where they exist."""

import pytest
import torch

from pfl_core.data import load

MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.realdata("mnist")
def test_mnist_has_the_official_class_counts():
    data = load("mnist")
    assert data.y[~data.is_test].bincount().tolist() == MNIST_TRAIN
    assert data.y[data.is_test].bincount().tolist() == MNIST_TEST
    assert data.x.shape == (70000, 1, 28, 28)
    train = data.x[~data.is_test]
    assert train.sum(dtype=torch.int64).item() / train.numel() / 255 == pytest.approx(0.1307, abs=1e-4)


@pytest.mark.realdata("fashion_mnist")
def test_fashion_mnist_is_balanced():
    data = load("fashion_mnist")
    assert data.y[~data.is_test].bincount().tolist() == [6000] * 10
    assert data.y[data.is_test].bincount().tolist() == [1000] * 10


@pytest.mark.realdata("cifar10")
def test_cifar10_has_the_known_channel_means():
    data = load("cifar10")
    assert data.y[~data.is_test].bincount().tolist() == [5000] * 10
    assert data.y[data.is_test].bincount().tolist() == [1000] * 10
    means = data.x[~data.is_test].sum((0, 2, 3), dtype=torch.int64) / (50000 * 32 * 32 * 255)
    assert means.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-3)


@pytest.mark.realdata("mnist", "cifar10")
def test_cifar_mnist_has_the_papers_size():
    data = load("cifar_mnist", normalise="half")
    assert int((~data.is_test).sum()) == 8000 and int(data.is_test.sum()) == 4000
    assert data.source.bincount().tolist() == [6000, 6000] and data.x.shape[1:] == (3, 32, 32)


@pytest.mark.realdata("mnist", "fashion_mnist", "cifar10")
def test_these_files_count_as_the_published_images():
    assert load("mnist").note == load("fashion_mnist").note == ""
    assert load("cifar10").note == load("cifar10").about

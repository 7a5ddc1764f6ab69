"""Combinations: sources, label offsets, sizes, and samples per class."""

import numpy as np
import pytest
import torch

from pfl_core.data import checksum, load


@pytest.fixture
def mnist_and_cifar(write_npz):
    return (
        write_npz("mnist", train=60, test=30, shape=(28, 28), classes=10),
        write_npz("cifar10", train=80, test=40, shape=(32, 32, 3), classes=10, about=np.array("a copy")),
    )


def test_cifar_mnist(mnist_and_cifar):
    """Client 1 (source 0) has MNIST; CIFAR-10 has the labels 0..9, MNIST 10..19."""
    data = load("cifar_mnist", samples_per_class=None)
    assert data.x.shape == (210, 3, 32, 32) and data.num_classes == 20
    assert data.source.bincount().tolist() == [90, 120]
    assert data.y[data.source == 0].unique().tolist() == list(range(10, 20))
    assert data.y[data.source == 1].unique().tolist() == list(range(10))
    assert data.class_names[0] == "cifar10 airplane" and data.class_names[13] == "mnist 3"
    assert int(data.is_test.sum()) == 70 and data.about == "cifar10: a copy"
    mnist = load("mnist", resize=32, channels=3)
    assert torch.equal(data.x[data.source == 0], mnist.x)
    assert torch.equal(data.x[data.source == 1], load("cifar10").x)


def test_samples_are_drawn_from_each_class_and_part(mnist_and_cifar):
    data = load("cifar_mnist", samples_per_class=[5, 2])
    assert data.y[~data.is_test].bincount().tolist() == [5] * 20
    assert data.y[data.is_test].bincount().tolist() == [2] * 20
    again, other = (load("cifar_mnist", samples_per_class=(5, 2), seed=seed) for seed in (0, 1))
    assert torch.equal(again.x, data.x) and not torch.equal(other.x, data.x)
    whole = {v.numpy().tobytes() for v in load("cifar10").x[load("cifar10").is_test]}
    drawn = [v.numpy().tobytes() for v in data.x[data.is_test & (data.source == 1)]]
    assert len(set(drawn)) == 20 and set(drawn) <= whole


def test_the_default_is_400_and_200_of_each_class(mnist_and_cifar):
    with pytest.raises(ValueError, match=r"samples_per_class=\(400, 200\): class 0 of 'mnist' has only 6 training"):
        load("cifar_mnist")
    with pytest.raises(ValueError, match="class 0 of 'mnist' has only 3 test images"):
        load("cifar_mnist", samples_per_class=[6, 4])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (400, "=400: input should be a valid array"),
        ([400], r"=\[400\]: item 1: field required"),
        ([0, 0], r"=\[0, 0\] selects nothing; give e.g. \[400, 200\]"),
        ([-1, 2], r"=\[-1, 2\]: item 0: input should be greater than or equal to 0"),
        (["a", "b"], "item 0: input should be a valid integer"),
    ],
)
def test_invalid_samples_per_class(mnist_and_cifar, wrong, message):
    with pytest.raises(ValueError, match=message):
        load("cifar_mnist", samples_per_class=wrong)


def test_path_oct_tissue(write_npz):
    for name, classes, shape in (
        ("pathmnist", 9, (28, 28, 3)),
        ("octmnist", 4, (28, 28)),
        ("tissuemnist", 8, (28, 28)),
    ):
        write_npz(name, train=2 * classes, test=classes, shape=shape, classes=classes)
    data = load("path_oct_tissue", samples_per_class=None)
    assert data.x.shape == (63, 3, 32, 32) and data.num_classes == 21
    labels = [data.y[data.source == k].unique().tolist() for k in range(3)]
    assert labels == [list(range(9)), list(range(9, 13)), list(range(13, 21))]
    assert data.class_names[9] == "octmnist choroidal neovascularization"


def test_any_sets_by_plus(mnist_and_cifar):
    data = load("cifar10+mnist+digits", channels=1, normalise="half")
    assert data.x.shape == (120 + 90 + 1797, 1, 32, 32) and data.num_classes == 30
    assert data.source.bincount().tolist() == [120, 90, 1797]
    assert data.y[data.source == 1].min() == 10 and data.class_names[10] == "mnist 0"
    assert data.mean == (0.5,)
    assert load("digits+mnist").x.shape[1:] == (1, 28, 28)  # grey stays grey where no part has colour


def test_a_part_with_several_sources_keeps_them_apart(write_npz):
    write_npz("sites", train_source=np.arange(6) % 3, test_source=np.zeros(4))
    assert load("sites+digits").source.bincount().tolist() == [6, 2, 2, 1797]


def test_what_cannot_be_combined(mnist_and_cifar):
    with pytest.raises(ValueError, match="'synthetic_3200' holds features"):
        load("mnist+synthetic_3200")
    with pytest.raises(ValueError, match="names a part twice"):
        load("mnist+mnist")
    with pytest.raises(ValueError, match="'cifar_mnist' has no option 'test_share'"):
        load("cifar_mnist", test_share=0.5)
    with pytest.raises(ValueError, match="'nothing' is unknown"):
        load("mnist+nothing")


def test_a_missing_part_is_named(write_npz):
    write_npz("mnist")
    with pytest.raises(FileNotFoundError, match="'cifar10' is not here"):
        load("cifar_mnist")
    with pytest.raises(FileNotFoundError, match="'cifar10' is not here"):
        checksum("cifar_mnist")

"""IID, by source, by class, and a fixed number of classes per client."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_core.partition import partition


@given(seed=st.integers(0, 99), num_clients=st.integers(1, 9))
@settings(max_examples=20, deadline=None)
def test_iid_uses_everything_and_sizes_differ_by_one_at_most(pool, seed, num_clients):
    data = pool([17, 8], [10, 9], seed=seed)
    part = partition("iid", data, num_clients, seed)
    for pieces, total in ((part.train, 25), (part.test, 19)):
        sizes = [len(i) for i in pieces]
        assert sum(sizes) == total and max(sizes) - min(sizes) <= 1


def test_iid_counts_are_of_each_class_over_all_clients(pool):
    data = pool([30, 20, 25], [9, 9, 9])
    table = partition("iid", data, 4, 0, train_per_class=16, test_per_class=8).table(data)
    assert table["train"].sum(0).tolist() == [16] * 3 and table["test"].sum(0).tolist() == [8] * 3


def test_by_source_with_the_sizes_of_fedpews(pool):
    """FedPeWS: 400 and 200 images of each class; client 1 has the second source. Here 40 and 20."""
    data = pool([50] * 6, [25] * 6, sources=2)
    part = partition("by_source", data, 2, 0, order=(1, 0), train_per_class=40, test_per_class=20)
    table = part.table(data)
    assert table["train"].tolist() == [[0, 40, 0, 40, 0, 40], [40, 0, 40, 0, 40, 0]]
    assert table["test"].tolist() == [[0, 20, 0, 20, 0, 20], [20, 0, 20, 0, 20, 0]]


def test_by_source_keeps_everything_by_default_and_halves_when_joined(pool):
    """Office-Home as in FedSelect: one client per domain, half of each class for testing."""
    data = pool([50, 40, 30], [25, 10, 10], sources=3)
    assert partition("by_source", data, 3, 0).table(data)["train"].tolist() == [[50, 0, 0], [0, 40, 0], [0, 0, 30]]
    table = partition("by_source", data, 3, 0, pool="joined", test=0.5).table(data)
    assert table["test"].diagonal().tolist() == [38, 25, 20] and table["train"].diagonal().tolist() == [37, 25, 20]


@pytest.mark.parametrize(("num_clients", "classes"), [(2, [[0, 2], [1, 3]]), (4, [[0], [1], [2], [3]])])
def test_by_class_cyclic_as_in_the_synthetic_experiments(pool, num_clients, classes):
    """FedPeWS's synthetic sets: even classes for the first client and odd for the second, or class i for client i."""
    data = pool([9, 8, 7, 6], [3, 3, 3, 3])
    table = partition("by_class", data, num_clients, 0).table(data)
    assert [torch.where(row)[0].tolist() for row in table["train"]] == classes
    assert table["train"].sum(0).tolist() == [9, 8, 7, 6] and table["test"].sum(0).tolist() == [3] * 4


@given(seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_by_class_shuffled_gives_equal_numbers_of_classes_once(pool, seed):
    """FedPeWS's non-overlapping classes: C / N classes each, with all their images."""
    data = pool([10] * 20, [4] * 20)
    table = partition("by_class", data, 5, seed, order="shuffled").table(data)
    assert (table["train"] > 0).sum(1).tolist() == [4] * 5
    assert ((table["train"] > 0).sum(0) == 1).all() and (table["train"].sum(0) == 10).all()
    assert torch.equal(table["train"] > 0, table["test"] > 0)


def test_by_class_groups_of_clients_with_one_label(pool):
    """4 groups of 3 clients, one label per group."""
    data = pool([30] * 6, [9] * 6)
    table = partition("by_class", data, 12, 0, clients_per_group=3, classes_per_group=1).table(data)
    assert [torch.where(row)[0].tolist() for row in table["train"]] == [[g] for g in range(4) for _ in range(3)]
    assert table["train"].sum(1).tolist() == [10] * 12 and table["test"].sum(1).tolist() == [3] * 12


SHARDS = [(10, 10, 2), (20, 100, 10), (10, 10, 4), (6, 4, 2), (5, 5, 5), (30, 10, 3), (4, 8, 2), (12, 3, 2)]


@pytest.mark.parametrize(("num_clients", "num_classes", "s"), SHARDS)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 9999))
def test_shards_every_client_has_s_classes_and_every_class_as_many_clients(pool, num_clients, num_classes, s, seed):
    holders = s * num_clients // num_classes
    data = pool([5 * holders] * num_classes, [2 * holders] * num_classes)
    table = partition("shards", data, num_clients, seed, classes_per_client=s).table(data)
    assert ((table["train"] > 0).sum(1) == s).all() and ((table["train"] > 0).sum(0) == holders).all()
    assert torch.equal(table["train"] > 0, table["test"] > 0)
    assert table["train"].unique().tolist() in ([0, 5], [5]) and table["test"].unique().tolist() in ([0, 2], [2])


def test_shards_with_the_counts_of_fedselect_and_nested_sizes(pool):
    """FedSelect: 10 clients with 2 of 10 classes, 50 training and 100 test images of a class (here a tenth)."""
    data = pool([50] * 10, [25] * 10)
    large = partition("shards", data, 10, 0, classes_per_client=2, train_per_class=20, test_per_class=10)
    small = partition("shards", data, 10, 0, classes_per_client=2, train_per_class=5, test_per_class=10)
    assert large.table(data)["train"].unique().tolist() == [0, 20]
    assert small.table(data)["train"].unique().tolist() == [0, 5]
    assert small.table(data)["test"].unique().tolist() == [0, 10]
    for few, many in zip(small.train, large.train, strict=True):
        assert set(few.tolist()) < set(many.tolist())


def test_shards_keep_all_images_of_uneven_classes(pool):
    data = pool([11, 8], [5, 7])
    table = partition("shards", data, 4, 0, classes_per_client=1).table(data)
    assert table["train"].sum(0).tolist() == [11, 8] and sorted(table["train"].sum(1).tolist()) == [4, 4, 5, 6]
    assert table["test"].sum(0).tolist() == [5, 7]


def test_shards_of_the_authors_code(pool):
    """A client may get two shards of one class (then one class only), and over seeds some clients do."""
    data = pool([20] * 4, [8] * 4)
    tables = [
        partition("shards", data, 8, seed, classes_per_client=2, train_per_class=4, allow_duplicate_classes=True).table(
            data
        )["train"]
        for seed in range(6)
    ]
    assert all(t.sum(1).tolist() == [8] * 8 and t.sum(0).tolist() == [16] * 4 for t in tables)
    assert any((t == 8).any() for t in tables) and any((t == 4).any() for t in tables)

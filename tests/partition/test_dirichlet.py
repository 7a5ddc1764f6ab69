"""Dirichlet partitions of the papers, and the sorted shards of pFedGate."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_core.partition import partition
from pfl_core.partition.dirichlet import cut_by_shares
from pfl_core.partition.fedem import split_622
from pfl_core.partition.star_pfl import split_by_class


def sizes(part, data):
    """Samples of each client and class over all three splits, [N, C]."""
    return sum(part.table(data).values())


@pytest.fixture(scope="module")
def cifar_like(pool):
    return pool([6000] * 10)


def test_hand_computed_cuts(pool):
    """Shares (1/4, 1/4, 1/2) of 8 and (0.1, 0.8, 0.1) of 5: cut at 2, 4 and at floor(0.5) = 0, floor(4.5) = 4."""
    data = pool([8, 5])
    pieces = cut_by_shares(data, torch.arange(13), np.array([[0.25, 0.25, 0.5], [0.1, 0.8, 0.1]]))
    assert [torch.bincount(data.y[i], minlength=2).tolist() for i in pieces] == [[2, 0], [2, 4], [4, 1]]


@given(seed=st.integers(0, 999), alpha=st.sampled_from([0.1, 0.5, 2.0]))
@settings(max_examples=20, deadline=None)
def test_min_size_divides_both_official_parts_by_the_same_shares(pool, seed, alpha):
    data = pool([120] * 5, [60] * 5, seed=seed)
    part = partition("dirichlet", data, 4, seed, alpha=alpha)
    table = part.table(data)
    assert min(map(len, part.train)) >= 10 and min(map(len, part.test)) >= 1
    assert table["train"].sum(0).tolist() == [120] * 5 and table["test"].sum(0).tolist() == [60] * 5
    assert (table["train"] / 2 - table["test"]).abs().max() <= 1.5  # two roundings apart


def test_larger_alpha_is_more_even(pool):
    data = pool([400] * 10, [100] * 10)
    spread = [partition("dirichlet", data, 10, 0, alpha=a).table(data)["train"].double().std() for a in (0.1, 1, 100)]
    assert spread[0] > 2 * spread[1] > 4 * spread[2]


def test_fedem_reproduces_the_sizes_of_the_authors_split(cifar_like):
    """The released split of CIFAR-10, 100 clients, α 0.4, seed 12345: sizes from 53 to 1,531, about 8.7 labels."""
    part = partition("dirichlet", cifar_like, 100, 0, variant="fedem", alpha=0.4, split_seed=12345)
    table = sizes(part, cifar_like)
    assert (int(table.sum(1).min()), int(table.sum(1).max())) == (53, 1531)
    assert float((table > 0).sum(1).double().mean()) == pytest.approx(8.73)
    assert (part.dropped, part.num_clients, int(table.sum())) == (0, 100, 60_000)


def test_fedem_drops_and_counts_small_clients(cifar_like):
    """At alpha 0.01, about 40 of 100 clients are empty, 8 more very small, 1.5 labels each."""
    part = partition("dirichlet", cifar_like, 100, 12345, variant="fedem", alpha=0.01)
    table = sizes(part, cifar_like)
    assert 40 <= part.dropped <= 60 and part.num_clients == 100 - part.dropped
    assert table.sum(1).min() >= 10 and 1.3 < float((table > 0).sum(1).double().mean()) < 1.9
    assert 0 <= 60_000 - int(table.sum()) < 10 * part.dropped  # nothing else is lost


def test_fedem_gives_the_samples_of_the_reference_procedure(pool):
    """Golden: made by running the procedure of FedEM's public script on these labels, outside this repository."""
    data = pool([0, 0, 0, 0])
    y = torch.arange(48) * 7 % 4
    data = type(data)(y, torch.zeros_like(y), torch.zeros(48, dtype=torch.bool), 4)
    options = {"variant": "fedem", "groups": 2, "data_fraction": 0.75, "alpha": 0.4, "min_size": 1}
    part = partition("dirichlet", data, 3, 12345, **options)
    members = [sorted(torch.cat(parts).tolist()) for parts in zip(part.train, part.val, part.test, strict=True)]
    first = [0, 4, 5, 6, 10, 11, 12, 13, 16, 17, 18, 19, 20, 21, 22, 27, 30, 31, 35, 36, 40, 44, 46]
    assert members == [first, [2, 14, 26, 29, 33, 37, 41, 42], [7, 23, 32, 43, 47]]


@given(num=st.integers(10, 400), seed=st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_split_622_is_that_of_the_authors(num, seed):
    """[C] calls scikit-learn's train_test_split: 80 % / 20 %, then a quarter of the former for validation."""
    from sklearn.model_selection import train_test_split

    client = list(range(1000, 1000 + num))
    kept, test = train_test_split(client, train_size=0.8, random_state=seed)
    train, val = train_test_split(kept, train_size=0.75, random_state=seed)
    part = split_622([client], seed)
    assert [p[0].tolist() for p in (part.train, part.val, part.test)] == [sorted(train), sorted(val), sorted(test)]


def test_pathological_clients_have_two_labels_or_straddle(cifar_like, pool):
    """At most 2 labels with all images; with 90 % of them, shards may have two classes."""
    whole = sizes(partition("pathological", cifar_like, 10, 0), cifar_like)
    assert whole.sum(1).tolist() == [6000] * 10 and (whole > 0).sum(1).max() <= 2
    part = sizes(partition("pathological", cifar_like, 10, 0, data_fraction=0.9), cifar_like)
    assert part.sum(1).tolist() == [5400] * 10 and 2 < (part > 0).sum(1).max() <= 4


SAGITTAL = [2147, 1180, 1157, 1477, 1976, 1971, 6033, 1399, 1517, 3627, 2737]  # images of each class


@pytest.mark.parametrize(
    ("alpha", "classes", "share", "entropy", "totals"),
    [
        (0.01, (4, 9), 0.373, 0.668, (15_073, 4_990, 5_157)),
        (0.1, (6, 11), 0.362, 0.712, (15_053, 4_979, 5_188)),
        (1.0, (7, 11), 0.307, 0.831, (15_050, 4_961, 5_209)),
    ],
)
def test_paired_dirichlet_looks_like_the_released_sagittal_splits(pool, alpha, classes, share, entropy, totals):
    """The order of the released labels is unknown here, so values that depend on it have a tolerance."""
    data = pool(SAGITTAL)
    part = partition("paired_dirichlet", data, 20, 0, alpha=alpha, split_seed=5)
    table = sizes(part, data)
    per_client = (table > 0).sum(1)
    q = table / table.sum(1, keepdim=True)
    mean_entropy = -(q * q.clamp_min(1e-30).log()).sum(1).mean() / np.log(11)
    assert table.sum(1).tolist() == [1261] * 20 and len(data.y) - int(table.sum()) == 1
    assert (int(per_client.min()), int(per_client.max())) == classes
    assert float(q.max(1).values.mean()) == pytest.approx(share, abs=0.01)
    assert float(mean_entropy) == pytest.approx(entropy, abs=0.01)
    assert [int(part.table(data)[s].sum()) for s in ("train", "test", "val")] == pytest.approx(totals, abs=25)


def test_paired_dirichlet_gives_the_samples_of_the_reference_procedure(pool):
    """Golden: made by running the procedure of the authors' script on these labels, outside this repository."""
    y = torch.arange(48) * 5 % 3
    data = type(pool([1]))(y, torch.zeros_like(y), torch.zeros(48, dtype=torch.bool), 3)
    part = partition("paired_dirichlet", data, 4, 5, alpha=0.5)
    assert [i.tolist() for i in part.train] == [
        [0, 3, 6, 17, 21, 26],
        [2, 4, 5, 10, 19, 25],
        [1, 7, 12, 13, 15, 16],
        [8, 9, 11, 14, 20, 27],
    ]
    assert [i.tolist() for i in part.test] == [[24], [28], [22], [35]]
    assert [i.tolist() for i in part.val][:2] == [[29, 32, 33, 42, 45], [23, 31, 41, 43, 46]]


def test_split_by_class_takes_the_first_of_each_class_in_order(pool):
    """10 samples of class 0 and 4 of class 1: 6 + 2 train, 2 + 0 test, 2 + 2 validation."""
    y = torch.tensor([0] * 10 + [1] * 4)
    data = type(pool([1]))(y, torch.zeros_like(y), torch.zeros(14, dtype=torch.bool), 2)
    part = split_by_class(data, [torch.arange(14).flip(0)])
    assert part.train[0].tolist() == [0, 1, 2, 3, 4, 5, 10, 11]
    assert part.test[0].tolist() == [6, 7] and part.val[0].tolist() == [8, 9, 12, 13]


@given(seed=st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_per_class_uses_every_image_and_keeps_its_minimum(pool, seed):
    data = pool([100] * 6, [40] * 6, seed=seed)
    part = partition("dirichlet", data, 5, seed, variant="per_class", alpha=0.3, min_size=30)
    table = sizes(part, data)
    assert table.sum(0).tolist() == [140] * 6 and table.sum(1).min() >= 30
    assert torch.equal(part.table(data)["train"], (table * 3) // 5)


def test_shares_that_are_never_drawn_are_one_clear_line(pool):
    """Enough samples for all, but alpha is too small to give each client its ten."""
    with pytest.raises(ValueError, match="in 1000 draws .*the smallest of 20 clients never had .*a larger alpha"):
        partition("dirichlet", pool([100] * 3), 20, 0, alpha=0.01, pool="joined")

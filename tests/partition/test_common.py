"""Invariants of all partitions, and a user's rules."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_core.partition import PARTITIONS, Partition, partition
from tests.helpers import one_line

JOINED = {"pool": "joined", "test": 0.25}
CASES = [  # name, clients, options, does the seed matter; on 4 classes of two sources
    ("iid", 7, {}, True),
    ("iid", 4, {"train_per_class": 9, "test_per_class": 3, "val": 0.3}, True),
    ("iid", 5, JOINED, True),
    ("shards", 4, {"classes_per_client": 2}, True),
    ("shards", 8, {"classes_per_client": 3, "train_per_class": 4, "test_per_class": 2, "val": 0.5}, True),
    ("shards", 8, {"classes_per_client": 3, "train_per_class": 4, "test_per_class": 2, "val_per_class": 2}, True),
    ("shards", 6, {"classes_per_client": 2, "allow_duplicate_classes": True}, True),
    ("shards", 4, {"classes_per_client": 1} | JOINED, True),
    ("shards", 4, {"classes_per_client": 4}, True),
    ("dirichlet", 4, {"alpha": 0.5, "min_size": 5, "val": 0.2}, True),
    ("dirichlet", 3, {"alpha": 5.0, "train_per_class": 12, "test_per_class": 6}, True),
    ("dirichlet", 3, {"alpha": 1.0} | JOINED, True),
    ("dirichlet", 6, {"variant": "fedem", "alpha": 0.4}, True),
    ("dirichlet", 3, {"variant": "fedem", "groups": 3, "data_fraction": 0.6}, True),
    ("dirichlet", 3, {"variant": "per_class", "alpha": 1.0, "min_size": 25}, True),
    ("paired_dirichlet", 4, {"alpha": 0.1}, True),
    ("by_source", 2, {}, False),
    ("by_source", 2, {"order": [1, 0], "train_per_class": 8, "test_per_class": 2, "val": 0.25}, True),
    ("by_source", 2, JOINED, True),
    ("by_class", 2, {}, False),
    ("by_class", 2, {"order": "shuffled", "train_per_class": 8, "test_per_class": 2}, True),
    ("by_class", 6, {"clients_per_group": 3, "classes_per_group": 1}, True),
    ("pathological", 5, {}, True),
    ("pathological", 3, {"shards": 3, "data_fraction": 0.7}, True),
    ("paired_sample", 4, {"images": 30}, True),
    ("label_groups", 4, {"groups": 2, "labels_per_group": 2}, True),
]
POOLED = ("pathological", "paired_dirichlet", "paired_sample", "label_groups")


def same(a, b):
    return all(
        len(getattr(a, s)) == len(getattr(b, s))
        and all(torch.equal(x, y) for x, y in zip(getattr(a, s), getattr(b, s), strict=True))
        for s in ("train", "val", "test")
    )


def ids(case):
    return case[0] + "-" + "-".join(f"{k}={v}" for k, v in case[2].items())


@pytest.mark.parametrize("case", CASES, ids=ids)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 999), sizes=st.lists(st.integers(36, 60), min_size=4, max_size=4))
def test_invariants_of_every_partition(pool, case, seed, sizes):
    name, num_clients, options, _ = case
    data = pool(sizes, [n // 3 for n in sizes], sources=2, seed=seed)
    part = partition(name, data, num_clients, seed, **options)
    joined = name in POOLED or options.get("pool") == "joined" or options.get("variant") in ("fedem", "per_class")

    assert part.joined == joined
    assert part.num_clients + part.dropped == num_clients and len(part.val) == len(part.test) == part.num_clients
    used = torch.cat(part.train + part.val + part.test)
    assert used.dtype == torch.int64
    assert len(set(used.tolist())) == len(used)  # no sample twice
    assert 0 <= used.min() and used.max() < len(data.y)
    if not joined:
        assert not data.is_test[torch.cat(part.train + part.val)].any()
        assert data.is_test[torch.cat(part.test)].all()
    assert min(map(len, part.train)) > 0 and min(map(len, part.test)) > 0
    assert all(torch.equal(i, i.sort().values) for i in part.train + part.val + part.test)
    assert same(part, partition(name, data, num_clients, seed, **options))  # deterministic


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_another_seed_gives_another_partition(pool, case):
    name, num_clients, options, matters = case
    data = pool([48] * 4, [16] * 4, sources=2)
    parts = [partition(name, data, num_clients, seed, **options) for seed in (0, 1)]
    assert same(*parts) != matters


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("iid", {}),
        ("shards", {}),
        ("dirichlet", {"alpha": 5.0}),
        ("dirichlet", {"variant": "fedem", "alpha": 5.0}),
        ("dirichlet", {"variant": "per_class", "alpha": 5.0}),
        ("by_class", {"clients_per_group": 2}),
        ("pathological", {}),
    ],
)
def test_images_of_a_class_are_mixed_before_they_are_cut(pool, name, options):
    data = pool([60] * 4, [20] * 4)
    part = partition(name, data, 4, 0, **options)
    mine = torch.cat([part.train[0], part.val[0], part.test[0]])
    c = data.y[mine].mode().values
    order = torch.where(data.y == c)[0]
    places = torch.searchsorted(order, mine[data.y[mine] == c].sort().values)
    assert len(places) > 10 and (places.diff() > 1).sum() > 3  # neither one run of the data's order nor a few


def test_validation_images_that_no_client_has_leave_training_as_it_is(pool):
    data = pool([60] * 4, [20] * 4)
    asked = {"classes_per_client": 2, "train_per_class": 5, "test_per_class": 2}
    without = partition("shards", data, 8, 3, **asked)
    part = partition("shards", data, 8, 3, **asked, val_per_class=7)
    assert all(map(torch.equal, without.train + without.test, part.train + part.test))
    for train, val in zip(part.train, part.val, strict=True):
        assert data.y[val].unique(return_counts=True)[1].tolist() == [7, 7]
        assert data.y[val].unique().tolist() == data.y[train].unique().tolist()


@pytest.mark.parametrize("wrong", [{"val_per_class": 3}, {"train_per_class": 5, "val_per_class": 3, "val": 0.2}])
def test_validation_images_are_counted_behind_those_for_training(pool, wrong):
    with pytest.raises(ValueError, match="val_per_class=3 counts the images after those of train_per_class"):
        partition("shards", pool([60] * 4, [20] * 4), 8, 3, **wrong)


def test_every_name_is_among_the_cases():
    assert {name for name, *_ in CASES} | {"csv"} == set(PARTITIONS)  # csv needs a file, see test_from_csv.py


def test_table_counts_samples_by_client_and_class(pool):
    data = pool([8, 4], [2, 6])
    part = Partition(
        train=(torch.where((data.y == 0) & ~data.is_test)[0], torch.where((data.y == 1) & ~data.is_test)[0][:3]),
        val=(torch.tensor([], dtype=torch.int64), torch.where((data.y == 1) & ~data.is_test)[0][3:]),
        test=(torch.where(data.is_test & (data.y == 1))[0], torch.where(data.is_test & (data.y == 0))[0]),
    )
    table = part.table(data)
    assert {name: counts.tolist() for name, counts in table.items()} == {
        "train": [[8, 0], [0, 3]],
        "val": [[0, 0], [0, 1]],
        "test": [[0, 6], [2, 0]],
    }


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), share=st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.5, 0.9]))
def test_validation_is_a_stratified_share_of_the_training_part(pool, seed, share):
    data = pool([60, 30, 10], [9, 9, 9], seed=seed)
    whole = partition("iid", data, 1, seed)
    part = partition("iid", data, 1, seed, val=share)
    assert sorted(torch.cat([part.train[0], part.val[0]]).tolist()) == whole.train[0].tolist()
    assert len(part.val[0]) == round(share * 100)
    assert torch.equal(part.test[0], whole.test[0])
    for c, n in enumerate((60, 30, 10)):
        assert abs(int(part.table(data)["val"][0, c]) - share * n) < 1


@pytest.mark.parametrize(
    ("name", "num_clients", "options", "message"),
    [
        ("idd", 2, {}, "unknown partition 'idd' .did you mean 'iid'"),
        ("iid", 0, {}, "num_clients=0 must be at least 1"),
        ("iid", 2, {"alpha": 1.0}, "'iid' has no option 'alpha'; choose from pool, val, test"),
        ("iid", 2, {"val": "x"}, "val='x': input should be a valid number"),
        ("iid", 2, {"val": 1.0}, "val=1.0: input should be less than 1"),
        ("iid", 2, {"pool": "all"}, "pool='all': use 'official'"),
        ("iid", 2, {"pool": "joined", "train_per_class": 3}, "they need pool='official'"),
        ("iid", 2, {"train_per_class": 13}, "train_per_class=13: class 0 has only 12 train images"),
        ("iid", 2, {"test_per_class": 0}, "test_per_class=0: input should be greater than or equal to 1"),
        ("iid", 9, {}, "client 8 of 9 gets no test sample"),
        ("shards", 3, {"classes_per_client": 1}, "3 clients x 1 classes do not divide evenly over the 2 classes"),
        ("shards", 2, {"classes_per_client": 3}, r"classes_per_client=3 is outside 1..2"),
        ("shards", 4, {"classes_per_client": 1, "train_per_class": 7}, "class 0 has 12 train images .* at most 6 each"),
        ("shards", 4, {"classes_per_client": 2, "test_per_class": 2}, "class 0 has 4 test images .* at most 1 each"),
        ("dirichlet", 2, {"alpha": 0}, "alpha=0: input should be greater than 0"),
        ("dirichlet", 2, {"variant": "min"}, "variant='min' is unknown: use one of min_size, fedem, per_class"),
        ("dirichlet", 2, {"variant": "fedem", "val": 0.1}, "variant 'fedem' has no option 'val'"),
        ("dirichlet", 2, {"variant": "fedem", "groups": 3}, r"groups=3 is outside 1..2"),
        (
            "dirichlet",
            2,
            {"variant": "fedem", "data_fraction": 1.5},
            "data_fraction=1.5: .* less than or equal to 1",
        ),
        ("dirichlet", 30, {"variant": "fedem"}, "none of 30 clients has 10 samples"),
        (
            "dirichlet",
            5,
            {"alpha": 1.0},
            "5 clients with at least 10 samples each need 50 samples, train has 24; use fewer clients",
        ),
        ("dirichlet", 2, {"variant": "per_class", "alpha": -1}, "alpha=-1: input should be greater than 0"),
        ("paired_dirichlet", 3, {}, "3 clients cannot be paired"),
        ("paired_dirichlet", 2, {"alpha": 0.0}, "alpha=0.0: input should be greater than 0"),
        ("by_source", 2, {}, "toy has 1 sources, one for each client, but the run has 2 clients; give --clients 1"),
        ("by_source", 2, {"order": [0, 0]}, r"order=\[0, 0\] must name different sources of 0..0"),
        ("by_class", 3, {}, "3 clients in groups of 1 need full groups, at most 2 of them"),
        ("by_class", 3, {"clients_per_group": 2}, "3 clients in groups of 2 need full groups"),
        ("by_class", 2, {"classes_per_group": 2}, "2 groups cannot have 2 of 2 classes each"),
        ("by_class", 2, {"order": "random"}, "order='random' is neither 'cyclic' nor 'shuffled'"),
        ("by_class", 2, {"classes_per_group": -1}, "classes_per_group=-1: input should be greater than"),
        ("label_groups", 4, {"groups": 0}, "groups=0: input should be greater than or equal to 1"),
        ("csv", 2, {"file": "clients.csv", "test": "x"}, "test='x': input should be a valid number"),
        ("pathological", 5, {"shards": 0}, "shards=0: input should be greater than or equal to 1"),
        ("paired_sample", 2, {}, "'paired_sample' needs images; give it with --set partition.images=VALUE"),
        ("pathological", 20, {}, "32 samples cannot fill 20 clients x 2 shards"),
        ("pathological", 4, {"shards": 10**9}, "32 samples cannot fill 4 clients x 1000000000 shards"),
    ],
)
def test_impossible_requests_are_one_clear_line(pool, name, num_clients, options, message):
    with one_line(message):
        partition(name, pool([12, 12], [4, 4]), num_clients, 0, **options)


def test_official_parts_need_test_images(pool):
    data = pool([12, 12])
    with pytest.raises(ValueError, match="toy has no official test images: use pool='joined'"):
        partition("iid", data, 2, 0)
    assert [len(t) for t in partition("iid", data, 2, 0, pool="joined", test=0.25).test] == [3, 3]


RULES = """
import torch
from pfl_core.partition import Partition

def halves(data, num_clients, seed, leak=False, twice=False, empty=False, outside=False, joined=False, short=False,
           floats=False, lists=False, mask=False, nothing=False, exits=False):
    train, test = torch.where(~data.is_test)[0], torch.where(data.is_test)[0]
    none = tuple(train[:0] for _ in range(num_clients))
    parts = list(train.tensor_split(num_clients))
    held = test.tensor_split(num_clients)
    if leak:
        parts[0], held = torch.cat([parts[0], test[:1]]), test[1:].tensor_split(num_clients)
    if twice:
        parts[1] = torch.cat([parts[1], parts[0][:1]])
    if empty:
        parts[1] = train[:0]
    if outside:
        parts[0] = torch.tensor([len(data.y)])
    if floats:
        parts[1] = parts[1].double()
    if lists:
        parts[1] = parts[1].tolist()
    if mask:
        parts[1] = torch.zeros(len(data.y), dtype=torch.bool)
    if short:
        parts, none, held = parts[:1], none[:1], held[:1]
    if nothing:
        return parts
    if exits:
        raise SystemExit
    return Partition(tuple(parts), none, tuple(held), joined=joined)
"""


def test_a_users_partition_is_checked_too(pool, monkeypatch, tmp_path):
    (tmp_path / "my_rules.py").write_text(RULES, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    data = pool([6, 6], [4, 4])
    part = partition("my_rules:halves", data, 2, 0)
    assert [len(i) for i in part.train + part.test] == [6, 6, 4, 4]
    assert partition("my_rules:halves", data, 2, 0, leak=True, joined=True).joined
    for option, message in {
        "leak": "official test images may be used for testing only",
        "twice": "a sample was assigned twice",
        "empty": "client 1 of 2 gets no train sample",
        "outside": "an index is outside the 20 samples",
        "short": "1 clients and 0 dropped ones were made, not the 2 clients of the run",
        "floats": r"train\[1\] is torch.float64 \[6\]; give a tensor of indices, int64 \[n\]",
        "lists": r"train\[1\] is list; give a tensor",
        "mask": r"train\[1\] is torch.bool \[20\]",
        "nothing": "returned a list; return a pfl_core.partition.Partition",
        "exits": r"failed \(SystemExit: \); correct the function",
    }.items():
        with pytest.raises(ValueError, match=f"partition '?my_rules:halves'?:? {message}"):
            partition("my_rules:halves", data, 2, 0, **{option: True})
    with pytest.raises(ValueError, match="has no class or function 'thirds'"):
        partition("my_rules:thirds", data, 2, 0)

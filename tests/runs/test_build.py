"""Building a federation: every client gets exactly the samples of its partition, preprocessed for the network."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pfl_core import data
from pfl_core.runs import assign, build, load_data
from tests.helpers import one_line, same_bits
from tests.runs.outside import CLASSES, HERE, TEST, TRAIN, blobs, write_npz

COLOUR = {"name": f"{HERE}:blobs", "colours": 3}


def corrupted(**options) -> dict:
    return {**COLOUR, **options, "corrupt": True}


def test_splits_have_the_sizes_of_the_partition(spec):
    """Four clients, two of four classes each: every class is cut in half, 2 x 24 / 2 to train on, 2 x 8 / 2 to test."""
    _, fed, assigned = build(spec())
    assert set(fed.splits) == {"train", "test"}
    assert fed.splits["train"].sizes.tolist() == [TRAIN] * 4
    assert fed.splits["test"].sizes.tolist() == [TEST] * 4
    assert fed.num_clients == assigned.num_clients == 4


def test_a_validation_share_is_a_separate_split(spec):
    _, fed, _ = build(spec(partition={"name": "shards", "val": 0.25}))
    assert {name: split.sizes.tolist() for name, split in fed.splits.items()} == {
        "train": [18] * 4,
        "val": [6] * 4,
        "test": [8] * 4,
    }


def test_a_client_has_its_own_samples_as_the_data_set_prepares_them(spec):
    made = spec(data={**COLOUR, "normalise": "imagenet"})
    _, fed, assigned = build(made)
    pool = load_data(made)
    for name, split in fed.splits.items():
        for k, index in enumerate(getattr(assigned, name)):
            x, y = split.client(k)
            by_hand = (pool.x[index].float() / 255 - torch.tensor(pool.mean)[:, None, None]) / torch.tensor(pool.std)[
                :, None, None
            ]
            torch.testing.assert_close(x, by_hand)
            assert torch.equal(y, pool.y[index])
            assert x.dtype == torch.float32 and y.dtype == torch.int64


def test_float64_features_are_trained_on_as_float32(spec):
    _, fed, _ = build(spec(data={"name": "synthetic_3200"}, model={"name": "fc_pews"}, partition={"name": "iid"}))
    assert fed.splits["train"].x.dtype == fed.theta0.dtype == torch.float32


def test_the_partition_follows_the_seed_of_the_run_or_its_own(spec):
    def first(run_seed: int, **options) -> list[int]:
        made = spec(seed=run_seed, partition={"name": "iid", **options})
        return assign(made, load_data(made)).train[0].tolist()

    assert first(0) == first(0) != first(1)
    assert first(0, seed=7) == first(1, seed=7) == first(7)


def test_the_network_follows_the_seed_and_nothing_global(spec):
    torch.manual_seed(1)
    one = build(spec(seed=3))[1].theta0
    torch.manual_seed(2)
    again, other = build(spec(seed=3))[1].theta0, build(spec(seed=4))[1].theta0
    assert same_bits(one, again) and not same_bits(one, other)


def test_the_federation_has_what_the_spec_says(spec):
    made = spec("fedselect", alpha=0.4, rounds=7, seed=5)
    algorithm, fed, _ = build(made)
    assert (fed.rounds, fed.seed, fed.train) == (7, 5, made.train)
    assert type(algorithm).__name__ == "FedSelect" and algorithm.alpha == 0.4
    assert [f.shape for f in fed.layout.params] == [(6, 16), (6,), (CLASSES, 6), (CLASSES,)]


def test_clients_get_different_corruptions(spec):
    """Client k has the k-th kind, in training and in testing; kinds without noise are known to the byte."""
    made = spec(data=corrupted(corrupt_severity=4), clients=len(data.CORRUPTIONS), partition={"name": "iid"})
    _, fed, assigned = build(made)
    pool = blobs(colours=3)
    for k, kind in enumerate(data.CORRUPTIONS):
        for name in ("train", "test"):
            raw, seen = pool.x[getattr(assigned, name)[k]], fed.splits[name].client(k)[0]
            assert not torch.equal(seen, pool.prepare(raw)), kind
            if "noise" not in kind and kind != "motion_blur":
                by_hand = data.corrupt(raw, kind, 4, torch.Generator())
                assert torch.equal(seen, pool.prepare(by_hand)), kind


def test_grey_images_have_no_kind_for_colours(spec):
    build(spec(data={"name": "digits", "corrupt": True}, clients=11, partition={"name": "iid"}))


def test_corruption_depends_on_the_seed_alone(spec):
    def noisy(seed: int) -> torch.Tensor:
        return (
            build(spec(data=corrupted(), seed=seed, partition={"name": "iid", "seed": 0}))[1]
            .splits["train"]
            .client(0)[0]
        )

    assert torch.equal(noisy(0), noisy(0)) and not torch.equal(noisy(0), noisy(1))


def test_training_and_test_images_get_different_noise(spec):
    """All pixels are 128 and both splits equally large: equal images would mean one noise for both."""
    partition = {"name": "iid", "train_per_class": TEST, "test_per_class": TEST}
    _, fed, _ = build(spec(data=corrupted(flat=True), partition=partition))
    train, test = (fed.splits[name].client(0)[0] for name in ("train", "test"))
    assert train.shape == test.shape and not torch.equal(train, test)


@pytest.mark.parametrize("folders", [("one", "one"), ("one", "two")], ids=["file", "folder"])
def test_data_that_changed_are_read_again(spec, tmp_path, monkeypatch, folders):
    """Kernels and workers live long: a run must be made of the data that its key names."""
    made, seen, keys = spec(data={"name": "mine"}, partition={"name": "iid"}, clients=2), [], set()
    for folder, value in zip(folders, (51, 102), strict=True):
        write_npz(tmp_path / folder, "mine", value)
        monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path / folder))
        keys.add(made.key(made.checksums()))
        seen.append(build(made)[1].splits["train"].x.unique().item())
    assert len(keys) == 2
    assert seen == pytest.approx([0.2, 0.4])


def test_options_of_the_data_may_be_lists(spec, tmp_path, monkeypatch):
    """JSON knows no tuples: (training, test) images of each class come as a list."""
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    for name in ("one", "two"):
        write_npz(tmp_path, name, 1)
    made = spec(data={"name": "one+two", "samples_per_class": [3, 2]}, partition={"name": "iid"}, clients=2)
    _, fed, _ = build(made)
    assert {name: len(split.y) for name, split in fed.splits.items()} == {"train": 3 * 4, "test": 2 * 4}


def test_what_does_not_fit_together_is_one_line(spec):
    with one_line("lenet_star.*1x28x28"):
        build(spec(model={"name": "lenet_star"}))
    with one_line("multiple of 4"):
        build(spec(clients=3))


def test_a_users_network_has_an_output_for_each_class(spec, tmp_path, monkeypatch):
    text = "from torch.nn import *\ndef net(shape, num_classes):\n    return Sequential(Flatten(), Linear(16, 3))"
    (tmp_path / "three_outputs.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"three_outputs:net.*\[2, 3\].*\[2, 4\]"):
        build(spec(model={"name": "three_outputs:net"}))


def test_a_spec_is_not_touched(spec):
    made = spec("fedselect", data=corrupted(corrupt_severity=2), partition={"name": "shards", "seed": 3})
    before = dataclasses.asdict(made)
    build(made)
    assert dataclasses.asdict(made) == before

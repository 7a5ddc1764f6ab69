"""Settings of local training: error messages, schedule, augmentation."""

import math
import re
import warnings

import numpy as np
import pytest
import torch

from pfl_core import Schedule, run
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.seeding import generator
from pfl_core.training import AUGMENT, Training, crop_flip
from tests.helpers import cnn, federation, one_line


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"lr": -0.1}, r"training: lr=-0\.1: input should be greater than or equal to 0"),
        ({"lr": math.nan}, "lr=nan: input should be a finite number"),
        ({"lr": None}, "lr=None: input should be a valid number"),
        ({"lr": 10**400}, r"lr=10{60,}\.\.\.: input should be a valid number"),
        ({"lr": torch.zeros(2)}, r"lr=tensor\(\[0\., 0\.\]\): input should be a valid number"),
        ({"momentum": -1.0}, r"momentum=-1\.0: input should be greater"),
        ({"weight_decay": -1e-4}, "weight_decay=-0.0001: input should be greater"),
        ({"decay": -2.0}, r"decay=-2\.0: input should be greater"),
        ({"clip_norm": -1}, "clip_norm=-1: input should be greater"),
        ({"clip_norm": math.inf}, "clip_norm=inf: input should be a finite number"),
        ({"batch_size": 0}, "batch_size=0: input should be greater than or equal to 1"),
        ({"batch_size": "many"}, "batch_size='many': input should be a valid integer"),
        ({"epochs": -1}, "epochs=-1: input should be greater than or equal to 0"),
        ({"epochs": 1.5}, "epochs=1.5: input should be a valid integer"),
        ({"epochs": True}, "epochs=True: input should be a valid integer"),
        ({"milestones": (0.5, math.nan)}, r"milestones=\(0\.5, nan\): item 1: input should be a finite number"),
        ({"milestones": (0.5, 30)}, r"milestones=\(0\.5, 30\): item 1: input should be less than or equal to 1"),
        ({"milestones": 0.5}, "milestones=0.5: input should be a valid tuple"),
        ({"partial_batch": "pad"}, "partial_batch='pad': input should be 'keep', 'drop' or 'merge'"),
        ({"augment": "rotate"}, "augment='rotate': input should be 'none' or 'crop_flip'"),
        ({"augment": ["crop_flip"]}, r"augment=\['crop_flip'\]: input should be 'none' or 'crop_flip'"),
    ],
)
def test_bad_settings_are_refused_in_one_line(setting, message):
    with one_line(message):
        Training(**setting)


def test_zero_is_allowed():
    assert Training(lr=0.0, epochs=0).epochs == 0


def test_numbers_become_plain_numbers():
    """Numbers of NumPy and PyTorch could not be written to a record."""
    train = Training(lr=torch.tensor(0.5), epochs=np.int64(2), milestones=[np.float64(0.5)], clip_norm=1)
    assert train == Training(lr=0.5, epochs=2, milestones=(0.5,), clip_norm=1.0)
    assert [type(value) for value in (train.lr, train.epochs, *train.milestones)] == [float, int, float]


def test_every_kind_of_augmentation_can_be_chosen():
    assert {Training(augment=name).augment for name in AUGMENT} == set(AUGMENT)


def test_the_schedule_multiplies_after_each_milestone():
    """Milestones 1/2 and 3/4 of 8 rounds: rounds 4 and 5 (from 0) at a tenth, 6 and 7 at a hundredth."""
    train = Training(milestones=(0.5, 0.75), decay=0.1)
    factors = [train.factor(t, 8) for t in range(8)]
    assert factors == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])
    assert all(Training().factor(t, 8) == 1 for t in range(8))


def images(b=40, c=2, h=6, w=5):
    """Every pixel has a different value, none is 0 (the padding)."""
    return torch.arange(1.0, b * c * h * w + 1).view(b, c, h, w)


@pytest.mark.parametrize(("augment", "same"), [("none", True), ("crop_flip", False)])
def test_only_augmentation_changes_samples(augment, same):
    """Compares a batch with the client's images."""
    fed = federation(cnn(), shape=(1, 4, 4), augment=augment)
    batch = next(fed.batches(torch.tensor([1]), 0))
    assert torch.equal(batch.x[0], fed.splits["train"].client(1)[0][batch.index[0]]) == same


def test_every_image_becomes_a_shifted_and_perhaps_mirrored_copy_of_itself():
    """Reference: all crops of the padded image, mirrored or not; the result must be one of them."""
    x = images()
    got = crop_flip(x, generator(0, "augment"))
    assert got.shape == x.shape
    found = set()
    for image, out in zip(torch.nn.functional.pad(x, (4, 4, 4, 4)), got, strict=True):
        places = {
            (top, left, flip)
            for top in range(9)
            for left in range(9)
            for flip, cut in enumerate(2 * [image[:, top : top + 6, left : left + 5]])
            if torch.equal(cut.flip(-1) if flip else cut, out)
        }
        assert len(places) == 1
        found |= places
    assert {flip for *_, flip in found} == {0, 1}
    assert len({top for top, *_ in found}) > 5
    assert len({left for _, left, _ in found}) > 5


def test_all_shifts_are_drawn_about_equally():
    x = torch.zeros(20_000, 1, 1, 1)
    x += torch.arange(1.0, 20_001).view(-1, 1, 1, 1)
    inside = crop_flip(x, generator(1)).flatten() > 0
    assert abs(inside.float().mean() - 1 / 81) < 0.004  # one of 9 x 9 places shows the only pixel


def test_augmentation_depends_on_its_stream_alone_and_does_not_modify_the_images():
    x = images()
    kept = x.clone()
    one, again, other = (crop_flip(x, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(x, kept)


@pytest.mark.parametrize(
    ("last", "sizes"), [("keep", [32, 32, 32, 4]), ("drop", [32, 32, 32]), ("merge", [32, 32, 36])]
)
def test_what_happens_to_a_last_batch_of_four(last, sizes):
    """100 images in batches of 32."""
    bounds = Training(batch_size=32, partial_batch=last).batch_bounds(100)
    assert [stop - start for start, stop in bounds] == sizes
    assert [start for start, _ in bounds[1:]] == [stop for _, stop in bounds[:-1]] and bounds[0][0] == 0


@pytest.mark.parametrize("last", ["keep", "drop", "merge"])
def test_an_only_batch_or_a_full_last_batch_is_kept(last):
    train = Training(batch_size=32, partial_batch=last)
    assert train.batch_bounds(20) == [(0, 20)] and train.batch_bounds(64) == [(0, 32), (32, 64)]
    assert train.batch_bounds(0) == []


@pytest.mark.parametrize(("last", "steps"), [("keep", 4), ("drop", 3), ("merge", 3)])
def test_number_of_steps_by_partial_batch(last, steps):
    fed = federation(sizes=(100,), batch_size=32, partial_batch=last)
    assert int(fed.sgd(fed.theta0[None], torch.arange(1), key=0).steps[0]) == steps == fed.num_steps(0)


def test_small_last_batches_under_batch_norm_are_warned_of_once():
    """Training statistics of four images made ResNet18 diverge at rate 0.05."""

    def warned(net, sizes=(100, 40), **training):
        fed = federation(net, sizes, shape=(1, 4, 4), **training)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(FedAvg(), fed, Schedule(2))
        return [str(each.message) for each in caught]

    (text,) = warned(cnn(bn=True), batch_size=32)
    assert re.match(r"batch norm: the last batch of 1 of 2 clients has fewer than 8 samples \(minimum 4\)", text)
    assert warned(cnn(bn=False), batch_size=32) == warned(cnn(bn=True), batch_size=20) == []
    assert warned(cnn(bn=True), batch_size=32, partial_batch="merge") == []
    (text,) = warned(cnn(bn=True), (100, 1), batch_size=20)
    assert text.startswith("batch norm: 1 of 2 clients have no batch of two samples and do not train")
    (text,) = warned(cnn(bn=True), (100, 1), batch_size=32)
    assert "the last batch of 1 of 2 clients" in text and "; batch norm: 1 of 2 clients have no batch" in text

"""Dataset, and what load() does to size, channels and scale."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.nn import functional

from pfl_core.data.dataset import NORMALISE, Dataset, finished, resized, subset, with_channels
from pfl_core.seeding import generator


def make(images: torch.Tensor, **changes) -> Dataset:
    n = len(images)
    fields = dict(
        name="made",
        x=images,
        y=torch.arange(n) % 2,
        source=torch.zeros(n, dtype=torch.int64),
        is_test=torch.zeros(n, dtype=torch.bool),
        num_classes=2,
        class_names=("a", "b"),
    )
    return Dataset(**(fields | changes))


def some(n: int, c: int, side: int) -> torch.Tensor:
    return torch.randint(0, 256, (n, c, side, side), dtype=torch.uint8, generator=generator(0, "some", n, c, side))


@pytest.mark.parametrize(
    ("normalise", "byte", "expected"),
    [
        ("unit", 51, [0.2]),
        ("half", 0, [-1.0]),
        ("half", 255, [1.0]),
        ("raw", 51, [51.0]),
        ("mnist", 255, [(1 - 0.1307) / 0.3081]),
        ("cifar10", 0, [-0.4914 / 0.2023, -0.4822 / 0.1994, -0.4465 / 0.2010]),
        ("imagenet", 255, [(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225]),
    ],
)
def test_normalise_by_hand(normalise, byte, expected):
    data = finished(make(torch.full((2, len(expected), 1, 1), byte, dtype=torch.uint8)), normalise, None, None)
    got = data.prepare(data.x)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got[1].flatten(), torch.tensor(expected))


def test_raw_gives_every_byte_back_exactly():
    x = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    data = finished(make(x), "raw", None, None)
    assert torch.equal(data.prepare(x), x.float())


@given(seed=st.integers(0, 99), normalise=st.sampled_from(sorted(NORMALISE)))
def test_prepare_loses_nothing(seed, normalise):
    x = torch.randint(0, 256, (2, 3, 2, 2), dtype=torch.uint8, generator=generator(seed, "bytes"))
    data = finished(make(x), normalise, None, None)
    mean, std = (torch.tensor(v)[:, None, None] for v in (data.mean, data.std))
    assert torch.equal(((data.prepare(x) * std + mean) * 255).round().to(torch.uint8), x)


def test_features_pass_through_and_refuse_what_is_for_images():
    data = make(torch.randn(4, 3, generator=generator(0, "features")))
    assert finished(data, "unit", None, None).prepare(data.x) is data.x
    for wrong in (("half", None, None), ("unit", 8, None), ("unit", None, 3)):
        with pytest.raises(ValueError, match="holds features"):
            finished(data, *wrong)


def test_unit_keeps_the_scaling_of_a_set_that_brings_its_own():
    data = make(some(2, 1, 2), mean=(0.25,), std=(0.5,))
    assert finished(data, "unit", None, None).mean == (0.25,)
    assert finished(data, "half", None, None).mean == (0.5,)


@pytest.mark.parametrize(("before", "after"), [(8, 32), (28, 32), (32, 8), (16, 16)])
def test_resize_is_pillows_bilinear(before, after):
    x = some(3, 1, before)
    pillow = [np.asarray(Image.fromarray(v[0].numpy()).resize((after, after), Image.Resampling.BILINEAR)) for v in x]
    difference = resized(x, after)[:, 0].int() - torch.from_numpy(np.stack(pillow)).int()
    assert difference.abs().max() <= 1


def test_enlarging_is_plain_bilinear_and_chunks_do_not_show(monkeypatch):
    x = some(5, 3, 8)
    plain = functional.interpolate(x.float(), size=(28, 28), mode="bilinear").round().to(torch.uint8)
    monkeypatch.setattr("pfl_core.data.dataset.CHUNK", 2)
    assert (resized(x, 28).int() - plain.int()).abs().max() <= 1
    monkeypatch.setattr("pfl_core.data.dataset.CHUNK", 5)
    assert torch.equal(resized(x, 28)[3:], resized(x[3:], 28))


def test_resize_rounds_to_the_nearest_byte():
    x = torch.tensor([[0, 1], [0, 1]], dtype=torch.uint8)[None, None]
    assert resized(x, 4)[0, 0, 0].tolist() == [0, 0, 1, 1]  # 0, 0.25, 0.75, 1


def test_channels():
    grey = some(2, 1, 3)
    colour = with_channels(grey, 3)
    assert torch.equal(colour[:, 0], grey[:, 0]) and torch.equal(colour[:, 2], grey[:, 0])
    assert torch.equal(with_channels(colour, 1), grey)  # the luminance of grey is that grey
    red = torch.tensor([255, 0, 0], dtype=torch.uint8).reshape(1, 3, 1, 1)
    assert with_channels(red, 1).item() == 76  # 0.299 * 255
    with pytest.raises(ValueError, match="channels=2"):
        with_channels(grey, 2)


def test_finished_errors():
    data = make(some(2, 1, 2))
    with pytest.raises(ValueError, match="normalise='minmax' is unknown; choose one of unit"):
        finished(data, "minmax", None, None)
    with pytest.raises(ValueError, match="give channels"):
        finished(data, "imagenet", None, None)
    with pytest.raises(ValueError, match="resize=0"):
        finished(data, "unit", 0, None)
    assert finished(data, "imagenet", 4, 3).x.shape == (2, 3, 4, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(x=torch.zeros(2, 4, dtype=torch.uint8)), "give uint8"),
        (dict(x=torch.zeros(2, 4, dtype=torch.int64)), "give uint8"),
        (dict(y=torch.tensor([0, 1, 1])), "one entry per sample"),
        (dict(y=torch.tensor([0.0, 1.0])), "y is torch.float32"),
        (dict(source=torch.zeros(1, dtype=torch.int64)), "source is"),
        (dict(is_test=torch.zeros(2, dtype=torch.int64)), "is_test is"),
        (dict(y=torch.tensor([0, 2])), "labels run from 0 to 2"),
        (dict(y=torch.tensor([-1, 0])), "labels run from -1"),
        (dict(class_names=("a",)), "1 class_names for num_classes=2"),
        (dict(x=[[1.0], [2.0]]), "x is a list; give a torch.Tensor"),
        (dict(x=torch.tensor([[1.0], [math.nan]])), "x has NaN or infinite features"),
        (dict(x=torch.tensor([[1.0], [math.inf]])), "x has NaN or infinite features"),
        (dict(x=torch.zeros(2, 1, 0, 4, dtype=torch.uint8)), r"x is \[2, 1, 0, 4\]; give at least one sample"),
        (dict(source=torch.tensor([0, -1])), "source has -1; number the sources"),
        (dict(std=(0.0,)), r"std=\(0\.0,\); give numbers above 0"),
        (dict(std=(-1.0,)), r"std=\(-1\.0,\); give numbers above 0"),
        (dict(std=(math.nan,)), r"std=\(nan,\); give one finite number"),
        (dict(mean=(math.inf,)), r"mean=\(inf,\).* give one finite number"),
        (dict(mean=(0.1, 0.2)), r"mean=\(0\.1, 0\.2\).*one for each of 1 channels"),
    ],
)
def test_fields_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"data set 'made': .*{message}"):
        make(some(2, 1, 2), **changes)


def test_subset_numbers_sources_again():
    data = make(some(4, 1, 2), source=torch.tensor([0, 5, 2, 5]), is_test=torch.tensor([False, True, False, False]))
    few = subset(data, torch.tensor([3, 2, 1]))
    assert few.source.tolist() == [1, 0, 1] and few.is_test.tolist() == [False, False, True]
    assert torch.equal(few.x, data.x[[3, 2, 1]]) and few.num_classes == 2

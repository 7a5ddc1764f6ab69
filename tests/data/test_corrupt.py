"""Corruptions of CIFAR-10-C."""

import colorsys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pfl_core.data import CORRUPTIONS, corrupt, load
from pfl_core.seeding import generator

RANDOM = ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "motion_blur")


def photos(m: int, c: int = 3, side: int = 32) -> torch.Tensor:
    """Smooth images with structure: coarse random patches, enlarged."""
    coarse = torch.rand(m, c, 5, 5, generator=generator(0, "photos", m, c))
    x = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic").clamp(0, 1)
    return (255 * x).round().to(torch.uint8)


def damage(x: torch.Tensor, kind: str, severity: int) -> float:
    return (corrupt(x, kind, severity, generator(0, kind)).float() - x.float()).square().mean().item()


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_every_kind_changes_the_image_more_at_severity_5(kind):
    x, mild = photos(8), 3 if kind == "saturate" else 1  # saturate takes colour away at 1 and 2, adds it from 3 on
    assert 0 < damage(x, kind, mild) < damage(x, kind, 5)


def test_ten_kinds_work_on_small_grey_images():
    x = load("digits").x[:20]
    for kind in list(CORRUPTIONS)[:10]:
        for severity in range(1, 6):
            y = corrupt(x, kind, severity, generator(0, kind))
            assert y.shape == x.shape and y.dtype == torch.uint8
    with pytest.raises(ValueError, match="'saturate' needs 3 channels, not 1"):
        corrupt(x, "saturate", 1, generator(0))


@settings(max_examples=25)
@given(kind=st.sampled_from(sorted(CORRUPTIONS)), severity=st.integers(1, 5), seed=st.integers(0, 9))
def test_equal_generators_give_equal_bytes_and_the_input_stays(kind, severity, seed):
    x = photos(2)
    before = x.clone()
    first, again = (corrupt(x, kind, severity, generator(seed, "c")) for _ in range(2))
    assert torch.equal(first, again) and torch.equal(x, before)
    other = corrupt(x, kind, severity, generator(seed + 1, "c"))
    assert torch.equal(first, other) == (kind not in RANDOM)


def test_noise_has_the_strength_of_cifar_10_c():
    """Middle grey, so that nothing is clipped: σ is 0.08 and 0.12 / 2 at severity 3, sqrt(0.5 / 100) for shots."""
    x = torch.full((20, 3, 32, 32), 128, dtype=torch.uint8)
    for kind, sigma in (
        ("gaussian_noise", 0.08),
        ("speckle_noise", 0.12 * 128 / 255),
        ("shot_noise", (0.502 / 100) ** 0.5),
    ):
        v = corrupt(x, kind, 3, generator(0, kind)).double() / 255
        assert v.std().item() == pytest.approx(sigma, rel=0.02) and v.mean().item() == pytest.approx(0.502, abs=2e-3)


def test_impulse_noise_hits_its_share():
    x = torch.full((20, 3, 32, 32), 128, dtype=torch.uint8)
    y = corrupt(x, "impulse_noise", 5, generator(0))
    assert y.unique().tolist() == [0, 128, 255]
    assert (y == 0).double().mean().item() == pytest.approx(0.035, rel=0.1)
    assert (y == 255).double().mean().item() == pytest.approx(0.035, rel=0.1)


@pytest.mark.parametrize("kind", ["gaussian_blur", "defocus_blur", "motion_blur", "pixelate", "contrast"])
def test_an_even_image_stays_even(kind):
    x = torch.full((3, 3, 16, 16), 77, dtype=torch.uint8)
    assert torch.equal(corrupt(x, kind, 5, generator(0)), x)


def test_gaussian_blur_of_a_point():
    """σ = 1 at severity 5: 255 × exp(-(a² + b²) / 2) / 2π, the tail beyond 4 σ being nothing in bytes."""
    x = torch.zeros(1, 1, 15, 15, dtype=torch.uint8)
    x[0, 0, 7, 7] = 255
    away = torch.arange(15) - 7
    expected = 255 * torch.exp(-(away[:, None] ** 2 + away**2) / 2) / (2 * torch.pi)
    assert (corrupt(x, "gaussian_blur", 5, generator(0))[0, 0] - expected).abs().max() <= 0.51


def test_defocus_blur_of_a_point_is_a_disk():
    """Radius 1.5 covers the 3x3 pixels around; softening by σ = 0.1 changes no byte: 255 / 9 = 28.3."""
    x = torch.zeros(1, 1, 9, 9, dtype=torch.uint8)
    x[0, 0, 4, 4] = 255
    expected = torch.zeros_like(x)
    expected[0, 0, 3:6, 3:6] = 28
    assert torch.equal(corrupt(x, "defocus_blur", 5, generator(0)), expected)


def test_motion_blur_draws_a_line_towards_one_side():
    x = torch.zeros(50, 1, 33, 33, dtype=torch.uint8)
    x[:, 0, 16, 16] = 255
    y = corrupt(x, "motion_blur", 3, generator(0)).float()
    assert (y[:, 0, :, 17:] == 0).all()  # taken from the right, so smeared to the left
    rows = (y[:, 0].sum(2) * torch.arange(33.0)).sum(1) / y[:, 0].sum((1, 2))
    assert rows.min() < 16 < rows.max()  # angles to both sides
    assert y.sum((1, 2, 3)).min() > 240  # the light is spread, not lost


@pytest.mark.parametrize(("severity", "share"), [(1, 0.95), (2, 0.9), (3, 0.85), (4, 0.75), (5, 0.65)])
def test_pixelate_is_pillows_box_filter(severity, share):
    x, small = photos(4), int(32 * share)
    y = corrupt(x, "pixelate", severity, generator(0)).permute(0, 2, 3, 1)
    for before, after in zip(x.permute(0, 2, 3, 1), y, strict=True):
        box = Image.fromarray(before.numpy()).resize((small, small), Image.Resampling.BOX)
        box = np.asarray(box.resize((32, 32), Image.Resampling.BOX)).astype(int)
        assert np.abs(box - after.numpy().astype(int)).max() <= 1


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("brightness", lambda h, s, v: (h, s, min(v + 0.15, 1))),
        ("saturate", lambda h, s, v: (h, min(1.5 * s, 1), v)),
    ],
)
def test_brightness_and_saturate_against_pythons_hsv(kind, change):
    colours = torch.randint(0, 256, (200, 3), dtype=torch.uint8, generator=generator(0, "colours"))
    colours[:3] = torch.tensor([[0, 0, 0], [90, 90, 90], [255, 255, 255]])
    y = corrupt(colours[:, :, None, None], kind, 3, generator(0))[:, :, 0, 0]
    for before, after in zip(colours.tolist(), y.tolist(), strict=True):
        expected = colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*(v / 255 for v in before))))
        assert max(abs(255 * e - a) for e, a in zip(expected, after, strict=True)) <= 0.51


def test_saturate_gives_grey_the_hue_red():
    grey = torch.full((1, 3, 1, 1), 100, dtype=torch.uint8)
    assert corrupt(grey, "saturate", 5, generator(0)).flatten().tolist() == [100, 80, 80]  # s = 0.2


def test_contrast_by_hand():
    x = torch.tensor([0, 100, 200, 100], dtype=torch.uint8).reshape(1, 1, 2, 2)
    assert corrupt(x, "contrast", 2, generator(0)).flatten().tolist() == [50, 100, 150, 100]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("snow", 1), "corruption 'snow' is unknown; choose one of gaussian_noise"),
        (("contrast", 0), "severity=0 is outside 1..5"),
        (("contrast", 2.5), "severity=2.5 is outside 1..5"),
    ],
)
def test_bad_values(arguments, message):
    with pytest.raises(ValueError, match=message):
        corrupt(photos(1), *arguments, generator(0))
    with pytest.raises(ValueError, match="needs uint8 images"):
        corrupt(photos(1).float(), "contrast", 1, generator(0))

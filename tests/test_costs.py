"""Costs against hand-computed values."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pfl_core.costs import payload_bytes, rounds_to, step_flops
from pfl_core.models import build
from tests.helpers import cnn, mlp, same_bits


def test_flops_of_lenet_by_hand():
    """Two for each multiply-add of one 1x28x28 image:

    conv1  6 maps of 24x24, 25 weights      172,800        fc1   256 x 120   61,440
    conv2  16 maps of 8x8, 6 x 25 weights   307,200        fc2   120 x 84    20,160
                                                           head   84 x 10     1,680     in all 563,280
    Backward: twice that, for weights and for inputs; but conv1's input, the image, needs no gradient.
    Batch norm counts nothing, so these are also the numbers of the plain LeNet (batch 32: 18,024,960 and 48,545,280).
    """
    forward, both = step_flops(build("lenet_star", (1, 28, 28), 10, 0), (1, 28, 28))
    assert forward == 563_280 == 18_024_960 // 32
    assert both == 3 * 563_280 - 172_800 == 48_545_280 // 32


def test_flops_of_a_dense_net_by_hand():
    """6 x 5 and 5 x 3 multiply-adds; the input needs no gradient."""
    assert step_flops(mlp(), (6,)) == (2 * (30 + 15), 2 * (3 * (30 + 15) - 30))


def test_flops_of_a_strided_convolution_by_hand():
    """8 channels to 16, 3x3, 9x9 pixels at stride 2 with padding: 5x5; then 16 x 25 to 4."""
    conv = 16 * 25 * 8 * 9
    model = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(400, 4))
    assert step_flops(model, (8, 9, 9)) == (2 * (conv + 1600), 2 * (3 * (conv + 1600) - conv))


@pytest.mark.parametrize(("name", "shape"), [("cnn_small", (1, 8, 8)), ("lenet_star", (1, 28, 28)), ("mlp", (6,))])
def test_flops_are_those_of_torchs_own_counter(name, shape):
    model = build(name, shape, 10, 0)
    with FlopCounterMode(display=False) as both:
        model(torch.zeros(2, *shape)).sum().backward()
    assert step_flops(model, shape)[1] == both.get_total_flops() // 2


def test_counting_flops_draws_no_random_numbers():
    model = nn.Sequential(nn.Dropout(), nn.Linear(6, 3))
    before = torch.get_rng_state()
    step_flops(model, (6,))
    assert torch.equal(before, torch.get_rng_state())


def test_counting_flops_does_not_change_the_model():
    model = cnn(bn=True).eval()
    before = copy.deepcopy(model.state_dict())
    step_flops(model, (1, 4, 4))
    assert same_bits(dict(before), dict(model.state_dict()))
    assert not model.training and all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("values", "bits", "expected"),
    [(0, 0, 0), (3, 0, 12), (0, 1, 1), (0, 8, 1), (0, 9, 2), (3, 9, 14), (2.0, 16.0, 10)],
)
def test_payload_is_four_bytes_a_value_and_one_for_eight_bits(values, bits, expected):
    assert payload_bytes(values, bits) == expected


@pytest.mark.parametrize(
    ("values", "target", "expected"),
    [
        ([10, 20, 30], 20, 2),
        ([10, 20, 30], 20.1, 3),
        ([10, 20, 30], 31, None),
        ([50, 20, 50], 40, 1),
        ([math.nan, 40], 40, 2),
        ([], 1, None),
    ],
)
def test_rounds_to_counts_from_one_and_returns_none_if_never_reached(values, target, expected):
    assert rounds_to(values, target) == expected

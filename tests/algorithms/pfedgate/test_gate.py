"""pFedGate's gate against modules written in plain PyTorch."""

import math

import pytest
import torch

from pfl_core.algorithms.pfedgate.gate import Gate, switch_norm
from pfl_core.seeding import generator
from tests.algorithms.pfedgate.plain import PlainGate

F64 = torch.float64
SHAPES = {"image": (2, 4, 5), "features": (6,)}
both_shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def images(shape, num=7, key=0):
    return 2 + 3 * torch.randn(num, *shape, generator=generator(0, "x", key), dtype=F64)


def started(shape, paths=2, copied=False, scale_bias=0.0, **options):
    gate = Gate(shape, 4, paths, **options)
    params, statistics = gate.start(0, copied=copied, scale_bias=scale_bias)
    return gate, params.to(F64), statistics.to(F64)


def noisy(params):
    return params + 0.1 * torch.randn(params.shape, generator=generator(0, "noise"), dtype=F64)


@both_shapes
@pytest.mark.parametrize("paths", [1, 2])
@pytest.mark.parametrize("options", [{}, {"pre_norm": False}, {"post_norm": False}, {"sigmoid": False}], ids=str)
def test_against_the_plain_gate_in_training_and_evaluation(shape, paths, options):
    """Values, gradients, and running statistics over three batches."""
    gate, params, statistics = started(shape, paths, **options)
    params = noisy(params).requires_grad_()
    plain = PlainGate(gate, params.detach())
    for key in range(3):
        out = gate(params, statistics, images(shape, key=key), "train")
        want = plain.train()(images(shape, key=key))
        for one, other in zip(out, want, strict=True):
            torch.testing.assert_close(one, other)
    (gradient,) = torch.autograd.grad((out[0].sin() + out[1] ** 2).sum(), params)
    (want[0].sin() + want[1] ** 2).sum().backward()
    torch.testing.assert_close(gradient, plain.flat_grad())
    torch.testing.assert_close(statistics, plain.flat_statistics())
    kept = statistics.clone()
    for one, other in zip(gate(params, statistics, images(shape), "eval"), plain.eval()(images(shape)), strict=True):
        torch.testing.assert_close(one, other)
    assert torch.equal(kept, statistics)


@pytest.mark.parametrize(
    ("shape", "num_blocks", "one", "two"),
    [((1, 28, 28), 40, 31_488, 62_968), ((3, 32, 32), 50, 153_762, 307_512), ((3, 32, 32), 40, 123_012, 246_012)],
)
def test_parameter_counts(shape, num_blocks, one, two):
    """Gates of the models for EMNIST, CIFAR-10 and CIFAR-100, with one path and with two."""
    for paths, count in ((1, one), (2, two)):
        gate = Gate(shape, num_blocks, paths)
        assert sum(gate.sizes) == count == len(gate.start(0, copied=False, scale_bias=0.0)[0])


def test_layers_are_initialised_as_in_pytorch():
    gate, params, statistics = started((3, 32, 32))
    gamma, beta, w_mean, w_var, weight, bias, gain, offset = params.split(gate.sizes)
    limit = 3072**-0.5
    for part in (weight, bias):
        assert part.abs().max() <= limit
        assert part.std() == pytest.approx(limit / math.sqrt(3), rel=0.5)
    assert all((part == 1).all() for part in (gamma, w_mean, w_var, gain))
    assert all((part == 0).all() for part in (beta, offset))
    assert statistics.tolist() == [0.0] * 6 + [0.0] * 8 + [1.0] * 8
    first, second = weight.chunk(2)
    assert not torch.equal(first, second)
    copied = started((3, 32, 32), copied=True)[1].split(gate.sizes)
    assert all(torch.equal(*copied[i].chunk(2)) for i in (4, 5, 6, 7))
    assert torch.equal(copied[4].chunk(2)[0], first)
    assert not torch.equal(first, gate.start(1, copied=False, scale_bias=0.0)[0].split(gate.sizes)[4].chunk(2)[0])


@pytest.mark.parametrize("post_norm", [True, False])
def test_last_biases_at_the_start(post_norm):
    """``scale_bias_init`` is added to the scale path only; without sigmoid, 1 is added to both paths."""
    last = -1
    for options, scale, importance in (({}, 3.0, 0.0), ({"sigmoid": False}, 4.0, 1.0)):
        gate, params, _ = started((6,), scale_bias=3.0, post_norm=post_norm, **options)
        plain = started((6,), scale_bias=0.0, post_norm=post_norm)[1].split(gate.sizes)
        at = last if post_norm else 5
        moved = params.split(gate.sizes)[at] - plain[at]
        torch.testing.assert_close(moved, torch.tensor([scale] * 4 + [importance] * 4, dtype=F64))


def test_an_untrained_gate_gives_one_half():
    """Batch norm removes the mean of the logits, whatever the input."""
    gate = Gate((3, 32, 32), 50, 2)
    params, statistics = gate.start(0, copied=False, scale_bias=0.0)
    x = torch.randn(128, 3, 32, 32, generator=generator(0, "x"))
    for out in gate(params, statistics.clone(), 5 + x, "train"):
        assert (out - 0.5).abs().max() < 0.01
    free = Gate((3, 32, 32), 50, 2, sigmoid=False)
    params, _ = free.start(0, copied=False, scale_bias=0.0)
    for out in free(params, statistics.clone(), x, "train"):
        torch.testing.assert_close(out, torch.ones(50))


@pytest.mark.parametrize(("which", "dims"), [(0, (2, 3)), (1, (1, 2, 3)), (2, (0, 2, 3))])
def test_switchable_norm_with_one_kind_of_statistics(which, dims):
    """Instance: unbiased over H x W. Layer and batch: mean of v_in + m_in^2, minus the squared mean."""
    x, ones, zeros = images((2, 4, 5)), torch.ones(2, dtype=F64), torch.zeros(2, dtype=F64)
    mixing = torch.full((3,), -1e4, dtype=F64)
    mixing[which] = 0.0
    out = switch_norm(x.flatten(2), ones, zeros, mixing, mixing, zeros.clone(), zeros.clone(), "train")
    mean = x.mean(dims, keepdim=True)
    v_in = x.var((2, 3), keepdim=True)
    inner = tuple(d for d in dims if d < 2)
    square = v_in + x.mean((2, 3), keepdim=True) ** 2
    var = (square.mean(inner, keepdim=True) if inner else square) - mean**2
    torch.testing.assert_close(out.view_as(x), (x - mean) / (var + 1e-5).sqrt())


def test_a_mean_image_changes_no_statistics_and_gives_the_batch_statistics():
    """The batch norm is affine, and the batch statistics of the switchable norm are those of the image."""
    gate, params, statistics = started((2, 4, 5))
    params, kept, x = noisy(params), statistics.clone(), images((2, 4, 5)).mean(0, keepdim=True)
    out = gate(params, statistics, x, "client")
    assert torch.equal(kept, statistics)
    plain = PlainGate(gate, params).eval()
    plain.mean.copy_(x.mean((0, 2, 3)))
    plain.var.copy_(x.var((2, 3)).mean(0))
    for one, other in zip(out, plain(x), strict=True):
        torch.testing.assert_close(one, other)

"""The fast max-pooling against PyTorch's: equal to the bit, ties, odd sides, second derivatives and NaN included."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from pfl_core import pooling
from pfl_core.pooling import MaxPool2x2, input_gradient, maxima
from tests.helpers import NUM_CLASSES, everyone, federation, seeded

SHAPES = [(8, 3, 28, 28), (2, 3, 7, 6), (2, 3, 6, 7), (1, 1, 2, 2), (3, 9, 5), (1, 2, 3, 200)]


@pytest.fixture(autouse=True)
def always_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "LARGE", 0)


def images(*shape: int, levels: int = 4) -> Tensor:
    """With few different values, so that windows have equal maxima at all positions."""
    return torch.randint(-1, levels, shape, generator=torch.Generator().manual_seed(0)).float()


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square()


def both(x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Output and gradient of the two layers; PyTorch's first."""
    found = []
    for layer in (nn.MaxPool2d(2), MaxPool2x2()):
        leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        out = layer(leaf)
        weights = torch.arange(1.0, out.numel() + 1, dtype=x.dtype).view(out.shape)
        found.append((out.detach(), *torch.autograd.grad((weights * out).sum(), leaf)))
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_outputs_and_gradients_as_in_pytorch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for pytorch, fast in zip(*both(images(*shape).to(dtype)), strict=True):
        assert torch.equal(pytorch, fast)


def test_each_of_the_15_patterns_of_equal_maxima() -> None:
    codes = torch.arange(1, 16)
    windows = torch.stack([(codes >> i & 1).float() for i in range(4)], -1).view(15, 1, 2, 2)
    for pytorch, fast in zip(*both(windows), strict=True):
        assert torch.equal(pytorch, fast)
    assert both(windows)[1][1].count_nonzero() == 15  # one position of each window has the gradient


def test_channels_last() -> None:
    x = images(8, 4, 10, 10).contiguous(memory_format=torch.channels_last)
    for pytorch, fast in zip(*both(x), strict=True):
        assert torch.equal(pytorch, fast)


def test_a_part_of_a_larger_tensor() -> None:
    for pytorch, fast in zip(*both(images(4, 3, 10, 20)[..., 1::2]), strict=True):
        assert torch.equal(pytorch, fast)


def test_a_later_layer_may_overwrite_the_output() -> None:
    """As after ``nn.MaxPool2d``."""
    gradients = []
    for layer in (nn.MaxPool2d(2), MaxPool2x2()):
        x = images(2, 3, 6, 6).requires_grad_()
        nn.ReLU(inplace=True)(layer(x)).square().sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_a_nan_spreads_as_in_pytorch() -> None:
    x = images(1, 1, 2, 8)
    for window in range(4):
        x[0, 0, window // 2, 2 * window + window % 2] = math.nan
    assert maxima(x).isnan().all() and torch.nn.functional.max_pool2d(x, 2).isnan().all()
    assert input_gradient(torch.ones(1, 1, 1, 4), x).sum() == 4  # no gradient is lost


def test_first_and_second_derivatives() -> None:
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(2, 2, 4, 5, dtype=torch.float64, generator=stream).requires_grad_()
    squared = nn.Sequential(MaxPool2x2(), Square())
    assert torch.autograd.gradcheck(squared, x) and torch.autograd.gradgradcheck(squared, x)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("first", ["relu1", "pool1"])
def test_training_is_the_same_to_the_bit(first: str, batched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a ReLU follows the pool: it overwrites the pool's output in the batched backend."""
    layers = {"conv1": nn.Conv2d(1, 3, 3, padding=1), "relu1": nn.ReLU(), "pool1": MaxPool2x2()}
    if first == "pool1":
        layers = {name: layers[name] for name in ("conv1", "pool1", "relu1")}
    rest = {"flatten": nn.Flatten(), "head": nn.Linear(12, NUM_CLASSES)}
    trained = []
    for large in (0, math.inf):
        monkeypatch.setattr(pooling, "LARGE", large)
        fed = federation(seeded(layers | rest, seed=0), shape=(1, 4, 4), stacked=batched, epochs=3)
        trained.append(fed.sgd(fed.broadcast(fed.theta0, everyone(fed)), everyone(fed), key=0).theta)
    assert torch.equal(*trained)


def test_only_large_inputs_on_a_cpu_are_pooled_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert pooling.is_faster(torch.empty(25, 16, 28, 28))
    assert not pooling.is_faster(torch.empty(10, 16, 5, 5))
    assert not pooling.is_faster(torch.empty(25, 16, 28, 28, device="meta"))


@pytest.mark.parametrize("shape", [(2, 3, 1, 8), (2, 3, 8, 1)])
def test_a_side_of_one_pixel_is_refused_as_in_pytorch(shape: tuple[int, ...]) -> None:
    for layer in (nn.MaxPool2d(2), MaxPool2x2()):
        with pytest.raises(RuntimeError, match="Output size is too small"):
            layer(images(*shape))


def test_transforms_of_torch_func() -> None:
    """``grad``, and ``vmap`` over it, as for gradients by sample."""
    x = images(4, 3, 6, 6).double()

    def gradients(layer: nn.Module) -> Tensor:
        return torch.func.vmap(torch.func.grad(lambda one: layer(one).square().sum()))(x)

    torch.testing.assert_close(gradients(MaxPool2x2()), gradients(nn.MaxPool2d(2)))

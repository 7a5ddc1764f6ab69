"""Max-pooling of 2x2 windows: on a CPU several times as fast as PyTorch's, with the same results to the bit.

PyTorch's CPU kernel looks at the values one by one, which takes up to half of a training step of a small convolutional
network. Here whole rows are compared at once. As in PyTorch, the first of equal values has the gradient, and an odd
last row or column is left out. One gradient differs: that of a window with NaN goes to the window's last value, in
PyTorch to its last NaN.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

LARGE = 20_000  # values; in a training step with fewer, PyTorch's kernel is faster

_scatter = torch.ops.aten.max_pool2d_with_indices_backward


class MaxPool2x2(nn.MaxPool2d):
    """``nn.MaxPool2d(2)``, with the faster computation where it is faster: for large inputs on a CPU."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., C, H, W] -> [..., C, H // 2, W // 2]."""
        return _Pooled.apply(x) if is_faster(x) else super().forward(x)


def is_faster(x: Tensor) -> bool:
    """Whether ``maxima`` and ``input_gradient`` are faster than PyTorch's kernels, which refuse sides of one pixel."""
    return x.device.type == "cpu" and x.numel() >= LARGE and min(x.shape[-2:]) > 1


def maxima(x: Tensor) -> Tensor:
    """The maximum of each window, [..., H, W] -> [..., H // 2, W // 2]; NaN if one of the four is."""
    x = _even(x)
    rows = torch.maximum(x[..., 0::2, :], x[..., 1::2, :])  # rows first: this step reads neighbouring values
    return torch.maximum(rows[..., 0::2], rows[..., 1::2])


def input_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient of x [..., H, W] from that of ``maxima(x)``; differentiable in ``gradient``.

    The maxima are computed again, because a later layer may have overwritten them.
    """
    even, width, out = _even(x), x.shape[-1], maxima(x)
    # Which windows have their maximum neither in the first value, nor in the first two, nor in the first three.
    not1 = even[..., 0::2, 0::2] != out
    not2 = (even[..., 0::2, 1::2] != out).logical_and_(not1)
    not3 = (even[..., 1::2, 0::2] != out).logical_and_(not2)
    # Distance from the first value of the window in the flattened rows: 0, 1, width or width + 1.
    offset = not1.int().add_(not2.view(torch.uint8), alpha=width - 1).add_(not3.view(torch.uint8))
    rows, columns = (torch.arange(0, side, 2, device=x.device) for side in even.shape[-2:])
    index = offset.long().add_(rows[:, None] * width + columns)
    return _scatter(gradient, x, [2, 2], [2, 2], [0, 0], [1, 1], False, index)


def _even(x: Tensor) -> Tensor:
    """x without an odd last row or column."""
    height, width = x.shape[-2:]
    return x[..., : height // 2 * 2, : width // 2 * 2]


class _Pooled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return maxima(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return input_gradient(gradient, x)

"""Layers of ``BatchedBackend`` with handwritten backward functions, recorded on a tape.

Activations are [R, B, n]. Those of images are [B, R * C, H, W]: the channels of all rows side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, max_unpool2d
from torch.nn.grad import conv2d_input, conv2d_weight

from pfl_core.pooling import input_gradient, is_faster, maxima

threshold_backward = torch.ops.aten.threshold_backward  # backward of ReLU: passes the gradient where the output is > 0
# (gradient of the output, whether the gradient of the input is needed) -> gradient of the input, or None
Backward = Callable[[Tensor, bool], Tensor | None]


@dataclass
class Tape:
    """The backward functions of one forward pass. Parameters and gradients by name, each [R, *shape]."""

    params: dict[str, Tensor]
    gradients: dict[str, Tensor]  # where the backward pass writes; only the tensors whose gradients are needed
    zero: Tensor  # []
    steps: list[Backward] = field(default_factory=list)
    gate_gradients: list[Tensor] = field(default_factory=list)  # [R, n] each, last layer first
    features: Tensor | None = None
    head: int = 0  # the step of the head
    first: int | None = None  # the first step with a gradient that is needed; the backward pass ends there

    def mark_head(self, h: Tensor) -> None:
        """The next step is the head; its input ``h`` holds the features of the samples."""
        self.features, self.head = h, len(self.steps)

    def backward(self, gradient: Tensor, feature_gradient: Tensor | None) -> None:
        """Backward pass from the gradient of the logits; ``feature_gradient`` is added to that of the features."""
        first = len(self.steps) if self.first is None else self.first
        for i in range(len(self.steps) - 1, first - 1, -1):
            input_gradient = self.steps[i](gradient, i > first)
            if i == first:
                return
            assert input_gradient is not None
            gradient = input_gradient
            if i == self.head and feature_gradient is not None:
                gradient += feature_gradient

    def _add(self, step: Backward, needed: bool = False) -> None:
        """Append a step; ``needed``: it computes a gradient of a parameter or of a gate."""
        if needed and self.first is None:
            self.first = len(self.steps)
        self.steps.append(step)

    def linear(self, name: str, h: Tensor) -> Tensor:
        """h [R, B, in] -> [R, B, out]."""
        weight = self.params[f"{name}.weight"]
        weight_gradient, bias_gradient = self.gradients.get(f"{name}.weight"), self.gradients.get(f"{name}.bias")

        def backward(gradient: Tensor, input_needed: bool) -> Tensor | None:
            if weight_gradient is not None:
                torch.bmm(gradient.transpose(1, 2), h, out=weight_gradient)
            if bias_gradient is not None:
                torch.sum(gradient, 1, out=bias_gradient)
            return gradient.bmm(weight) if input_needed else None

        self._add(backward, weight_gradient is not None or bias_gradient is not None)
        return torch.baddbmm(self.params[f"{name}.bias:"], h, self.params[f"{name}.weight:"])

    def conv(self, name: str, h: Tensor, layer: nn.Conv2d) -> Tensor:
        """h [B, R * in, H, W] -> [B, R * out, H', W']: the convolutions of all rows as one grouped convolution."""
        weight, bias = self.params[f"{name}.weight"], self.params[f"{name}.bias"]
        weight_gradient, bias_gradient = self.gradients.get(f"{name}.weight"), self.gradients.get(f"{name}.bias")
        grouped = weight.flatten(0, 1)  # [R * out, in, k, k]
        settings: Any = (layer.stride, layer.padding, layer.dilation, len(weight))  # the last is the number of groups

        def backward(gradient: Tensor, input_needed: bool) -> Tensor | None:
            if weight_gradient is not None:
                weight_gradient.copy_(conv2d_weight(h, grouped.shape, gradient, *settings).view_as(weight_gradient))
            if bias_gradient is not None:
                bias_gradient.copy_(gradient.sum((0, 2, 3)).view_as(bias_gradient))
            return conv2d_input(h.shape, grouped, gradient, *settings) if input_needed else None

        self._add(backward, weight_gradient is not None or bias_gradient is not None)
        return conv2d(h, grouped, bias.flatten(), *settings)

    def relu(self, h: Tensor, limit: Tensor | None = None) -> Tensor:
        """ReLU. ``limit`` [R, 1, n] is an upper bound: 0 for neurons with a zero gate, infinity for the others."""
        if limit is not None:
            out = h.clamp_(self.zero, _broadcastable(h, limit))
        else:
            out = h.relu_() if self.steps else h.relu()  # the first layer's input is the batch, which must not change
        self._add(lambda gradient, needed: threshold_backward(gradient, out, 0) if needed else None)
        return out

    def masked_relu(self, h: Tensor, gate: Tensor, with_gradient: bool) -> Tensor:
        """``relu`` and ``gate`` in one step for binary gates [R, 1, n]; a zero gate blocks the gradient of h."""
        out = h.relu_()  # in place: no other layer reads h
        masked = out * _broadcastable(h, gate)

        def backward(gradient: Tensor, input_needed: bool) -> Tensor | None:
            if with_gradient:
                self.gate_gradients.append(_gate_sum(gradient * out, gate))
            return threshold_backward(gradient, masked, 0) if input_needed else None

        self._add(backward, with_gradient)
        return masked

    def pool(self, h: Tensor, layer: nn.MaxPool2d) -> Tensor:
        """Max-pooling with windows that do not overlap."""
        if layer.kernel_size in (2, (2, 2)) and is_faster(h):
            self._add(lambda gradient, needed: input_gradient(gradient, h) if needed else None)
            return maxima(h)
        kernel: Any = layer.kernel_size  # Any: the stub of max_unpool2d does not accept an int
        out, index = max_pool2d(h, kernel, return_indices=True)
        size = h.shape[-2:]
        self._add(
            lambda gradient, needed: max_unpool2d(gradient, index, kernel, output_size=size) if needed else None,
        )
        return out

    def flatten(self, h: Tensor, num: int) -> Tensor:
        """h [B, R * C, H, W] -> [R, B, C * H * W]."""
        self._add(lambda gradient, needed: gradient.transpose(0, 1).reshape(h.shape) if needed else None)
        return h.reshape(len(h), num, -1).transpose(0, 1)

    def gate(self, h: Tensor, gate: Tensor, with_gradient: bool) -> Tensor:
        """Activations of each neuron or channel times its gate [R, 1, n]."""
        factor = _broadcastable(h, gate)

        def backward(gradient: Tensor, input_needed: bool) -> Tensor | None:
            if with_gradient:
                self.gate_gradients.append(_gate_sum(gradient * h, gate))
            return gradient * factor if input_needed else None

        self._add(backward, with_gradient)
        return h * factor


def _broadcastable(h: Tensor, gate: Tensor) -> Tensor:
    """gate [R, 1, n] in a shape that broadcasts against h: [R, B, n], or [B, R * n, H, W]."""
    return gate if h.dim() == 3 else gate.reshape(1, -1, 1, 1)


def _gate_sum(h: Tensor, gate: Tensor) -> Tensor:
    """Sum of h ([R, B, n] or [B, R * n, H, W]) over samples and positions -> [R, n]."""
    return h.sum(1) if h.dim() == 3 else h.sum((0, 2, 3)).view(len(gate), -1)

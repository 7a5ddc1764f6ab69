"""The layers of ``stack`` one by one: each step forward notes its way back, the chain rule written out.

Activations are [R, B, n]; those of images [B, R * C, H, W], all rows' channels side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, max_unpool2d
from torch.nn.grad import conv2d_input, conv2d_weight

threshold_backward = torch.ops.aten.threshold_backward  # of ReLU: the gradient where the output is positive
Back = Callable[
    [Tensor, bool], Tensor | None
]  # (gradient of the output, is the input's wanted?) -> gradient of the input


@dataclass
class Tape:
    """One forward pass step by step, each with its way back; parameters and wanted gradients by name, [R, *shape]."""

    params: dict[str, Tensor]
    gradients: dict[str, Tensor]
    zero: Tensor  # []
    steps: list[Back] = field(default_factory=list)
    gate_gradients: list[Tensor] = field(default_factory=list)  # [R, n] each, last layer first
    features: Tensor | None = None
    head: int = 0
    first: int | None = None  # the first step that leads to a gradient that somebody wants

    def mark(self, h: Tensor) -> None:
        """Here comes the head; its input is the samples' features."""
        self.features, self.head = h, len(self.steps)

    def back(self, gradient: Tensor, of_features: Tensor | None) -> None:
        """From the gradient of the logits to all that are wanted; ``of_features`` is what the loss adds to features."""
        first = len(self.steps) if self.first is None else self.first
        for i in range(len(self.steps) - 1, first - 1, -1):
            gradient = self.steps[i](gradient, i > first)
            if i == self.head and i > first and of_features is not None:
                gradient += of_features

    def _add(self, step: Back, wanted: bool = False) -> None:
        if wanted and self.first is None:
            self.first = len(self.steps)
        self.steps.append(step)

    def linear(self, name: str, h: Tensor) -> Tensor:
        """h [R, B, in] -> [R, B, out]."""
        weight = self.params[f"{name}.weight"]
        of_weight, of_bias = self.gradients.get(f"{name}.weight"), self.gradients.get(f"{name}.bias")

        def back(gradient: Tensor, wanted: bool) -> Tensor | None:
            if of_weight is not None:
                torch.bmm(gradient.transpose(1, 2), h, out=of_weight)
            if of_bias is not None:
                torch.sum(gradient, 1, out=of_bias)
            return gradient.bmm(weight) if wanted else None

        self._add(back, of_weight is not None or of_bias is not None)
        return torch.baddbmm(self.params[f"{name}.bias:"], h, self.params[f"{name}.weight:"])

    def conv(self, name: str, h: Tensor, layer: nn.Conv2d) -> Tensor:
        """h [B, R * in, H, W] -> [B, R * out, H', W']."""
        weight, bias = self.params[f"{name}.weight"], self.params[f"{name}.bias"]
        of_weight, of_bias = self.gradients.get(f"{name}.weight"), self.gradients.get(f"{name}.bias")
        grouped, how = weight.flatten(0, 1), (layer.stride, layer.padding, layer.dilation, len(weight))

        def back(gradient: Tensor, wanted: bool) -> Tensor | None:
            if of_weight is not None:
                of_weight.copy_(conv2d_weight(h, grouped.shape, gradient, *how).view_as(of_weight))
            if of_bias is not None:
                of_bias.copy_(gradient.sum((0, 2, 3)).view_as(of_bias))
            return conv2d_input(h.shape, grouped, gradient, *how) if wanted else None

        self._add(back, of_weight is not None or of_bias is not None)
        return conv2d(h, grouped, bias.flatten(), *how)

    def relu(self, h: Tensor, limit: Tensor | None = None) -> Tensor:
        """``limit`` [R, 1, n]: 0 for neurons that are shut, infinity for the others."""
        if limit is not None:
            out = h.clamp_(self.zero, _along(h, limit))
        else:
            out = h.relu_() if self.steps else h.relu()  # the batch itself stays as it is
        self._add(lambda gradient, wanted: threshold_backward(gradient, out, 0) if wanted else None)
        return out

    def masked_relu(self, h: Tensor, gate: Tensor, with_gradient: bool) -> Tensor:
        """``relu`` and ``gate`` in one, for gates of 0 and 1: behind a 0 nothing has a gradient before the ReLU."""
        out = h.relu_()  # of a layer that nobody else reads
        masked = out * _along(h, gate)

        def back(gradient: Tensor, wanted: bool) -> Tensor | None:
            if with_gradient:
                self.gate_gradients.append(_summed(gradient * out, gate))
            return threshold_backward(gradient, masked, 0) if wanted else None

        self._add(back, with_gradient)
        return masked

    def pool(self, h: Tensor, layer: nn.MaxPool2d) -> Tensor:
        out, index = max_pool2d(h, layer.kernel_size, return_indices=True)
        size = h.shape[-2:]
        self._add(
            lambda gradient, wanted: (
                max_unpool2d(gradient, index, layer.kernel_size, output_size=size) if wanted else None
            )
        )
        return out

    def flatten(self, h: Tensor, num: int) -> Tensor:
        """h [B, R * C, H, W] -> [R, B, C * H * W]."""
        self._add(lambda gradient, wanted: gradient.transpose(0, 1).reshape(h.shape) if wanted else None)
        return h.reshape(len(h), num, -1).transpose(0, 1)

    def gate(self, h: Tensor, gate: Tensor, with_gradient: bool) -> Tensor:
        """Each neuron's (or channel's) activation times its gate [R, 1, n]."""
        wide = _along(h, gate)

        def back(gradient: Tensor, wanted: bool) -> Tensor | None:
            if with_gradient:
                self.gate_gradients.append(_summed(gradient * h, gate))
            return gradient * wide if wanted else None

        self._add(back, with_gradient)
        return h * wide


def _along(h: Tensor, gate: Tensor) -> Tensor:
    """[R, 1, n] in the shape that goes with h: [R, B, n], or [B, R * n, H, W]."""
    return gate if h.dim() == 3 else gate.reshape(1, -1, 1, 1)


def _summed(h: Tensor, gate: Tensor) -> Tensor:
    """h as in ``_along`` summed over samples and positions -> [R, n]."""
    return h.sum(1) if h.dim() == 3 else h.sum((0, 2, 3)).view(len(gate), -1)

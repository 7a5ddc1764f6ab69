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

threshold_backward = torch.ops.aten.threshold_backward  # of ReLU: the slope where the output is positive
Back = Callable[[Tensor, bool], Tensor | None]  # (slope of the output, is the input's wanted?) -> slope of the input


@dataclass
class Tape:
    """One forward pass step by step, each with its way back; parameters and wanted slopes by name, [R, *shape]."""

    params: dict[str, Tensor]
    slopes: dict[str, Tensor]
    zero: Tensor  # []
    steps: list[Back] = field(default_factory=list)
    gate_slopes: list[Tensor] = field(default_factory=list)  # [R, n] each, last layer first
    features: Tensor | None = None
    head: int = 0
    first: int | None = None  # the first step that leads to a slope that somebody wants

    def mark(self, h: Tensor) -> None:
        """Here comes the head; its input is the samples' features."""
        self.features, self.head = h, len(self.steps)

    def back(self, slope: Tensor, of_features: Tensor | None) -> None:
        """From the slope of the logits to all that are wanted; ``of_features`` is what the loss adds to the head's."""
        first = len(self.steps) if self.first is None else self.first
        for i in range(len(self.steps) - 1, first - 1, -1):
            slope = self.steps[i](slope, i > first)
            if i == self.head and i > first and of_features is not None:
                slope += of_features

    def _add(self, step: Back, wanted: bool = False) -> None:
        if wanted and self.first is None:
            self.first = len(self.steps)
        self.steps.append(step)

    def linear(self, name: str, h: Tensor) -> Tensor:
        """h [R, B, in] -> [R, B, out]."""
        weight = self.params[f"{name}.weight"]
        of_weight, of_bias = self.slopes.get(f"{name}.weight"), self.slopes.get(f"{name}.bias")

        def back(slope: Tensor, wanted: bool) -> Tensor | None:
            if of_weight is not None:
                torch.bmm(slope.transpose(1, 2), h, out=of_weight)
            if of_bias is not None:
                torch.sum(slope, 1, out=of_bias)
            return slope.bmm(weight) if wanted else None

        self._add(back, of_weight is not None or of_bias is not None)
        return torch.baddbmm(self.params[f"{name}.bias:"], h, self.params[f"{name}.weight:"])

    def conv(self, name: str, h: Tensor, layer: nn.Conv2d) -> Tensor:
        """h [B, R * in, H, W] -> [B, R * out, H', W']."""
        weight, bias = self.params[f"{name}.weight"], self.params[f"{name}.bias"]
        of_weight, of_bias = self.slopes.get(f"{name}.weight"), self.slopes.get(f"{name}.bias")
        grouped, how = weight.flatten(0, 1), (layer.stride, layer.padding, layer.dilation, len(weight))

        def back(slope: Tensor, wanted: bool) -> Tensor | None:
            if of_weight is not None:
                of_weight.copy_(conv2d_weight(h, grouped.shape, slope, *how).view_as(of_weight))
            if of_bias is not None:
                of_bias.copy_(slope.sum((0, 2, 3)).view_as(of_bias))
            return conv2d_input(h.shape, grouped, slope, *how) if wanted else None

        self._add(back, of_weight is not None or of_bias is not None)
        return conv2d(h, grouped, bias.flatten(), *how)

    def relu(self, h: Tensor, limit: Tensor | None = None) -> Tensor:
        """``limit`` [R, 1, n]: 0 for neurons that are shut, infinity for the others."""
        if limit is not None:
            out = h.clamp_(self.zero, _along(h, limit))
        else:
            out = h.relu_() if self.steps else h.relu()  # the batch itself stays as it is
        self._add(lambda slope, wanted: threshold_backward(slope, out, 0) if wanted else None)
        return out

    def masked_relu(self, h: Tensor, gate: Tensor, with_slope: bool) -> Tensor:
        """``relu`` and ``gate`` in one, for gates of 0 and 1: behind a 0 nothing has a slope before the ReLU."""
        out = h.relu_()  # of a layer that nobody else reads
        masked = out * _along(h, gate)

        def back(slope: Tensor, wanted: bool) -> Tensor | None:
            if with_slope:
                self.gate_slopes.append(_summed(slope * out, gate))
            return threshold_backward(slope, masked, 0) if wanted else None

        self._add(back, with_slope)
        return masked

    def pool(self, h: Tensor, layer: nn.MaxPool2d) -> Tensor:
        out, index = max_pool2d(h, layer.kernel_size, return_indices=True)
        size = h.shape[-2:]
        self._add(
            lambda slope, wanted: max_unpool2d(slope, index, layer.kernel_size, output_size=size) if wanted else None
        )
        return out

    def flatten(self, h: Tensor, num: int) -> Tensor:
        """h [B, R * C, H, W] -> [R, B, C * H * W]."""
        self._add(lambda slope, wanted: slope.transpose(0, 1).reshape(h.shape) if wanted else None)
        return h.reshape(len(h), num, -1).transpose(0, 1)

    def gate(self, h: Tensor, gate: Tensor, with_slope: bool) -> Tensor:
        """Each neuron's (or channel's) activation times its gate [R, 1, n]."""
        wide = _along(h, gate)

        def back(slope: Tensor, wanted: bool) -> Tensor | None:
            if with_slope:
                self.gate_slopes.append(_summed(slope * h, gate))
            return slope * wide if wanted else None

        self._add(back, with_slope)
        return h * wide


def _along(h: Tensor, gate: Tensor) -> Tensor:
    """[R, 1, n] in the shape that goes with h: [R, B, n], or [B, R * n, H, W]."""
    return gate if h.dim() == 3 else gate.reshape(1, -1, 1, 1)


def _summed(h: Tensor, gate: Tensor) -> Tensor:
    """h as in ``_along`` summed over samples and positions -> [R, n]."""
    return h.sum(1) if h.dim() == 3 else h.sum((0, 2, 3)).view(len(gate), -1)

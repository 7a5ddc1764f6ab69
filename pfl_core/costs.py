"""Costs of a run: bytes sent, FLOPs, rounds to reach a target."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfl_core.layout import WEIGHT

if TYPE_CHECKING:
    from pfl_core.federation import Federation

VALUE_BYTES = 4  # a float32 on the wire


def payload_bytes(values: float, bits: float = 0.0) -> float:
    """Bytes of ``values`` float32 numbers and ``bits`` mask bits."""
    return VALUE_BYTES * values + math.ceil(bits / 8) if bits else VALUE_BYTES * values


def step_flops(model: nn.Module, shape: tuple[int, ...]) -> tuple[int, int]:
    """FLOPs of one sample: (forward pass, forward and backward pass), 2 for each multiply-add.

    Counted by torch on a copy; ``shape`` is that of one sample. Norms, activations and pooling count 0, as in the
    papers.
    """
    from torch.utils.flop_counter import FlopCounterMode

    model = copy.deepcopy(model).to("meta").train()  # shapes only: nothing is computed
    x = torch.zeros(2, *shape, device="meta")  # batch norm needs at least two samples
    with FlopCounterMode(display=False) as forward:
        logits = model(x)
    with FlopCounterMode(display=False) as forward_backward:
        cross_entropy(model(x), torch.zeros(2, dtype=torch.int64, device="meta")).backward()
    del logits
    return forward.get_total_flops() // 2, forward_backward.get_total_flops() // 2


def rounds_to(values: Sequence[float], target: float) -> int | None:
    """The first round (from 1) whose value is at least ``target``; None if the target is never reached."""
    return next((t for t, value in enumerate(values, start=1) if value >= target), None)


def weight_uses(fed: Federation, theta: Tensor) -> Tensor:
    """u [d] int32: how often one image uses each weight (convolution: pixels of the output map); bias, norms: 0."""
    x, y = fed.splits["train"].client(0)
    uses = torch.zeros(fed.num_params, dtype=torch.int32, device=theta.device)
    for f in fed.layout.params:
        if f.kind == WEIGHT and len(f.shape) > 1:
            (out,) = fed.forward(theta[None], torch.tensor([0]), [(x[:1], y[:1])], layer=f.layer)
            uses[f.start : f.stop] = out[0, 0].numel()
    return uses

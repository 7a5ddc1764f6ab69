"""Costs of a run: bytes sent, FLOPs, rounds to reach a target."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from pfl_core.layout import WEIGHT, logits_of
from pfl_core.seeding import seeded

if TYPE_CHECKING:
    from pfl_core.federation import Federation

VALUE_BYTES = 4  # a float32 on the wire


def payload_bytes(values: float, bits: float = 0.0) -> float:
    """Bytes of ``values`` float32 numbers and ``bits`` mask bits."""
    return VALUE_BYTES * values + math.ceil(bits / 8) if bits else VALUE_BYTES * values


class _FlopCounter(TorchDispatchMode):
    """Adds up the FLOPs of all operations, by torch's formulas.

    ``FlopCounterMode`` of torch gives the same sum, but imports torch's compiler, which takes a second.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without this, torch imports its compiler to keep it out of ``__torch_dispatch__``."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils.flop_counter import flop_registry

        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.total += formula(*args, **kwargs, out_val=out)
        return out


def step_flops(model: nn.Module, shape: tuple[int, ...]) -> tuple[int, int]:
    """FLOPs of one sample: (forward pass, forward and backward pass), 2 for each multiply-add.

    Counted while a copy computes two samples; ``shape`` is that of one sample. Norms, activations and pooling count 0,
    as in the papers.
    """
    model = copy.deepcopy(model).cpu().float().train()
    x = torch.zeros(2, *shape)  # batch norm needs at least two samples
    with seeded(0, "flops"):  # dropout draws numbers
        with _FlopCounter() as forward:
            model(x)
        with _FlopCounter() as forward_backward:
            cross_entropy(logits_of(model(x)), torch.zeros(2, dtype=torch.int64)).backward()
    return forward.total // 2, forward_backward.total // 2


def rounds_to(values: Sequence[float], target: float) -> int | None:
    """The first round (from 1) whose value is at least ``target``; None if the target is never reached."""
    return next((t for t, value in enumerate(values, start=1) if value >= target), None)


def weight_uses(fed: Federation, theta: Tensor) -> Tensor:
    """u [d] int32: how often one image uses each weight (convolution: pixels of the output map); bias, norms: 0.

    A layer that the network does not call has 0, too.
    """
    x, y = fed.splits["train"].client(0)
    uses = torch.zeros(fed.num_params, dtype=torch.int32, device=theta.device)
    for f in fed.layout.params:
        if f.kind == WEIGHT and len(f.shape) > 1 and f.layer in fed.traced.inputs:
            (out,) = fed.forward(theta[None], torch.tensor([0]), [(x[:1], y[:1])], layer=f.layer)
            uses[f.start : f.stop] = out[0].numel() // out.shape[1 if len(f.shape) > 2 else -1]
    return uses

"""Rows that train together, with their optimizer state, and the SGD step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from pfl_core.federation.types import GradientHook
from pfl_core.ops import ABSENT, bits, keep_
from pfl_core.training import Training

BLOCK = 2**18  # entries of a row that are updated together, so that temporaries stay in the cache
STATE = ("theta", "velocity", "variables", "velocity_variables", "total")  # the tensors that training changes


@dataclass
class TrainingGroup:
    """The rows of a call of ``sgd``, or R of them that train together. ``step`` updates the tensors in place."""

    numbers: list[int]  # [R] the rows' positions in the call, as passed to hooks
    theta: Tensor  # [R, e]
    lr: list[float]  # [R]
    config: Training
    trainable: Tensor = ABSENT  # bool [R, d]; None: all entries
    velocity: Tensor = ABSENT  # [R, d]
    variables: Tensor = ABSENT  # [R, v]
    velocity_variables: Tensor = ABSENT  # [R, v]
    lr_variables: float = 0.0
    decay_variables: float | None = None  # weight decay of the variables; None: that of ``config``
    total: Tensor = ABSENT  # [R] sum of the losses of all samples so far; default: 0
    seen: list[int] = field(default_factory=list)  # samples so far of each row of the call, by ``numbers``
    steps: list[int] = field(default_factory=list)  # batches so far, in the same way
    _bits: Tensor = ABSENT  # [R, d] ``ops.bits`` of ``trainable``
    _buffers: dict[int, Tensor] = field(default_factory=dict)  # thread -> ``_bits`` of its last group, for reuse

    def __post_init__(self) -> None:
        self._common_lr = self.lr[0] if len(set(self.lr)) == 1 else None  # None: rates differ between rows
        if self.total is None:
            rows = len(self.numbers)
            self.total, self.seen, self.steps = torch.zeros(rows, device=self.theta.device), [0] * rows, [0] * rows

    def take(self, rows: slice | Tensor, start: Tensor | None = None) -> TrainingGroup:
        """The rows of one group, see ``Federation.groups``; call ``put`` when they are trained.

        ``start`` [S, e]: the values that theta begins with. Default: those that it has.
        """
        numbers = torch.arange(len(self.numbers))[rows].tolist()
        parts = {name: _rows(getattr(self, name), rows) for name in (*STATE, "trainable")}
        group = replace(self, numbers=numbers, lr=[self.lr[s] for s in numbers], **parts)
        if start is not None:
            group.theta.copy_(start[rows])
        if group.trainable is not None:
            group._bits = bits(group.trainable, group.theta, self._buffers.get(get_ident()))
            self._buffers[get_ident()] = group._bits
        return group

    def put(self, rows: slice | Tensor, group: TrainingGroup) -> None:
        """Write a trained group back. The rows of a slice are views, those of a tensor of positions are copies."""
        if isinstance(rows, Tensor):
            for name in STATE:
                if (whole := getattr(self, name)) is not None:
                    whole[rows] = getattr(group, name)

    def record(self, loss: Tensor, count: Sequence[int], weight: Tensor) -> None:
        """Record a batch of the first R' rows: mean losses [R'], and samples [R'] as integers and as floats."""
        self.total[: len(count)].addcmul_(loss.to(self.total), weight.to(self.total))
        for s, samples in zip(self.numbers, count, strict=False):
            self.seen[s] += samples
            self.steps[s] += 1

    @property
    def loss(self) -> Tensor:
        """[S] mean loss over all samples of all steps, of a whole call; NaN without a step."""
        return self.total.cpu() / torch.tensor(self.seen)

    @property
    def in_blocks(self) -> bool:
        """Whether a step updates block by block."""
        return self.theta.shape[1] > BLOCK and self.theta.device.type == "cpu"

    @property
    def accepts_parts(self) -> bool:
        """Whether a step without a hook accepts the gradient tensor by tensor."""
        return self.in_blocks and self.config.clip_norm is None

    def step(self, g: Tensor | Sequence[Tensor], variable_gradient: Tensor | None, hook: GradientHook | None) -> None:
        """One step of the first R' rows and of their variables. Theta and variables are clipped separately.

        g [R', d]; if ``accepts_parts`` and there is no hook, also a list of its column blocks.
        """
        parts = [g] if isinstance(g, Tensor) else g
        num = len(parts[0])
        params = self.theta[:num, : sum(part.shape[1] for part in parts)]
        if hook is not None:
            rows = zip(parts[0], params, self.numbers[:num], strict=True)
            parts = [torch.stack([hook(g_k, theta_k, s) for g_k, theta_k, s in rows])]
        weight_decay = self.config.weight_decay
        self._update(params, parts, _first(self.velocity, num), self._common_lr, weight_decay, _first(self._bits, num))
        if variable_gradient is not None:
            velocity = _first(self.velocity_variables, num)
            decay = weight_decay if self.decay_variables is None else self.decay_variables
            self._update(self.variables[:num], [variable_gradient], velocity, self.lr_variables, decay, None)

    def _update(
        self,
        x: Tensor,
        parts: Sequence[Tensor],
        velocity: Tensor | None,
        lr: float | None,
        decay: float,
        trainable: Tensor | None,
    ) -> None:
        """x <- x - lr (g + decay x), with clipping and momentum; x, velocity, trainable [R', n], g in column blocks."""
        if self.config.clip_norm is not None:
            (g,) = parts
            g = g if trainable is None else keep_(g, trainable)
            parts = [g * (self.config.clip_norm / (g.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0)]
        if not self.in_blocks:
            (g,) = parts
            self._update_block(x, g, velocity, trainable, lr, decay)
            return
        blocks = [block for part in parts for block in part.split(BLOCK, 1)]
        sizes = [block.shape[1] for block in blocks]
        state = (_split(each, sizes) for each in (velocity, trainable))
        for g, x_block, v_block, mask in zip(blocks, x.split(sizes, 1), *state, strict=True):
            self._update_block(x_block, g, v_block, mask, lr, decay)

    def _update_block(
        self, x: Tensor, g: Tensor, velocity: Tensor | None, trainable: Tensor | None, lr: float | None, decay: float
    ) -> None:
        """``_update`` of a block with a clipped gradient; entries that are not trainable stay bitwise unchanged."""
        if trainable is not None:
            g = keep_(g, trainable)
        if decay:
            g = g.add(x, alpha=decay)
        if velocity is not None:
            g = velocity.mul_(self.config.momentum).add_(g)
        if trainable is not None and (decay or velocity is not None):
            g = keep_(g.clone(), trainable)  # a copy: g may be the velocity
        if lr is not None:
            x.add_(g, alpha=-lr)
            return
        for row, gradient, rate in zip(x, g, self.lr, strict=False):
            row.add_(gradient, alpha=-rate)


def _rows(x: Tensor | None, rows: slice | Tensor) -> Any:
    return None if x is None else x[rows]


def _first(x: Tensor | None, num: int) -> Tensor | None:
    return None if x is None else x[:num]


def _split(x: Tensor | None, sizes: list[int]) -> Sequence[Tensor | None]:
    """Column blocks of x; None for each block if there is no x."""
    return [None] * len(sizes) if x is None else x.split(sizes, 1)

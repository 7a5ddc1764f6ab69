"""Rows in training together: their places, their optimizer state, and the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor

from pfl_core.federation.types import GradientHook
from pfl_core.ops import keep_
from pfl_core.training import Training

BLOCK = 2**18  # entries of a row that go through all parts of a step together, while they are in the cache


@dataclass
class TrainingGroup:
    """A group of R rows of a call; every tensor is written into by ``step``."""

    numbers: list[int]  # [R] s, as the hooks know them
    theta: Tensor  # [R, e]
    lr: list[float]  # [R]
    config: Training
    trainable: Tensor | None = None  # [R, d], ``ops.bits`` of the mask
    velocity: Tensor | None = None  # [R, d]
    variables: Tensor | None = None  # [R, v]
    velocity_variables: Tensor | None = None  # [R, v]
    lr_variables: float = 0.0
    decay_variables: float | None = None  # None: the configuration's

    def __post_init__(self) -> None:
        self._one_lr = self.lr[0] if len(set(self.lr)) == 1 else None

    @property
    def by_blocks(self) -> bool:
        """Whether a step goes block by block."""
        return self.theta.shape[1] > BLOCK and self.theta.device.type == "cpu"

    @property
    def takes_parts(self) -> bool:
        """Whether a step without a hook takes the gradient in parts as well as whole."""
        return self.by_blocks and self.config.clip_norm is None

    def step(self, g: Tensor | Sequence[Tensor], own: Tensor | None, hook: GradientHook | None) -> None:
        """One step of the first rows, and of their variables; each has its gradient clipped by itself.

        g [R', d], or if ``takes_parts`` and without a hook its parts side by side.
        """
        parts = [g] if isinstance(g, Tensor) else g
        num = len(parts[0])
        params = self.theta[:num, : sum(part.shape[1] for part in parts)]
        if hook is not None:
            parts = [torch.stack([hook(*each) for each in zip(g, params, self.numbers[:num], strict=True)])]
        self._move(
            params,
            parts,
            _first(self.velocity, num),
            self._one_lr,
            self.config.weight_decay,
            _first(self.trainable, num),
        )
        if own is not None:
            velocity = _first(self.velocity_variables, num)
            decay = self.config.weight_decay if self.decay_variables is None else self.decay_variables
            self._move(self.variables[:num], [own], velocity, self.lr_variables, decay, None)

    def _move(
        self,
        x: Tensor,
        parts: Sequence[Tensor],
        velocity: Tensor | None,
        lr: float | None,
        decay: float,
        trainable: Tensor | None,
    ) -> None:
        """x <- x - lr (g + decay x), with clipping and momentum, all [R', d] or None; g in parts side by side."""
        if self.config.clip_norm is not None:
            (g,) = parts
            g = g if trainable is None else keep_(g, trainable)
            parts = [g * (self.config.clip_norm / (g.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0)]
        if not self.by_blocks:
            (g,) = parts
            self._move_block(x, g, velocity, trainable, lr, decay)
            return
        blocks = [block for part in parts for block in part.split(BLOCK, 1)]
        sizes = [block.shape[1] for block in blocks]
        others = (repeat(None) if each is None else each.split(sizes, 1) for each in (x, velocity, trainable))
        for g, here, *rest in zip(blocks, *others, strict=False):
            self._move_block(here, g, *rest, lr, decay)

    def _move_block(
        self, x: Tensor, g: Tensor, velocity: Tensor | None, trainable: Tensor | None, lr: float | None, decay: float
    ) -> None:
        """``_move`` for some of the entries, clipped already; frozen ones do not move by one bit."""
        if trainable is not None:
            g = keep_(g, trainable)
        if decay:
            g = g.add(x, alpha=decay)
        if velocity is not None:
            g = velocity.mul_(self.config.momentum).add_(g)
        if trainable is not None and (decay or velocity is not None):
            g = keep_(g.clone(), trainable)
        if lr is not None:
            x.add_(g, alpha=-lr)
            return
        for row, gradient, rate in zip(x, g, self.lr, strict=False):
            row.add_(gradient, alpha=-rate)


def _first(x: Tensor | None, num: int) -> Tensor | None:
    return None if x is None else x[:num]

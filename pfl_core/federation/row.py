"""One row in training: its place, its optimizer state, and the step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pfl_core.federation.records import GradHook
from pfl_core.ops import keep_
from pfl_core.training import Training


@dataclass
class Row:
    """Row s of a call, client k; every tensor is a view that ``step`` writes into."""

    s: int
    k: int
    theta: Tensor  # [e]
    lr: float
    config: Training
    trainable: Tensor | None  # [d], ``ops.bits`` of the mask
    velocity: Tensor | None  # [d]
    variables: Tensor | None  # [v]
    velocity_variables: Tensor | None  # [v]
    lr_variables: float

    def step(self, g: Tensor, own: Tensor | None, hook: GradHook | None) -> None:
        """One step of theta, and of the method's variables; each has its gradient clipped by itself."""
        params = self.theta[: len(g)]
        wanted = g if hook is None else hook(g, params, self.s)
        if self.trainable is not None:
            wanted = keep_(wanted if wanted is g else wanted.clone(), self.trainable)
        self._move(params, wanted, self.velocity, self.lr, self.trainable)
        if own is not None:
            self._move(self.variables, own, self.velocity_variables, self.lr_variables, None)

    def _move(self, x: Tensor, g: Tensor, velocity: Tensor | None, lr: float, trainable: Tensor | None) -> None:
        """x <- x - lr (g + decay x), with clipping and momentum; frozen entries, 0 in g, do not move by one bit."""
        if self.config.clip_norm is not None:
            g = g * (self.config.clip_norm / (g.norm() + 1e-6)).clamp(max=1.0)
        if self.config.weight_decay:
            g = g.add(x, alpha=self.config.weight_decay)
        if velocity is not None:
            g = velocity.mul_(self.config.momentum).add_(g)
        if trainable is not None and (self.config.weight_decay or velocity is not None):
            g = keep_(g.clone(), trainable)
        x.add_(g, alpha=-lr)

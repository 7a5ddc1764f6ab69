"""One row in training: its place, its optimizer state, and the step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_core.federation.records import GradHook
from pfl_core.training import Training


@dataclass
class Row:
    """Row s of a call, client k; every tensor is a view that ``step`` writes into."""

    s: int
    k: int
    theta: Tensor  # [e]
    lr: float
    config: Training
    trainable: Tensor | None  # bool [d]
    velocity: Tensor | None  # [d]
    variables: Tensor | None  # [v]
    lr_variables: float | None

    def step(self, g: Tensor, own: Tensor | None, hook: GradHook | None) -> None:
        """theta <- theta - lr (g + decay theta), with momentum; frozen entries do not move by one bit."""
        params = self.theta[: len(g)]
        if hook is not None:
            g = hook(g, params, self.s)
        if self.config.clip_norm is not None:
            g = g * (self.config.clip_norm / (g.norm() + 1e-6)).clamp(max=1.0)
        if self.config.weight_decay:
            g = g.add(params, alpha=self.config.weight_decay)
        if self.velocity is not None:
            g = self.velocity.mul_(self.config.momentum).add_(g)
        if self.trainable is not None:
            g = torch.where(self.trainable, g, 0.0)
        params.add_(g, alpha=-self.lr)
        if own is not None:
            self.variables.add_(own, alpha=-self.lr_variables)

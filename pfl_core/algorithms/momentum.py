r"""Momentum that stays with its client: its optimizer lives through all rounds, and only the model in it is replaced.

    v_k, θ_k ← SGD(θ, v_k; D_k)        v_k as k's last round left it, 0 before the first

So pFedGate's released code trains, the gated model and its baselines alike (section 4.6 of its specification). Off by
default: an optimizer that is made anew in each round, at rest, as the other papers' code has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pfl_core.algorithm import Algorithm, State
from pfl_core.federation import Federation
from pfl_core.ops import ClientRows, put, take


@dataclass(frozen=True)
class MovingState(State):
    velocity: ClientRows | None = field(default=None, metadata={"added": True})  # N rows [d], or longer


@dataclass(frozen=True)
class Momentum(Algorithm):
    """A method whose clients can keep it. What is trained for scoring alone, or once, starts at rest."""

    keep_momentum: bool = field(default=False, kw_only=True)

    def init(self, fed: Federation, theta0: Tensor) -> MovingState:
        return MovingState(shared=theta0)

    def client_momentum(self, fed: Federation, state: MovingState, size: int | None = None) -> ClientMomentum:
        """The clients' momentum [N, size] (default: [N, d]) as a round finds it."""
        if not (self.keep_momentum and fed.train.momentum):
            return ClientMomentum(None)
        zero = fed.theta0.new_zeros(fed.num_params if size is None else size)
        return ClientMomentum(state.velocity or (zero,) * fed.num_clients)


@dataclass
class ClientMomentum:
    """The clients' velocities during a round. Without rows every training starts at rest."""

    rows: ClientRows | None

    def take(self, clients: Tensor) -> Tensor | None:
        """The velocities [S, size] of these clients, for ``fed.sgd``."""
        return None if self.rows is None else take(self.rows, clients)

    def into(self, state: State) -> State:
        """``state`` with the rows as they are now."""
        return state if self.rows is None else replace(state, velocity=self.rows)

    def put(self, clients: Tensor, *velocity: Tensor | None) -> None:
        """Store the velocities [S, size] after these clients' training, or parts of them side by side."""
        if self.rows is not None:
            self.rows = put(self.rows, clients, [torch.cat(parts) for parts in zip(*velocity, strict=True)])


def effective_steps(steps: Tensor, momentum: float) -> Tensor:
    """The length of ``steps`` [S] SGD steps with momentum, in plain steps."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)

r"""Momentum that persists across rounds: each client keeps its optimizer's velocity, and only the model is replaced.

    v_k, θ_k ← SGD(θ, v_k; D_k)        v_k as client k's last round left it; 0 before its first round

pFedGate's released code trains this way, its baselines included. Off by default: the code of the other papers creates
a new optimizer in every round, so that every round starts with zero velocity.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import torch
from torch import Tensor

from pfl_core.algorithm import Algorithm, State
from pfl_core.federation import Federation
from pfl_core.ops import ClientRows, put, take


@dataclass(frozen=True)
class MovingState(State):
    velocity: ClientRows | None = field(default=None, metadata={"added": True})  # N rows [d], or longer


MovingStateT = TypeVar("MovingStateT", bound=MovingState)


@dataclass(frozen=True)
class Momentum(Algorithm[MovingStateT]):
    """A method whose clients can keep their velocity. Fine-tuning for evaluation always starts with zero velocity."""

    keep_momentum: bool = field(default=False, kw_only=True)

    def init(self, fed: Federation, theta0: Tensor) -> MovingStateT:
        return cast(MovingStateT, MovingState(shared=theta0))  # a method with a richer state overrides this

    def client_momentum(self, fed: Federation, state: MovingStateT, size: int | None = None) -> ClientMomentum:
        """The velocities [N, size] at the start of a round (default: [N, d])."""
        if not (self.keep_momentum and fed.train.momentum):
            return ClientMomentum(None)
        zero = fed.theta0.new_zeros(fed.num_params if size is None else size)
        return ClientMomentum(state.velocity or (zero,) * fed.num_clients)


@dataclass
class ClientMomentum:
    """The clients' velocities during a round. Without rows, all local training starts with zero velocity."""

    rows: ClientRows | None

    def take(self, clients: Tensor) -> Tensor | None:
        """The velocities [S, size] of these clients, for ``fed.sgd``."""
        return None if self.rows is None else take(self.rows, clients)

    def into(self, state: MovingStateT) -> MovingStateT:
        """``state`` with the current velocities."""
        return state if self.rows is None else replace(state, velocity=self.rows)

    def put(self, clients: Tensor, *velocity: Tensor | None) -> None:
        """Store the velocities [S, size] after these clients' training. Several tensors are joined side by side."""
        if self.rows is not None:
            self.rows = put(self.rows, clients, [torch.cat(parts) for parts in zip(*velocity, strict=True)])


def effective_steps(steps: Tensor, momentum: float) -> Tensor:
    """The number [S] of plain SGD steps that go as far as ``steps`` [S] steps with momentum, for a constant gradient.

    [K − ρ (1 − ρ^K) / (1 − ρ)] / (1 − ρ) for K steps with momentum ρ.
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)

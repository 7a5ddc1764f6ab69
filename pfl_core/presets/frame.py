"""A run's frame: everything of it but its method and seed."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_core.runs.spec import ComponentSpec
from pfl_core.training import Training


@dataclass(frozen=True)
class Setting:
    """A run's frame; see RunSpec for the fields."""

    data: ComponentSpec
    partition: ComponentSpec
    model: ComponentSpec
    train: Training
    clients: int
    rounds: int
    participation: float = 1.0
    sampling: str = "each_round"
    eval_every: int = 1
    novel: float = 0.0

"""What goes into the verbs and what comes out: plain frozen records of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pfl_core.ops import ABSENT


@dataclass(frozen=True)
class Split:
    """One split of all clients' data, client by client: samples ``bounds[k]:bounds[k + 1]`` are client k's."""

    x: Tensor  # [n, ...] float
    y: Tensor  # [n] int64
    bounds: tuple[int, ...]  # [N + 1]

    @classmethod
    def of(cls, parts: Sequence[tuple[Tensor, Tensor]]) -> Split:
        """Join (x [n_k, ...], y [n_k]) of every client."""
        bounds = [0]
        for _, y in parts:
            bounds.append(bounds[-1] + len(y))
        return cls(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]), tuple(bounds))

    def client(self, k: int) -> tuple[Tensor, Tensor]:
        """Views (x [n_k, ...], y [n_k])."""
        start, stop = self.bounds[k], self.bounds[k + 1]
        return self.x[start:stop], self.y[start:stop]

    @property
    def sizes(self) -> Tensor:
        return torch.tensor(self.bounds).diff()


@dataclass(frozen=True)
class Batch:
    """One mini-batch of each row: x [R, B, ...], y [R, B], index [R, B] into the client's samples.

    ``clients`` [R]: those of the group that have a batch left, always its first R. ``count``: a row's samples; what
    lies beyond them fills up the block and counts for nothing.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    clients: Tensor
    count: tuple[int, ...]
    weight: Tensor  # [R] ``count`` as floats


@dataclass(frozen=True)
class Output:
    """What a loss hook sees of one row's batch."""

    logits: Tensor  # [B, C]
    features: Tensor  # [B, f], the head's input
    labels: Tensor  # [B]
    index: Tensor  # [B], which of the client's samples
    x: Tensor  # [B, ...]
    theta: Tensor  # [e], a live view of the row in training (with derived weights: their source): read only
    row: int  # s
    client: int  # k


@dataclass(frozen=True, eq=False)
class DerivedWeights:
    """Train through weights that are computed from theta and from variables of the method's own.

    ``function(theta_k, variables_k, x, s)`` -> [d] takes row s's parameters [d], its variables [v] (None without any)
    and the batch's samples. Gradients reach theta and the variables together.
    """

    function: WeightsFunction | None
    variables: Tensor | None = None  # [S, v]; ``fed.sgd`` trains a copy, at a rate and a velocity of its own
    lr: float | None = None  # of the variables; None: the federation's
    velocity: Tensor | None = None  # [S, v] of the variables, carried in and, in the result, out; None: at rest
    weight_decay: float | None = None  # of the variables; None: the federation's


@dataclass(frozen=True, eq=False)
class LocalTraining:
    """How a method's local training differs from plain SGD with the federation's ``Training``; see ``Federation.sgd``.

    Every field is one place where papers differ. The defaults are plain SGD.
    """

    epochs: Epochs = None  # passes over the data (0: no step), or which: range(2, 3) has the third pass's batches
    lr: float | Tensor | None = None  # one rate, or one for each row [S]; None: the federation's
    trainable: Tensor | None = None  # bool [d] or [e], or one row each: other entries stay bitwise unchanged
    gradient: GradientHook | None = None  # (g [d], theta_k [d], s) -> the gradient that is used
    loss: LossHook | None = None  # replaces the mean cross-entropy
    weights: DerivedWeights | None = None  # the forward pass runs through these
    norm_mode: str = "train"  # "eval" freezes batch-norm statistics
    smallest_batch: int = 1  # smaller ones are left out; with batch norm at least 2


@dataclass(frozen=True)
class Trained:
    """What local training returns."""

    theta: Tensor  # [S, e]
    loss: Tensor  # [S] mean training loss over the samples seen (not a number after 0 steps)
    steps: Tensor  # [S] mini-batches
    velocity: Tensor = ABSENT  # [S, d] if a velocity was passed in, else None
    variables: Tensor = ABSENT  # [S, v] if the forward pass has derived weights with variables, else None
    velocity_variables: Tensor = ABSENT  # [S, v] likewise, if their velocity was passed in


@dataclass(frozen=True)
class Grad:
    """Gradients of one batch's mean loss for every row; None for what was not requested."""

    loss: Tensor  # [S]
    statistics: Tensor  # [S, e - d], as the forward pass left them
    theta: Tensor  # [S, d]
    variables: Tensor = ABSENT  # [S, v]
    gates: Tensor = ABSENT  # [S, h]


@dataclass(frozen=True)
class Scores:
    """Sums per client, never a mean of batch means."""

    correct: Tensor  # [S] int
    count: Tensor  # [S] int
    loss: Tensor  # [S] mean cross-entropy

    @classmethod
    def join(cls, parts: Sequence[Scores]) -> Scores:
        """Chunks of clients, one after the other."""
        return cls(*(torch.cat([getattr(p, name) for p in parts]) for name in ("correct", "count", "loss")))


@dataclass(frozen=True)
class GradientRequest:
    """What a backend computes, beyond the gradient of the mean cross-entropy at theta; see ``Federation.grad``."""

    loss: LossHook | None = None
    weights: WeightsFunction | None = None
    variables: Tensor | None = None  # [R, v]
    gates: Tensor | None = None  # [R, h]
    with_gates: bool = False  # whether the gradient of the gates is wanted
    with_loss: bool = True  # whether the value of the loss is
    in_parts: bool = False  # whether the gradient may stay where autograd puts it, tensor by tensor


Epochs = int | range | None  # how many passes, or which; None: as many as the federation's training says
Samples = str | Sequence[tuple[Tensor, Tensor]]  # a split's name, or (x, y) for each of the clients given
LossHook = Callable[[Output], Tensor]
GradientHook = Callable[[Tensor, Tensor, int], Tensor]  # (g [d], theta_k [d], row) -> g [d]
# (theta_k [d], variables_k [v] or None, x [B, ...], row) -> derived weights [d]; Any: the method knows which
WeightsFunction = Callable[[Tensor, Any, Tensor, int], Tensor]
Predict = Callable[[int, Tensor, Tensor], Tensor]  # (client, theta_k [e], x [B, ...]) -> scores [B, C]

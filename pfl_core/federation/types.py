"""Arguments and results of the federation's methods: frozen dataclasses of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pfl_core.ops import ABSENT


@dataclass(frozen=True)
class Split:
    """One split of all clients' data. The samples of client k are ``bounds[k]:bounds[k + 1]``."""

    x: Tensor  # [n, ...] float
    y: Tensor  # [n] int64
    bounds: tuple[int, ...]  # [N + 1]

    @classmethod
    def of(cls, parts: Sequence[tuple[Tensor, Tensor]]) -> Split:
        """Concatenate the samples (x [n_k, ...], y [n_k]) of the clients."""
        bounds = [0]
        for _, y in parts:
            bounds.append(bounds[-1] + len(y))
        return cls(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]), tuple(bounds))

    def client(self, k: int) -> tuple[Tensor, Tensor]:
        """Samples of client k as views (x [n_k, ...], y [n_k])."""
        start, stop = self.bounds[k], self.bounds[k + 1]
        return self.x[start:stop], self.y[start:stop]

    @property
    def sizes(self) -> Tensor:
        """[N] samples of each client."""
        return torch.tensor(self.bounds).diff()


@dataclass(frozen=True)
class Batch:
    """One mini-batch for each of R rows: the clients of a group that have a batch left, always its first R.

    Rows may have different numbers of samples; the shorter ones are padded, and padding is ignored.
    """

    x: Tensor  # [R, B, ...]
    y: Tensor  # [R, B]
    index: Tensor  # [R, B], positions among the client's samples
    clients: Tensor  # [R]
    count: tuple[int, ...]  # [R] samples without padding
    weight: Tensor  # [R] ``count`` as floats


@dataclass(frozen=True)
class Output:
    """The argument of a loss hook: one row's outputs for its batch."""

    logits: Tensor  # [B, C]
    features: Tensor  # [B, f], the head's input
    labels: Tensor  # [B]
    index: Tensor  # [B], positions among the client's samples
    x: Tensor  # [B, ...]
    theta: Tensor  # [e], a view of the row in training, before ``DerivedWeights.function``; must not be modified
    row: int  # s, position of the row in the call
    client: int  # k


@dataclass(frozen=True, eq=False)
class DerivedWeights:
    """Train with weights that are computed from theta and from additional variables of the method.

    ``function(theta_k, variables_k, x, s)`` returns the weights [d] of the forward pass of row s. Its arguments are the
    row's parameters [d], its variables [v] (or None) and the samples of the batch. Both theta and the variables receive
    gradients.
    """

    function: WeightsFunction | None
    variables: Tensor | None = None  # [S, v]; ``fed.sgd`` trains a copy
    # Of the variables; None: as the federation's ``Training`` has it.
    lr: float | None = None
    velocity: Tensor | None = None  # [S, v] initial momentum; None: 0
    weight_decay: float | None = None


@dataclass(frozen=True, eq=False)
class LocalTraining:
    """How local training differs from plain SGD with the federation's ``Training``; see ``Federation.sgd``.

    Each field is an aspect in which the papers differ. The defaults give plain SGD.
    """

    epochs: Epochs = None  # number of passes (0: no step), or their numbers: range(2, 3) is the third pass
    lr: float | Tensor | None = None  # one rate, or one for each row [S]; None: that of ``Training``
    trainable: Tensor | None = None  # bool [d] or [e], or [S, ...]; other entries stay bitwise unchanged
    gradient: GradientHook | None = None  # (g [d], theta_k [d], s) -> the gradient of the step
    loss: LossHook | None = None  # replaces the mean cross-entropy
    weights: DerivedWeights | None = None  # weights of the forward pass
    norm_mode: str = "train"  # "eval" freezes batch-norm statistics
    smallest_batch: int = 1  # smaller batches are skipped; with batch norm at least 2


@dataclass(frozen=True)
class Trained:
    """The result of local training."""

    theta: Tensor  # [S, e]
    loss: Tensor  # [S] mean training loss over all samples of all steps (NaN after 0 steps)
    steps: Tensor  # [S] mini-batches
    velocity: Tensor = ABSENT  # [S, d] momentum; None unless the call was given a velocity
    variables: Tensor = ABSENT  # [S, v] the trained variables of ``DerivedWeights``; None without variables
    velocity_variables: Tensor = ABSENT  # [S, v] their momentum; None unless it was given


@dataclass(frozen=True)
class Grad:
    """Gradients of one batch's mean loss for every row; None for what was not requested."""

    loss: Tensor  # [S]
    statistics: Tensor  # [S, e - d] after the forward pass
    theta: Tensor  # [S, d]
    variables: Tensor = ABSENT  # [S, v]
    gates: Tensor = ABSENT  # [S, h]


@dataclass(frozen=True)
class Scores:
    """Evaluation of S clients, each over all of its samples."""

    correct: Tensor  # [S] int
    count: Tensor  # [S] int
    loss: Tensor  # [S] mean cross-entropy

    @classmethod
    def join(cls, parts: Sequence[Scores]) -> Scores:
        """Concatenate the scores of chunks of clients."""
        return cls(*(torch.cat([getattr(p, name) for p in parts]) for name in ("correct", "count", "loss")))


@dataclass(frozen=True)
class GradientRequest:
    """Options of a backend's gradient computation; see ``Federation.grad``."""

    loss: LossHook | None = None
    weights: WeightsFunction | None = None
    variables: Tensor | None = None  # [R, v]
    gates: Tensor | None = None  # [R, h]
    with_gates: bool = False  # whether to return the gradient of the gates
    with_loss: bool = True  # whether to return the loss
    in_parts: bool = False  # whether the gradient may be a list of tensors, as autograd allocates them


Epochs = int | range | None  # number of passes, or their numbers; None: the number in ``Training``
Samples = str | Sequence[tuple[Tensor, Tensor]]  # name of a split, or (x, y) for each client of the call
LossHook = Callable[[Output], Tensor]
GradientHook = Callable[[Tensor, Tensor, int], Tensor]  # (g [d], theta_k [d], row) -> g [d]
# (theta_k [d], variables_k [v] or None, x [B, ...], row) -> derived weights [d]; Any: the method knows which
WeightsFunction = Callable[[Tensor, Any, Tensor, int], Tensor]
Predict = Callable[[int, Tensor, Tensor], Tensor]  # (client, theta_k [e], x [B, ...]) -> scores [B, C]

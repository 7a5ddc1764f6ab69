"""pFedGate with physically smaller layers: dropped neurons and the weights that read them are left out.

Not in the paper. A hidden neuron whose block is dropped outputs exactly 0 after ReLU and max pooling, so the next layer
does not need the columns that read it. The remaining weights are gathered, scaled and used in ordinary dense kernels.
Autograd scatters the gradients back. Up to rounding, the result is that of masked full-size layers with
``straight_through="kept"``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy, linear

from pfl_core.algorithms.pfedgate.adapt import Adapter
from pfl_core.algorithms.pfedgate.local import ClientUpdate, Trainer
from pfl_core.federation.batched_backend import is_plain
from pfl_core.federation.local_step import TrainingGroup
from pfl_core.layout import Layout
from pfl_core.ops import take


@dataclass(frozen=True, eq=False)
class Sliced:
    """Forward pass of a plain chain of layers, reduced to the neurons that are kept."""

    model: nn.Module
    layout: Layout
    group: tuple[np.ndarray, ...]  # for each hidden layer, the block of each neuron

    @classmethod
    def of(cls, adapter: Adapter, model: nn.Module, layout: Layout) -> Sliced:
        """Raises ValueError if the model has layers of other kinds than those implemented here."""
        kinds = nn.Conv2d | nn.Linear | nn.ReLU | nn.Flatten
        supported = {
            n: isinstance(m, nn.MaxPool2d) or isinstance(m, kinds) and is_plain(m) for n, m in model.named_children()
        }
        others = [name for name, is_supported in supported.items() if not is_supported]
        if others:
            raise ValueError(
                f'PFedGate: execution="sliced" takes convolutions, linear layers, ReLU, max pooling and flattening, '
                f'not {", ".join(others)}; use execution="dense"'
            )
        firsts = np.cumsum([0, *map(len, adapter.blocks.rows)])
        group = (np.repeat(np.arange(len(r)) + f, r) for r, f in zip(adapter.blocks.rows, firsts, strict=False))
        return cls(model, layout, tuple(group))

    def __call__(self, theta: Tensor, scale: Tensor, kept: np.ndarray, x: Tensor) -> Tensor:
        """Logits [B, classes] of x [B, ...] under theta [d] times M' (``scale`` [L]); differentiable in both."""
        params = self.layout.params
        parts = theta.split([f.stop - f.start for f in params])  # its backward pass is one concatenation
        named = {f.name: part.view(f.shape) for f, part in zip(params, parts, strict=True)}
        inputs: tuple[Tensor, int] | None = None  # neurons of the layer before that h has, and of how many; None: all
        hidden, h = 0, x  # hidden: number of hidden layers so far
        for name, layer in self.model.named_children():
            if not isinstance(layer, nn.Conv2d | nn.Linear):
                h = layer(h)
                continue
            weight, bias = named[f"{name}.weight"], named[f"{name}.bias"]
            rows, factor = None, scale[-1:]  # of the head, which is always kept
            if name != self.layout.head:
                group, hidden = self.group[hidden], hidden + 1
                rows = torch.from_numpy(np.flatnonzero(kept[group])).to(theta.device)  # neurons to keep
                factor = scale[torch.from_numpy(group[kept[group]]).to(theta.device)]  # M' of each
            num = len(weight)
            weight, bias = _slice(weight, bias, rows, inputs, factor)
            if isinstance(layer, nn.Conv2d):
                h = conv2d(h, weight, bias, layer.stride, layer.padding, layer.dilation)
            else:
                h = linear(h, weight, bias)
            inputs = None if rows is None or len(rows) == num else (rows, num)
        return h


def _slice(
    weight: Tensor, bias: Tensor, rows: Tensor | None, inputs: tuple[Tensor, int] | None, factor: Tensor
) -> tuple[Tensor, Tensor]:
    """The given ``rows`` of weight and bias (None: all) times ``factor``, reduced to the columns of ``inputs``.

    ``inputs`` are the kept neurons of the layer before, and the number of all its neurons (None: all are kept). After
    flattening, each neuron (channel) has several columns.
    """
    if rows is not None and len(rows) < len(weight):
        weight, bias = weight.index_select(0, rows), bias.index_select(0, rows)
    if inputs is not None:
        neurons, num = inputs
        per_neuron = weight.shape[1] // num  # columns
        shape = weight.shape
        weight = weight.reshape(len(weight), num, -1).index_select(1, neurons)
        weight = weight.reshape(len(weight), len(neurons) * per_neuron, *shape[2:])
    return weight * factor.view(-1, *[1] * (weight.dim() - 1)), bias * factor


@dataclass(frozen=True, eq=False)
class SlicedTrainer(Trainer):
    """``Trainer`` with smaller layers: the same batches and steps, and up to rounding the same results."""

    def __call__(self, clients: Tensor, smallest_batch: int) -> ClientUpdate:
        fed, state = self.fed, self.state
        theta, gate = fed.broadcast(state.shared, clients).clone(), take(state.gate, clients).clone()
        statistics = take(state.statistics, clients).clone()
        velocity, gate_velocity = (
            fed.start_velocity(None if v is None else take(v, clients), like)
            for v, like in ((state.velocity, theta), (state.gate_velocity, gate))
        )
        options = self.adapter.options
        gradient = self._gradient(self.adaptation(clients, statistics, self.log))
        rows = TrainingGroup(
            numbers=list(range(len(clients))),
            theta=theta,
            lr=[fed.lr(self.t)] * len(clients),
            config=fed.train,
            velocity=velocity,
            variables=gate,
            velocity_variables=gate_velocity,
            lr_variables=fed.lr(self.t, options.lr_gate),
            decay_variables=options.gate_weight_decay,
        )

        def train_client(s: int) -> None:
            row = rows.take(slice(s, s + 1))
            for batch in fed.batches(clients[s : s + 1], self.t, smallest_batch=smallest_batch):
                value, grad_theta, grad_gate = gradient(theta[s], gate[s], batch.x[0], batch.y[0], s)
                row.step(grad_theta[None], grad_gate[None], None)
                row.record(value[None], batch.count, batch.weight)

        fed.threads.map(train_client, range(len(clients)), fed.splits["train"].sizes[clients].tolist())
        steps = torch.tensor(rows.steps)
        return ClientUpdate(theta, rows.loss, steps, velocity, gate, gate_velocity, statistics, self.log)

    def _gradient(self, adapt: Callable) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
        """A function (theta [d], gate [v], x, y, row) -> the loss of a batch and its gradients for theta and gate."""
        sliced = Sliced.of(self.adapter, self.fed.network, self.fed.layout)

        def gradient(theta: Tensor, gate: Tensor, x: Tensor, y: Tensor, s: int) -> tuple[Tensor, Tensor, Tensor]:
            leaves = theta.detach().requires_grad_(), gate.detach().requires_grad_()
            scale, kept = adapt(leaves[1], x, s)
            value = cross_entropy(sliced(leaves[0], scale, kept, x), y)
            grad_theta, grad_gate = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
            return value.detach(), grad_theta, grad_gate

        return gradient

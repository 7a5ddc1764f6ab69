"""pFedGate with really smaller kernels: dropped rows are left out, and so is what reads them (section 7).

A hidden neuron whose block is dropped outputs exactly 0 through ReLU and max pooling, so the next layer needs none of
the columns that read it. Weights are gathered, scaled and run through ordinary dense kernels; autograd scatters their
gradients back. Equal to masked dense kernels with ``straight_through="kept"`` up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy, linear

from pfl_core.algorithms.pfedgate.adapt import Adapter
from pfl_core.algorithms.pfedgate.local import ClientUpdate, Log, Trainer
from pfl_core.federation.batched_backend import is_plain
from pfl_core.federation.local_step import TrainingGroup
from pfl_core.layout import Layout
from pfl_core.ops import take


@dataclass(frozen=True, eq=False)
class Sliced:
    """A plain chain of layers cut down to the neurons that are kept."""

    model: nn.Sequential
    layout: Layout
    group: tuple[np.ndarray, ...]  # for each hidden layer, the block of each neuron

    @classmethod
    def of(cls, adapter: Adapter, model: nn.Module, layout: Layout) -> Sliced:
        """Raises ValueError for layers that are not written out here."""
        kinds = nn.Conv2d | nn.Linear | nn.ReLU | nn.Flatten
        known = {
            n: isinstance(m, nn.MaxPool2d) or isinstance(m, kinds) and is_plain(m) for n, m in model.named_children()
        }
        odd = [name for name, is_known in known.items() if not is_known]
        if odd:
            raise ValueError(
                f'PFedGate: execution="sliced" takes convolutions, linear layers, ReLU, max pooling and flattening, '
                f'not {", ".join(odd)}; use execution="dense"'
            )
        firsts = np.cumsum([0, *map(len, adapter.blocks.rows)])
        group = (np.repeat(np.arange(len(r)) + f, r) for r, f in zip(adapter.blocks.rows, firsts, strict=False))
        return cls(model, layout, tuple(group))

    def __call__(self, theta: Tensor, scale: Tensor, kept: np.ndarray, x: Tensor) -> Tensor:
        """Logits [B, classes] of x [B, ...] under theta [d] times M' (``scale`` [L]), differentiable by both."""
        named = dict(zip((f.name for f in self.layout.params), theta.split(self._lengths), strict=True))
        shapes = {f.name: f.shape for f in self.layout.params}
        into, hidden, h = None, 0, x  # into: the neurons that h holds; None: all
        for name, layer in self.model.named_children():
            if not isinstance(layer, nn.Conv2d | nn.Linear):
                h = layer(h)
                continue
            shape = shapes[f"{name}.weight"]
            weight, bias = named[f"{name}.weight"].view(shape), named[f"{name}.bias"]
            rows, factor = None, scale[-1:]
            if name != self.layout.head:
                group, hidden = self.group[hidden], hidden + 1
                rows = torch.from_numpy(np.flatnonzero(kept[group])).to(theta.device)
                factor = scale[torch.from_numpy(group[kept[group]]).to(theta.device)]
            weight, bias = _cut(weight, bias, rows, into, factor)
            h = (
                conv2d(h, weight, bias, layer.stride, layer.padding, layer.dilation)
                if weight.dim() == 4
                else linear(h, weight, bias)
            )
            into = None if rows is None or len(rows) == shape[0] else (rows, shape[0])
        return h

    @property
    def _lengths(self) -> list[int]:
        return [f.stop - f.start for f in self.layout.params]


def _cut(
    weight: Tensor, bias: Tensor, rows: Tensor | None, into: tuple[Tensor, int] | None, factor: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows (None: all) times ``factor``, without the columns that read neurons not in ``into`` (kept, out of how many).

    After flattening, a neuron (channel) has several columns.
    """
    if rows is not None and len(rows) < len(weight):
        weight, bias = weight.index_select(0, rows), bias.index_select(0, rows)
    if into is not None:
        neurons, num = into
        each = weight.shape[1] // num
        shape = weight.shape
        weight = weight.reshape(len(weight), num, -1).index_select(1, neurons)
        weight = weight.reshape(len(weight), len(neurons) * each, *shape[2:])
    return weight * factor.view(-1, *[1] * (weight.dim() - 1)), bias * factor


@dataclass(frozen=True, eq=False)
class SlicedTrainer(Trainer):
    """The same batches, steps and results as ``Trainer``, up to rounding, in its own loop over smaller kernels."""

    def __call__(self, clients: Tensor, smallest_batch: int) -> ClientUpdate:
        fed, state = self.fed, self.state
        theta, gate = fed.broadcast(state.shared, clients).clone(), take(state.gate, clients).clone()
        statistics = take(state.statistics, clients).clone()
        velocity, gate_velocity = (
            fed.start_velocity(None if v is None else take(v, clients), like)
            for v, like in ((state.velocity, theta), (state.gate_velocity, gate))
        )
        log = Log.empty(len(clients), self.adapter, gate)
        gradient = self._gradient(self.adaptation(clients, statistics, log))
        loss, steps = torch.full((len(clients),), torch.nan), torch.zeros(len(clients), dtype=torch.int64)
        for s in range(len(clients)):
            row = (None if each is None else each[s : s + 1] for each in (theta, velocity, gate, gate_velocity))
            values, *carried = row
            options = self.adapter.options
            rate_and_decay = fed.lr(self.t, options.lr_gate), options.gate_weight_decay
            group = TrainingGroup([s], values, [fed.lr(self.t)], fed.train, None, *carried, *rate_and_decay)
            total, seen = torch.zeros(()), 0
            for batch in fed.batches(clients[s : s + 1], self.t, smallest_batch=smallest_batch):
                value, of_theta, of_gate = gradient(theta[s], gate[s], batch.x[0], batch.y[0], s)
                group.step(of_theta[None], of_gate[None], None)
                total += value.cpu() * batch.count[0]
                seen, steps[s] = seen + batch.count[0], steps[s] + 1
            loss[s] = total / seen if seen else torch.nan
        if state.velocity is None:
            velocity = gate_velocity = None
        return ClientUpdate(theta, gate, statistics, velocity, gate_velocity, loss, steps, log)

    def _gradient(self, adapt: Callable) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
        """(theta [d], gate [v], x, y, row) -> the batch's loss and its gradients [d] and [v]."""
        sliced = Sliced.of(self.adapter, self.fed.network, self.fed.layout)

        def gradient(theta: Tensor, gate: Tensor, x: Tensor, y: Tensor, s: int) -> tuple[Tensor, Tensor, Tensor]:
            leaves = theta.detach().requires_grad_(), gate.detach().requires_grad_()
            value = cross_entropy(sliced(leaves[0], *adapt(leaves[1], x, s), x), y)
            found = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
            return value.detach(), *found

        return gradient

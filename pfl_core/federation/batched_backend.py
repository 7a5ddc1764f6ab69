"""Many rows of one small network at once: explicit batched matrix products, forward and backward.

A dense net of a few thousand parameters spends its time in calls, not in sums. Here a layer of all rows is one call,
and the chain rule is written out; only loss hooks are differentiated. Images of all rows lie side by side as channels
[B, R * C, H, W], so that a convolution of all rows is one grouped convolution.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from pfl_core.federation.tape import Tape
from pfl_core.federation.types import Batch, GradientRequest, LossHook, Output, WeightsFunction
from pfl_core.layout import Field, Layout, wanted


class BatchedBackend:
    """A plain chain of layers, R rows at a time; ``compute`` leaves [R, d] in ``flat_grad``."""

    def __init__(self, model: nn.Module, layout: Layout, like: Tensor) -> None:
        self.layout = layout
        self.layers = dict(model.named_children())
        gated = layout.chain.activations if layout.chain else ()
        self._gated_at_relus = all(isinstance(self.layers[name], nn.ReLU) for name in gated)  # not after their pools
        self._takes_images = not isinstance(next(iter(self.layers.values())), nn.Flatten)
        self.flat_grad = torch.zeros(0, layout.num_params).to(like)
        self._zero = self.flat_grad.new_zeros(())
        self._gradients: dict[str, Tensor] = {}  # of the tensors that are wanted, views of ``flat_grad``
        self._rooms: dict[tuple[int, bool | tuple[Field, ...]], tuple[Tensor, dict[str, Tensor]]] = {}
        self._bound: tuple[Tensor, dict[str, Tensor]] = (self.flat_grad, {})

    @staticmethod
    def suits(model: nn.Module, layout: Layout, device: str) -> bool:
        """Whether rows of this network go together: chains without batch norm, on a CPU only without convolutions.

        (There, a grouped convolution takes longer than one client after the other.)
        """
        kinds = (nn.Flatten, nn.ReLU, nn.Linear) + (() if device == "cpu" else (nn.Conv2d, nn.MaxPool2d))
        return layout.chain is not None and all(isinstance(m, kinds) and is_plain(m) for m in model.children())

    def want(self, rows: int, trainable: Tensor | bool) -> bool:
        """Make room for ``rows`` gradients: all (True), none, or those of tensors where a row may train [R, d].

        False if nothing is trainable at all.
        """
        key = rows, trainable if isinstance(trainable, bool) else wanted(self.layout.params, trainable)
        if key not in self._rooms:
            fields = wanted(self.layout.params, trainable)
            grad = self.flat_grad.new_zeros(rows if fields else 0, self.layout.num_params)
            named = self._named(grad)
            kept = list(self._rooms.items())[-1:]  # two at a time: inner loops alternate
            self._rooms = dict([*kept, (key, (grad, {f.name: named[f.name] for f in fields}))])
        self.flat_grad, self._gradients = self._rooms[key]
        return bool(self._gradients)

    def compute(
        self, theta: Tensor, statistics: Tensor, batch: Batch, rows: list[int], request: GradientRequest
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Put every row's gradient into ``flat_grad[:R]``; returns losses [R] and the gradients of variables and gates.

        theta [R, d]; ``rows`` [R] are their numbers for the hooks; gates [R, h]; there are no statistics [R, 0]. Call
        ``want`` before.
        """
        loss, weights, variables, gates = request.loss, request.weights, request.variables, request.gates
        grad, params = self.flat_grad[: len(theta)], theta  # e = d: no statistics
        if weights is not None:  # two stages: through the network to the derived weights, then on to their sources
            sources, derived = _derive(theta, batch, rows, weights, variables)
            params = torch.stack([row.detach() for row in derived])
        tape, logits = self._forward(params, batch.x, gates, request.with_gates)
        value, gradient, of_features = _loss(tape, logits, theta, batch, rows, loss, request.with_loss)
        tape.back(gradient, of_features)
        of_gates = torch.cat(tape.gate_gradients[::-1], 1) if tape.gate_gradients else None
        if weights is None:
            return value, None, of_gates
        found = [
            torch.autograd.grad(row, leaves, g, allow_unused=True, materialize_grads=True)
            for row, leaves, g in zip(derived, sources, grad, strict=True)
        ]
        grad.copy_(torch.stack([parts[0] for parts in found]))
        return value, None if variables is None else torch.stack([parts[1] for parts in found]), of_gates

    def gradients(self, rows: int) -> Tensor:
        """The gradient [R, d] that ``compute`` has left."""
        return self.flat_grad[:rows]

    def losses(self, theta: Tensor, statistics: Tensor, batch: Batch, rows: list[int], loss: LossHook | None) -> Tensor:
        """The batch's losses [R], nothing else."""
        tape, logits = self._forward(theta, batch.x)
        return _loss(tape, logits, theta, batch, rows, loss)[0]

    def _forward(
        self, params: Tensor, x: Tensor, gates: Tensor | None = None, with_gates: bool = False
    ) -> tuple[Tape, Tensor]:
        """The way back and the logits [R, B, C] of x [R, B, ...]."""
        before = self._bound[0]
        if (before.data_ptr(), before.shape, before.stride()) != (params.data_ptr(), params.shape, params.stride()):
            named = self._named(params)
            wide = {
                f"{n}:": v.unsqueeze(1) if v.dim() == 2 else v.transpose(1, 2) for n, v in named.items() if v.dim() < 4
            }
            self._bound = params, named | wide  # the tensor is kept: only then is an address unique
        chain = self.layout.chain
        gated, of_masks = {}, gates is not None and gates.dtype == torch.bool
        if gates is not None:
            shut = of_masks and not with_gates and self._gated_at_relus
            wide = (x.new_zeros(gates.shape).masked_fill_(gates, torch.inf) if shut else gates.to(x)).unsqueeze(1)
            gated = dict(zip(chain.activations, wide.split_with_sizes(chain.sizes, 2), strict=True))
        num = len(params)
        whole = num == len(self.flat_grad)
        gradients = self._gradients if whole else {n: s[:num] for n, s in self._gradients.items()}
        tape = Tape(self._bound[1], gradients, self._zero)
        h = x.transpose(0, 1).flatten(1, 2) if self._takes_images and x.dim() == 5 else x.flatten(2)
        for name, layer in self.layers.items():
            if name == self.layout.head:
                tape.mark(h)
            if isinstance(layer, nn.Linear):
                h = tape.linear(name, h)
            elif isinstance(layer, nn.Conv2d):
                h = tape.conv(name, h, layer)
            elif isinstance(layer, nn.ReLU) and of_masks and name in gated:
                gate = gated.pop(name)
                h = tape.relu(h, gate) if shut else tape.masked_relu(h, gate, with_gates)
            elif isinstance(layer, nn.ReLU):
                h = tape.relu(h)
            elif isinstance(layer, nn.MaxPool2d):
                h = tape.pool(h, layer)
            elif h.dim() == 4:
                h = tape.flatten(h, num)
            if name in gated:
                h = tape.gate(h, gated[name], with_gates)
        return tape, h

    def _named(self, rows: Tensor) -> dict[str, Tensor]:
        """Views [R, *shape] of [R, d] by name."""
        return {f.name: rows[:, f.start : f.stop].view(len(rows), *f.shape) for f in self.layout.params}


def is_plain(module: nn.Module) -> bool:
    """Whether the layer has no setting that is not written out here."""
    if isinstance(module, nn.Conv2d):
        return module.padding_mode == "zeros" and module.groups == 1 and module.bias is not None
    if isinstance(module, nn.MaxPool2d):  # windows side by side: a value has one window
        settings = (module.stride, module.padding, module.dilation, module.ceil_mode)
        return settings == (module.kernel_size, 0, 1, False)
    return not isinstance(module, nn.Linear) or module.bias is not None


def _derive(
    theta: Tensor, batch: Batch, rows: list[int], weights: WeightsFunction, variables: Tensor | None
) -> tuple[list[list[Tensor]], list[Tensor]]:
    """Each row's sources (theta, variables) as leaves, and the weights [d] derived from them."""
    sources, derived = [], []
    for r, s in enumerate(rows[: len(theta)]):
        leaves = [part[r].detach().requires_grad_() for part in (theta, variables) if part is not None]
        own = leaves[1] if variables is not None else None
        derived.append(weights(leaves[0], own, batch.x[r, : batch.count[r]], s))
        sources.append(leaves)
    return sources, derived


def _loss(
    tape: Tape,
    logits: Tensor,
    theta: Tensor,
    batch: Batch,
    rows: list[int],
    hook: LossHook | None,
    with_loss: bool = True,
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Losses [R] (mean cross-entropy, or the hook's), and their gradients by logits and (of a hook) by features."""
    size = batch.y.shape[1]
    if hook is None:
        log_p, label = log_softmax(logits, 2), batch.y.unsqueeze(2)
        losses = log_p.gather(2, label) if with_loss else None
        gradient, share = log_p.exp_().scatter_(2, label, -1.0, reduce="add"), 1 / size
        if min(batch.count) < size:
            count = torch.tensor(batch.count).to(logits).view(-1, 1, 1)
            share = (torch.arange(size).to(logits).view(1, -1, 1) < count) / count  # padded samples weigh nothing
        return None if losses is None else losses.mul_(-share).sum((1, 2)), gradient.mul_(share), None
    values, gradient, of_features = [], torch.zeros_like(logits), torch.zeros_like(tape.features)
    for r, (s, n) in enumerate(zip(rows, batch.count, strict=False)):
        leaves = [part[r, :n].detach().requires_grad_() for part in (logits, tape.features)]
        sample = batch.y[r, :n], batch.index[r, :n], batch.x[r, :n]
        with torch.enable_grad():
            value = hook(Output(*leaves, *sample, theta[r], s, int(batch.clients[r])))
        gradient[r, :n], of_features[r, :n] = torch.autograd.grad(
            value, leaves, allow_unused=True, materialize_grads=True
        )
        values.append(value.detach())
    return torch.stack(values), gradient, of_features

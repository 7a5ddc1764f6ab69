"""Trains many rows of one small network at once with batched matrix products.

In a small network, the overhead of calls takes longer than the arithmetic. Here one call computes a layer for all
rows. The backward pass is written out (see ``tape``); autograd is used only for loss hooks and derived weights. The
images of all rows are channels side by side [B, R * C, H, W], so that one grouped convolution computes all rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from pfl_core.federation.tape import Tape
from pfl_core.federation.types import Batch, GradientRequest, LossHook, Output, WeightsFunction
from pfl_core.layout import Field, Layout, trainable_fields
from pfl_core.ops import ABSENT


class BatchedBackend:
    """A plain chain of layers, R rows at a time; ``compute`` writes the gradients [R, d] into ``flat_grad``."""

    def __init__(self, model: nn.Module, layout: Layout, like: Tensor) -> None:
        self.layout = layout
        self.layers = dict(model.named_children())
        gated = layout.chain.activations if layout.chain else ()
        self._gated_at_relus = all(isinstance(self.layers[name], nn.ReLU) for name in gated)  # no gate after a pool
        self._takes_images = not isinstance(next(iter(self.layers.values())), nn.Flatten)
        self.flat_grad = torch.zeros(0, layout.num_params).to(like)
        self._zero = self.flat_grad.new_zeros(())
        self._gradients: dict[
            str, Tensor
        ] = {}  # tensor name -> view of ``flat_grad``, for the tensors that are trained
        # (rows, trained tensors) -> (``flat_grad``, ``_gradients``)
        self._buffers: dict[tuple[int, bool | tuple[Field, ...]], tuple[Tensor, dict[str, Tensor]]] = {}
        self._bound: tuple[Tensor, dict[str, Tensor]] = (self.flat_grad, {})  # parameters, and views of them by name

    @staticmethod
    def suits(model: nn.Module, layout: Layout, device: str) -> bool:
        """Whether this backend is used by default: for plain chains without batch norm; on a CPU, dense layers only.

        (On a CPU, a grouped convolution is slower than one client after the other, but for tiny images.)
        """
        dense = not any(isinstance(m, nn.Conv2d | nn.MaxPool2d) for m in model.children())
        return (dense or device != "cpu") and BatchedBackend.supports(model, layout)

    @staticmethod
    def supports(model: nn.Module, layout: Layout) -> bool:
        """Whether this backend can train the network: a plain chain of these layers."""
        kinds = (nn.Flatten, nn.ReLU, nn.Linear, nn.Conv2d, nn.MaxPool2d)
        return layout.chain is not None and all(isinstance(m, kinds) and is_plain(m) for m in model.children())

    def set_trainable(self, rows: int, trainable: Tensor | bool) -> bool:
        """Allocate the gradients of ``rows`` rows: of all tensors (True), of none (False), or of the tensors with an
        entry that some row trains (mask [R, d]). Returns whether any tensor is trained.
        """
        key = rows, trainable if isinstance(trainable, bool) else trainable_fields(self.layout.params, trainable)
        if key not in self._buffers:
            fields = trainable_fields(self.layout.params, trainable)
            grad = self.flat_grad.new_zeros(rows if fields else 0, self.layout.num_params)
            named = self._named(grad)
            last = list(self._buffers.items())[-1:]  # keep two: inner loops may alternate between two kinds of steps
            self._buffers = dict([*last, (key, (grad, {f.name: named[f.name] for f in fields}))])
        self.flat_grad, self._gradients = self._buffers[key]
        return bool(self._gradients)

    def compute(
        self, theta: Tensor, statistics: Tensor, batch: Batch, rows: Sequence[int], request: GradientRequest
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Write the gradients of theta [R, d] into ``flat_grad[:R]``. Call ``set_trainable`` before.

        Returns the losses [R] and the gradients of variables [R, v] and gates [R, h], None where not requested.
        ``rows`` [R] are the row numbers for hooks; ``statistics`` is empty [R, 0].
        """
        loss, weights, variables, gates = request.loss, request.weights, request.variables, request.gates
        grad, params = self.flat_grad[: len(theta)], theta  # e = d: no statistics
        # Derived weights need two stages: the gradient with respect to the derived weights, then with respect to theta
        # and the variables.
        if weights is not None:
            sources, derived = _derive(theta, batch, rows, weights, variables)
            params = torch.stack([row.detach() for row in derived])
        tape, logits = self._forward(params, batch.x, gates, request.with_gates)
        value, logit_gradient, feature_gradient = _loss(tape, logits, theta, batch, rows, loss, request.with_loss)
        tape.backward(logit_gradient, feature_gradient)
        gate_gradient = torch.cat(tape.gate_gradients[::-1], 1) if tape.gate_gradients else ABSENT
        if weights is None:
            return value, ABSENT, gate_gradient
        gradients = [
            torch.autograd.grad(row, leaves, g, allow_unused=True, materialize_grads=True)
            for row, leaves, g in zip(derived, sources, grad, strict=True)
        ]
        grad.copy_(torch.stack([parts[0] for parts in gradients]))
        variable_gradient = ABSENT if variables is None else torch.stack([parts[1] for parts in gradients])
        return value, variable_gradient, gate_gradient

    def gradients(self, rows: int) -> Tensor:
        """The gradients [R, d] of the last ``compute``."""
        return self.flat_grad[:rows]

    def losses(
        self, theta: Tensor, statistics: Tensor, batch: Batch, rows: Sequence[int], loss: LossHook | None
    ) -> Tensor:
        """The losses [R] of a batch, without gradients."""
        tape, logits = self._forward(theta, batch.x)
        return _loss(tape, logits, theta, batch, rows, loss)[0]

    def _forward(
        self, params: Tensor, x: Tensor, gates: Tensor | None = None, with_gates: bool = False
    ) -> tuple[Tape, Tensor]:
        """The tape and the logits [R, B, C] of x [R, B, ...]."""
        bound = self._bound[0]
        if (bound.data_ptr(), bound.shape, bound.stride()) != (params.data_ptr(), params.shape, params.stride()):
            named = self._named(params)
            # "name:" is a bias as [R, 1, n] and a dense weight transposed to [R, in, out], as ``baddbmm`` needs them.
            transposed = {
                f"{n}:": v.unsqueeze(1) if v.dim() == 2 else v.transpose(1, 2) for n, v in named.items() if v.dim() < 4
            }
            self._bound = params, named | transposed  # keeps the tensor alive: only then is its address unique
        layer_gates: dict[str, Tensor] = {}  # module name -> gates [R, 1, n] of its output
        binary = gates is not None and gates.dtype == torch.bool
        as_limit = binary and not with_gates and self._gated_at_relus  # gates are upper bounds of the ReLUs
        if gates is not None:
            chain = self.layout.chain
            assert chain is not None
            factor = x.new_zeros(gates.shape).masked_fill_(gates, torch.inf) if as_limit else gates.to(x)
            parts = factor.unsqueeze(1).split_with_sizes(chain.sizes, 2)
            layer_gates = dict(zip(chain.activations, parts, strict=True))
        num = len(params)
        whole = num == len(self.flat_grad)
        gradients = self._gradients if whole else {n: s[:num] for n, s in self._gradients.items()}
        tape = Tape(self._bound[1], gradients, self._zero)
        # Images [R, B, C, H, W] -> [B, R * C, H, W]; other samples [R, B, ...] -> [R, B, n].
        h = x.transpose(0, 1).flatten(1, 2) if self._takes_images and x.dim() == 5 else x.flatten(2)
        for name, layer in self.layers.items():
            if name == self.layout.head:
                tape.mark_head(h)
            if isinstance(layer, nn.Linear):
                h = tape.linear(name, h)
            elif isinstance(layer, nn.Conv2d):
                h = tape.conv(name, h, layer)
            elif isinstance(layer, nn.ReLU) and binary and name in layer_gates:
                gate = layer_gates.pop(name)
                h = tape.relu(h, gate) if as_limit else tape.masked_relu(h, gate, with_gates)
            elif isinstance(layer, nn.ReLU):
                h = tape.relu(h)
            elif isinstance(layer, nn.MaxPool2d):
                h = tape.pool(h, layer)
            elif h.dim() == 4:
                h = tape.flatten(h, num)
            if name in layer_gates:
                h = tape.gate(h, layer_gates[name], with_gates)
        return tape, h

    def _named(self, rows: Tensor) -> dict[str, Tensor]:
        """Tensor name -> view [R, *shape] of ``rows`` [R, d]."""
        return {f.name: rows[:, f.start : f.stop].view(len(rows), *f.shape) for f in self.layout.params}


def is_plain(module: nn.Module) -> bool:
    """Whether ``Tape`` supports all settings of the layer."""
    if isinstance(module, nn.Conv2d):
        plain = module.padding_mode == "zeros" and not isinstance(module.padding, str)
        return plain and module.groups == 1 and module.bias is not None
    if isinstance(module, nn.MaxPool2d):  # windows must not overlap
        settings = (module.stride, module.padding, module.dilation, module.ceil_mode)
        return settings == (module.kernel_size, 0, 1, False)
    return not isinstance(module, nn.Linear) or module.bias is not None


def _derive(
    theta: Tensor, batch: Batch, rows: Sequence[int], weights: WeightsFunction, variables: Tensor | None
) -> tuple[list[list[Tensor]], list[Tensor]]:
    """For each row, the autograd leaves [theta, variables] and the weights [d] derived from them."""
    sources, derived = [], []
    for r, s in enumerate(rows[: len(theta)]):
        leaves = [part[r].detach().requires_grad_() for part in (theta, variables) if part is not None]
        variables_k = leaves[1] if variables is not None else None
        derived.append(weights(leaves[0], variables_k, batch.x[r, : batch.count[r]], s))
        sources.append(leaves)
    return sources, derived


def _loss(
    tape: Tape,
    logits: Tensor,
    theta: Tensor,
    batch: Batch,
    rows: Sequence[int],
    hook: LossHook | None,
    with_loss: bool = True,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Losses [R] and their gradients with respect to logits and, with a hook, features.

    The loss is the mean cross-entropy or that of the hook. Without ``with_loss`` the cross-entropy is not returned.
    """
    size = batch.y.shape[1]
    if hook is None:
        log_p, label = log_softmax(logits, 2), batch.y.unsqueeze(2)
        losses = log_p.gather(2, label) if with_loss else None
        gradient = log_p.exp_().scatter_(2, label, -1.0, reduce="add")  # of a sample's cross-entropy: p - onehot(y)
        weight: float | Tensor = 1 / size  # of a sample in the mean
        if min(batch.count) < size:
            count = torch.tensor(batch.count).to(logits).view(-1, 1, 1)
            weight = (torch.arange(size).to(logits).view(1, -1, 1) < count) / count  # 0 for padding
        return ABSENT if losses is None else losses.mul_(-weight).sum((1, 2)), gradient.mul_(weight), None
    features = tape.features
    assert features is not None
    values, gradient, feature_gradient = [], torch.zeros_like(logits), torch.zeros_like(features)
    for r, (s, n) in enumerate(zip(rows, batch.count, strict=False)):
        row_logits, row_features = (part[r, :n].detach().requires_grad_() for part in (logits, features))
        labels, index, x = batch.y[r, :n], batch.index[r, :n], batch.x[r, :n]
        with torch.enable_grad():
            value = hook(Output(row_logits, row_features, labels, index, x, theta[r], s, int(batch.clients[r])))
        gradient[r, :n], feature_gradient[r, :n] = torch.autograd.grad(
            value, [row_logits, row_features], allow_unused=True, materialize_grads=True
        )
        values.append(value.detach())
    return torch.stack(values), gradient, feature_gradient

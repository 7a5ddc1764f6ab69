"""The module bound to a row: parameters, gradients and statistics are views, so that nothing is copied per step.

The only file that calls ``backward()``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfl_core.federation.types import Batch, GradientRequest, LossHook, Output
from pfl_core.layout import Field, Layout, wanted


class AutogradBackend:
    """One network whose tensors are views of the vector it is bound to; its gradients, of ``flat_grad`` or apart."""

    def __init__(self, model: nn.Module, device: str, dtype: torch.dtype) -> None:
        self.model = copy.deepcopy(model).to(device=device, dtype=dtype)
        self.layout = Layout.of(self.model)
        self.flat_grad = torch.zeros(1, self.layout.num_params, device=device, dtype=dtype)
        self._derived = torch.empty_like(self.flat_grad[0])  # where derived weights are put (see `weights`)
        self._modules = dict(self.model.named_modules())
        self._params = tuple(self.model.parameters())
        self._address: tuple[int, int] | None = None
        self._alive: tuple[Tensor, ...] = ()
        self._wanted: tuple[Field, ...] | None = None
        self._in_parts = False  # whether gradients stay where autograd puts them, with ``flat_grad`` all zeros
        self._features: Tensor | None = None
        self._in_hook = False
        norms = nn.modules.batchnorm._BatchNorm
        self.has_batch_norm = any(isinstance(module, norms) for module in self.model.modules())
        self._modules[self.layout.head].register_forward_pre_hook(self._keep_features)

    def bind(self, params: Tensor, statistics: Tensor) -> None:
        """Make the module's tensors views of ``params`` [d] and ``statistics`` [e - d]; free if they already are."""
        address = (params.data_ptr(), statistics.data_ptr())
        if address == self._address:
            return
        if self._in_hook:
            raise RuntimeError(
                "a loss hook must not call the federation's verbs: its network is in use; call them before"
            )
        params = params.detach()
        for f, p in zip(self.layout.params, self._params, strict=True):
            p.data = params[f.start : f.stop].view(f.shape)
            p.grad = None if self._in_parts else self._part(f).view(f.shape)
        for f in self.layout.fields[len(self._params) :]:
            owner, _, name = f.name.rpartition(".")
            start = f.start - self.layout.num_params
            self._modules[owner]._buffers[name] = statistics[start : start + f.stop - f.start].view(f.shape)
        self._address, self._alive = address, (params, statistics)  # kept alive: only then is an address unique

    def set_mode(self, mode: str) -> None:
        """Batch norm: "train" uses and moves statistics by the batch, "eval" leaves them frozen."""
        if self.model.training != (mode == "train"):
            self.model.train(mode == "train")

    def want(self, rows: int, trainable: Tensor | bool) -> bool:
        """Leave out the gradient work of tensors in which nothing is trainable [1, d]; False if nothing is at all."""
        fields = wanted(self.layout.params, trainable)
        if fields != self._wanted:
            for p, f in zip(self._params, self.layout.params, strict=True):
                p.requires_grad_(f in fields)
            self._wanted = fields
        return bool(fields)

    def compute(
        self, theta: Tensor, statistics: Tensor, batch: Batch, rows: list[int], request: GradientRequest
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Gradient of the batch's loss, read by ``gradients``; returns loss [1], gradients of variables and of gates.

        theta [1, e], ``rows`` its number for the hooks, gates [1, h]. Batch norm moves ``statistics`` [1, e - d].
        """
        loss, weights, variables, gates = request.loss, request.weights, request.variables, request.gates
        params = theta[0, : self.layout.num_params]
        if weights is not None:  # two stages: through the network to the derived weights, then on to their sources
            sources = [part.detach().requires_grad_() for part in (params, variables) if part is not None]
            own = None if variables is None else sources[1][0]
            derived = weights(sources[0], own, batch.x[0], rows[0])
            params = self._derived.copy_(derived.detach())
        self._set_in_parts(request.in_parts and weights is None)
        self.bind(params, statistics[0])
        if self._in_parts:
            self.model.zero_grad()
        else:
            self.flat_grad.zero_()
        leaf = None if gates is None else gates.detach().to(theta).requires_grad_(request.with_gates)
        with self.gated(leaf):
            value = self._loss(theta, batch, rows, loss)
        value.backward()
        of_gates = leaf.grad if request.with_gates else None
        if weights is None:
            return value.detach()[None], None, of_gates
        found = torch.autograd.grad(derived, sources, self.flat_grad[0], allow_unused=True, materialize_grads=True)
        self.flat_grad.copy_(found[0])
        return value.detach()[None], None if variables is None else found[1], of_gates

    def _set_in_parts(self, in_parts: bool) -> None:
        if in_parts != self._in_parts:
            self._in_parts, self._address = in_parts, None
            self.flat_grad.zero_()

    def gradients(self, rows: int) -> Tensor | list[Tensor]:
        """The gradient that ``compute`` has left: [1, d], or with ``in_parts`` a part [1, n] of each tensor.

        Written into by its reader, but where it is 0: a tensor without a gradient has its part of ``flat_grad``.
        """
        if not self._in_parts:
            return self.flat_grad
        grads = ((p.grad, f) for p, f in zip(self._params, self.layout.params, strict=True))
        return [(self._part(f) if grad is None else grad.view(-1))[None] for grad, f in grads]

    def _part(self, f: Field) -> Tensor:
        return self.flat_grad[0, f.start : f.stop]

    def losses(self, theta: Tensor, statistics: Tensor, batch: Batch, rows: list[int], loss: LossHook | None) -> Tensor:
        """The batch's loss [1]; nothing moves but the statistics."""
        self.bind(theta[0, : self.layout.num_params], statistics[0])
        with torch.no_grad():
            return self._loss(theta, batch, rows, loss)[None]

    def _loss(self, theta: Tensor, batch: Batch, rows: list[int], hook: LossHook | None) -> Tensor:
        """The loss of one batch under the tensors now bound: mean cross-entropy, or what the hook makes of it."""
        x, y = batch.x[0], batch.y[0]
        logits = self.model(x)
        if hook is None:
            return cross_entropy(logits, y)
        self._in_hook = True
        try:
            return hook(Output(logits, self._features, y, batch.index[0], x, theta[0], rows[0], int(batch.clients[0])))
        finally:
            self._in_hook = False

    def hessian_product(self, theta: Tensor, x: Tensor, y: Tensor, vector: Tensor) -> Tensor:
        """Hessian of the batch's mean cross-entropy times ``vector`` [d]; theta's statistics stay as they are."""
        self.bind(theta[: self.layout.num_params], theta[self.layout.num_params :].clone())
        self.want(1, True)
        first = torch.autograd.grad(cross_entropy(self.model(x), y), self._params, create_graph=True)
        named = self.layout.unflatten(vector)
        inner = sum((g * named[f.name]).sum() for g, f in zip(first, self.layout.params, strict=True))
        second = torch.autograd.grad(inner, self._params, allow_unused=True, materialize_grads=True)
        return torch.cat([g.reshape(-1) for g in second])

    @contextmanager
    def tapped(self, layer: str) -> Iterator[Callable[[Tensor], Tensor]]:
        """A function from the logits just computed to the output of ``layer``, computed with them."""
        if layer == "logits":
            yield lambda logits: logits
        elif layer == "features":
            yield lambda logits: self._features
        elif (name := layer.removesuffix(":input")) in self._modules:
            seen: list[Tensor] = []
            hook = self._modules[name].register_forward_hook(
                lambda module, inputs, output: seen.append(output if name == layer else inputs[0])
            )
            try:
                yield lambda logits: seen.pop()
            finally:
                hook.remove()
        else:
            known = ", ".join(filter(None, self._modules))
            raise ValueError(
                f"no layer {layer!r} in the network: give logits, features or one of {known} (:input for its input)"
            )

    @contextmanager
    def gated(self, gates: Tensor | None) -> Iterator[None]:
        """Multiply the hidden neurons' activations by ``gates`` [1, h] while this lasts; None costs nothing."""
        if gates is None:
            yield
            return
        chain = self.layout.chain
        if chain is None:
            raise ValueError(
                f"gates need a plain chain of layers, each with its ReLU; {type(self.model).__name__} is none"
            )
        hooks = [
            self._modules[name].register_forward_hook(_multiply_by(gate))
            for name, gate in zip(chain.activations, gates.split(chain.sizes, 1), strict=True)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _keep_features(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features = inputs[0]


def _multiply_by(gate: Tensor) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
    return lambda module, inputs, output: output * gate.view(-1, *[1] * (output.dim() - 2))

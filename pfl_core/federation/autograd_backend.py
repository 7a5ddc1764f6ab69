"""Trains one row at a time with autograd.

The module's parameters, gradients and statistics are views of the row and of one flat gradient, so that no step copies
weights. Local training calls autograd's ``backward()`` here alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfl_core.federation.trace import NetworkTrace, first_tensor
from pfl_core.federation.types import Batch, GradientRequest, LossHook, Output
from pfl_core.layout import Field, Layout, logits_of, trainable_fields, trainable_parameters
from pfl_core.ops import ABSENT


class AutogradBackend:
    """One network whose tensors are views of the vectors that it is bound to.

    Its gradients are views of ``flat_grad``, or separate tensors while gradients are requested in parts.
    """

    def __init__(
        self, model: nn.Module, device: str, dtype: torch.dtype, traced: NetworkTrace, precision: str = "float32"
    ) -> None:
        """``precision``: as in `Training`. The features and logits have ``dtype`` in any case."""
        self.model = copy.deepcopy(model).to(device=device, dtype=dtype)
        self.layout = Layout.of(self.model, traced.order)
        self.flat_grad = torch.zeros(1, self.layout.num_params, device=device, dtype=dtype)
        self._derived = torch.empty_like(self.flat_grad[0])  # [d] the derived weights, see ``DerivedWeights``
        self._modules = dict(self.model.named_modules())
        self._params = tuple(p for _, p in trainable_parameters(self.model))
        self._sizes = [f.stop - f.start for f in self.layout.fields]
        # For each statistic, the dictionary that holds it, its name there, and its shape.
        named = [(f.name.rpartition("."), f.shape) for f in self.layout.fields[len(self._params) :]]
        self._statistics = [(self._modules[module]._buffers, name, shape) for (module, _, name), shape in named]
        self._address: tuple[int, int] | None = None  # addresses of the bound vectors
        self._alive: tuple[Tensor, ...] = ()  # the bound vectors
        self._trainable: tuple[Field, ...] | None = None  # the tensors that require gradients
        self._in_parts: bool | None = None  # whether autograd allocates the gradients; ``flat_grad`` is then all zeros
        self._features: Tensor = ABSENT  # input of the head in the last forward pass
        self._in_hook = False
        norms = nn.modules.batchnorm._BatchNorm
        self.has_batch_norm = any(isinstance(module, norms) for module in self.model.modules())
        self._modules[self.layout.head].register_forward_pre_hook(self._keep_features)
        if traced.in_place:  # what it is given may be a view of the clients' data
            self.model.register_forward_pre_hook(lambda module, inputs: inputs[0].clone(), prepend=True)
        if traced.as_object:
            self.model.register_forward_hook(lambda module, inputs, output: logits_of(output))
        if precision == "bf16":
            autocast = torch.autocast(self.flat_grad.device.type, torch.bfloat16)
            self.model.forward = autocast(self.model.forward)
            self.model.register_forward_hook(lambda module, inputs, output: output.to(dtype))
        self._set_in_parts(False)

    def bind(self, params: Tensor, statistics: Tensor) -> None:
        """Make the module's tensors views of ``params`` [d] and ``statistics`` [e - d].

        Does nothing if they already are. Raises RuntimeError inside a loss hook.
        """
        address = (params.data_ptr(), statistics.data_ptr())
        if address == self._address:
            return
        if self._in_hook:
            raise RuntimeError(
                "a loss hook must not call methods of the federation: the network is in use; call them before training"
            )
        # `data` has a version counter of its own, so that autograd does not notice when another thread trains another
        # row of the same tensor.
        params, statistics = params.data, statistics.data
        count = len(self._params)
        parts = params.split_with_sizes(self._sizes[:count])
        for f, p, part in zip(self.layout.params, self._params, parts, strict=True):
            p.data = part.view(f.shape)
        parts = statistics.split_with_sizes(self._sizes[count:]) if self._statistics else ()
        for (buffers, name, shape), part in zip(self._statistics, parts, strict=True):
            buffers[name] = part.view(shape)
        self._address, self._alive = address, (params, statistics)  # kept alive: only then are the addresses unique

    def set_mode(self, mode: str) -> None:
        """Mode of batch norm: "train" normalises by the batch and updates the statistics, "eval" uses them frozen."""
        if self.model.training != (mode == "train"):
            self.model.train(mode == "train")

    def set_trainable(self, rows: int, trainable: Tensor | bool) -> bool:
        """Compute gradients only for tensors with a trainable entry: all, none, or by mask [1, d]. False if none."""
        fields = trainable_fields(self.layout.params, trainable)
        if fields != self._trainable:
            for p, f in zip(self._params, self.layout.params, strict=True):
                p.requires_grad_(f in fields)
            self._trainable = fields
        return bool(fields)

    def compute(
        self, theta: Tensor, statistics: Tensor, batch: Batch, rows: Sequence[int], request: GradientRequest
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the gradient of the batch's loss at theta [1, e]; ``gradients`` returns it.

        Returns the loss [1] and the gradients of variables [1, v] and gates [1, h], None if not requested. ``rows`` is
        the row number for hooks. Batch norm updates ``statistics`` [1, e - d].
        """
        loss, weights, variables, gates = request.loss, request.weights, request.variables, request.gates
        params = theta[0, : self.layout.num_params]
        # Derived weights need two stages: the gradient with respect to the derived weights, then with respect to theta
        # and the variables.
        if weights is not None:
            sources = [part.data.requires_grad_() for part in (params, variables) if part is not None]  # as in `bind`
            variables_k = None if variables is None else sources[1][0]
            derived = weights(sources[0], variables_k, batch.x[0], rows[0])
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
        gate_gradient = ABSENT
        if request.with_gates:
            assert leaf is not None, "the gradient of gates was requested without gates"
            gate_gradient = leaf.grad
        if weights is None:
            return value.detach()[None], ABSENT, gate_gradient
        gradients = torch.autograd.grad(derived, sources, self.flat_grad[0], allow_unused=True, materialize_grads=True)
        self.flat_grad.copy_(gradients[0])
        return value.detach()[None], ABSENT if variables is None else gradients[1], gate_gradient

    def _set_in_parts(self, in_parts: bool) -> None:
        """Let autograd allocate the gradients, or write them into ``flat_grad``."""
        if in_parts != self._in_parts:
            self._in_parts = in_parts
            self.flat_grad.zero_()
            for f, p in zip(self.layout.params, self._params, strict=True):
                p.grad = None if in_parts else self._part(f).view(f.shape)

    def gradients(self, rows: int) -> Tensor | list[Tensor]:
        """The gradient of the last ``compute``: [1, d], or with ``in_parts`` a list of one part [1, n] per tensor.

        The caller may modify it in place if zeros stay 0: the part of a tensor without gradient is a view of
        ``flat_grad``.
        """
        if not self._in_parts:
            return self.flat_grad
        grads = ((p.grad, f) for p, f in zip(self._params, self.layout.params, strict=True))
        return [(self._part(f) if grad is None else grad.view(-1))[None] for grad, f in grads]

    def _part(self, f: Field) -> Tensor:
        return self.flat_grad[0, f.start : f.stop]

    def losses(
        self, theta: Tensor, statistics: Tensor, batch: Batch, rows: Sequence[int], loss: LossHook | None
    ) -> Tensor:
        """The loss [1] of a batch, without gradients; batch norm updates ``statistics``."""
        self.bind(theta[0, : self.layout.num_params], statistics[0])
        with torch.no_grad():
            return self._loss(theta, batch, rows, loss)[None]

    def _loss(self, theta: Tensor, batch: Batch, rows: Sequence[int], hook: LossHook | None) -> Tensor:
        """The loss of a batch with the bound tensors: mean cross-entropy, or that of the hook."""
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
        """Hessian of the batch's mean cross-entropy times ``vector`` [d] -> [d]; theta [e] is not modified."""
        self.bind(theta[: self.layout.num_params], theta[self.layout.num_params :].clone())
        self.set_trainable(1, True)
        first = torch.autograd.grad(cross_entropy(self.model(x), y), self._params, create_graph=True)
        named = self.layout.unflatten(vector)
        # H v = ∇(∇f · v)
        products = ((g * named[f.name]).sum() for g, f in zip(first, self.layout.params, strict=True))
        second = torch.autograd.grad(
            cast(Tensor, sum(products)), self._params, allow_unused=True, materialize_grads=True
        )
        return torch.cat([g.reshape(-1) for g in second])

    @contextmanager
    def tapped(self, layer: str) -> Iterator[Callable[[Tensor], Tensor]]:
        """Yields a function that returns the output of ``layer`` in the last forward pass; its argument: the logits."""
        if layer == "logits":
            yield lambda logits: logits
        elif layer == "features":
            yield lambda logits: self._features
        elif (name := layer.removesuffix(":input")) in self._modules:
            seen: list[Tensor] = []
            hook = self._modules[name].register_forward_hook(
                lambda module, inputs, output: seen.append(first_tensor(output) if name == layer else inputs[0])
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
        """Inside this context, multiply the activations of the hidden neurons by ``gates`` [1, h]."""
        if gates is None:
            yield
            return
        chain = self.layout.chain
        if chain is None:
            raise ValueError(
                f"gates need a plain chain of layers, each with its ReLU; {type(self.model).__name__} is not one"
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
        self._features = inputs[0].to(self.flat_grad)


def _multiply_by(gate: Tensor) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
    return lambda module, inputs, output: output * gate.view(-1, *[1] * (output.dim() - 2))

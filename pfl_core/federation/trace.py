"""What a network does besides computing logits, found before a run by running copies of it on a few samples.

A user's network may draw random numbers, change its input, or keep values outside its parameters and buffers.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pfl_core.layout import HEAD_LAYER, _Norm, is_users_own, logits_of, statistics
from pfl_core.plugins import text_of
from pfl_core.seeding import seeded

_PLAIN = vars(nn.Module()).keys() | {HEAD_LAYER}  # attributes that every module has


@dataclass(frozen=True)
class NetworkTrace:
    """The result of ``trace``."""

    order: tuple[str, ...]  # layers with parameters that the logits need, from input to output
    inputs: dict[str, tuple[int, ...]]  # layer -> shape of its input for one sample
    draws: bool  # whether a pass draws from global generators
    in_place: bool  # whether a pass changes its input
    as_object: bool  # whether the output is an object with the attribute ``logits``
    warning: str = ""  # what makes results depend on more than seed, data and weights


def trace(model: nn.Module, x: Tensor, other: Tensor) -> tuple[nn.Module, NetworkTrace]:
    """Run copies of the network on the samples x [2, ...] and ``other`` [2, ...]. Returns the network and the trace.

    Integer buffers that a pass changes, e.g. counters, are floating in the network that is returned, so that they are
    entries of a row. Raises ValueError if a pass fails, does not return logits [2, C], assigns a new tensor to a
    buffer, or depends on what an earlier pass left outside the buffers.
    """
    first = _Copy(model, x)
    trained = first(x, train=True)
    if not is_users_own(model):
        return model, first.trace()
    expected = trained, first(x, train=False)
    second, third = _Copy(model, x), _Copy(model, x)
    before = second.outside()
    second(other, train=True)
    changed = [name for name, value in second.outside().items() if value != before.get(name)]
    stored = second.net.state_dict()
    if counters := [name for name in changed if name in stored and not stored[name].is_floating_point()]:
        return _with_floating(model, counters, x, other)
    warning, names = "", ", ".join(changed) or "values that are no attribute of a module"
    if not _equal(expected, (second(x, train=True), second(x, train=False))):
        if _equal(expected, (third(x, train=True), third(x, train=False))):
            raise ValueError(
                f"network {first.name}: its output depends on earlier batches through {names}, which clients would "
                "share; register it as a floating buffer and change that in place"
            )
        warning = f"network {first.name}: equal runs give different results, as its output depends on more than seeds"
    elif changed:
        warning = f"network {first.name}: {names} changes with every batch, and all clients share it"
    return model, first.trace(warning)


def _with_floating(model: nn.Module, counters: list[str], x: Tensor, other: Tensor) -> tuple[nn.Module, NetworkTrace]:
    """``trace`` of a copy of the network in which these integer buffers are floating."""
    model = copy.deepcopy(model)
    for name in counters:
        module, _, own = name.rpartition(".")
        owner = model.get_submodule(module)
        owner.register_buffer(own, owner.get_buffer(own).to(x.dtype))
    try:
        return trace(model, x, other)
    except ValueError as error:
        raise ValueError(
            f"network {type(model).__name__}: its integer buffer {', '.join(counters)} changes with every batch, and "
            f"clients would share it; make it a floating buffer that works ({error})"
        ) from error


class _Copy:
    """A copy of a network. Every pass starts with the entries that the network has at the beginning."""

    def __init__(self, model: nn.Module, like: Tensor) -> None:
        self.name = type(model).__name__
        try:
            self.net = copy.deepcopy(model).to(like.device, like.dtype)
        except Exception as error:
            raise ValueError(f"network {self.name} cannot be copied ({text_of(error)})") from error
        for p in self.net.parameters():
            p.requires_grad_()  # frozen layers are in ``order``, too
        self.inputs: dict[str, tuple[int, ...]] = {}
        self.order: tuple[str, ...] = ()
        self.draws = self.in_place = self.as_object = False

    def __call__(self, x: Tensor, train: bool) -> Tensor:
        """The logits of x in training or evaluation mode."""
        given, buffers = x.clone(), dict(statistics(self.net))
        kept = {name: buffer.clone() for name, buffer in buffers.items()}
        outputs: dict[str, Tensor] = {}
        self.net.train(train)
        hooks = [
            module.register_forward_hook(self._record(name, outputs))
            for name, module in self.net.named_modules()
            if [*module.parameters(recurse=False)]
        ]
        try:
            with torch.set_grad_enabled(train), seeded(0, "trace") as drawn:
                output = self.net(given)
                self.draws |= drawn()
                logits = logits_of(output)
                self.as_object |= logits is not output
        except (Exception, SystemExit) as error:
            mode, reason = "training" if train else "evaluation", (text_of(error).splitlines() or [""])[0]
            raise ValueError(
                f"network {self.name} fails on two samples of shape {list(x.shape[1:])} in {mode} mode "
                f"({type(error).__name__}: {reason}); correct the network, or choose other data"
            ) from error
        finally:
            for hook in hooks:
                hook.remove()
        if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(x):
            what = f"shape {list(logits.shape)}" if isinstance(logits, Tensor) else f"type {type(logits).__name__}"
            raise ValueError(f"network {self.name}: for 2 samples the output has {what}, not [2, classes]")
        self.in_place |= not torch.equal(given, x)
        if train:
            self.order = _needed(logits, outputs)
        for name, buffer in statistics(self.net):
            if buffer is not buffers.get(name):
                raise ValueError(
                    f"network {self.name} assigns a new tensor to its buffer {name}, which clients would share; "
                    "change it in place, e.g. with copy_"
                )
            buffer.data.copy_(kept[name])
        return logits.detach()

    def trace(self, warning: str = "") -> NetworkTrace:
        return NetworkTrace(self.order, self.inputs, self.draws, self.in_place, self.as_object, warning)

    def _record(self, name: str, outputs: dict[str, Tensor]) -> Any:
        """A forward hook that keeps a layer's first output and the shape of its input, in the order of calls."""

        def keep(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            out = first_tensor(output)
            if inputs and isinstance(inputs[0], Tensor) and isinstance(out, Tensor):
                outputs.pop(name, None)
                outputs[name], self.inputs[name] = out, tuple(inputs[0].shape[1:])

        return keep

    def outside(self) -> dict[str, object]:
        """Values of attributes, and of buffers that are not entries; they must not change."""
        inside, values = dict(statistics(self.net)), dict[str, Any]()
        for prefix, module in self.net.named_modules():
            own = {name: value for name, value in vars(module).items() if name not in _PLAIN}
            own |= {n: b for n, b in module._buffers.items() if b is not None and n != _counter_of(module)}
            values |= {f"{prefix}.{name}".lstrip("."): value for name, value in own.items()}
        return {name: _content(value) for name, value in values.items() if name not in inside}


def first_tensor(output: Any) -> Any:
    """The first element of a layer's output that is a tuple or a list, e.g. of an LSTM."""
    while isinstance(output, tuple | list) and output:
        output = output[0]
    return output


def _counter_of(module: nn.Module) -> str:
    """The batch counter of batch norm, on which nothing depends (``Layout.of`` checks it)."""
    return "num_batches_tracked" if isinstance(module, _Norm) else ""


def _content(value: Any) -> object:
    """Something that differs if the content of ``value`` does."""
    try:
        return pickle.dumps(value)
    except Exception:  # e.g. a weak reference
        return id(value)


def _needed(logits: Tensor, outputs: dict[str, Tensor]) -> tuple[str, ...]:
    """The layers whose output the logits depend on."""
    with_gradient = {name: out for name, out in outputs.items() if out.requires_grad}
    if not with_gradient or not logits.requires_grad:
        return ()
    with torch.enable_grad():  # of a scalar: gradients of a given size would import torch's compiler
        found = torch.autograd.grad(logits.sum(), list(with_gradient.values()), allow_unused=True)
    return tuple(name for name, gradient in zip(with_gradient, found, strict=True) if gradient is not None)


def _equal(one: Sequence[Tensor], two: Sequence[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True) for a, b in zip(one, two, strict=True))

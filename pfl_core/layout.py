"""A model as one flat vector: first the trainable parameters, then the batch-norm statistics.

The first ``num_params`` = d entries are the trainable scalars in the order of ``named_parameters()``, each tensor in
row-major order. The floating buffers (batch-norm means and variances) follow; the vector has ``num_entries`` = e
entries. All counts, fractions and rankings of the papers are over the first d. Frozen parameters
(``requires_grad=False``), integer buffers and non-persistent buffers are constants of the network, not entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from pfl_core.ops import any_true
from pfl_core.plugins import PACKAGE

_Norm = nn.modules.batchnorm._NormBase
HEAD_LAYER = "head_layer"  # attribute of a network: the name of its head, where it is not the last linear layer
# Kinds of entries: parameters of a layer, parameters of batch norm, statistics of batch norm.
WEIGHT, NORM, STATISTIC = "weight", "norm", "statistic"


@dataclass(frozen=True)
class Field:
    """Position of a named tensor in the vector: ``vector[start:stop].view(shape)``."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    kind: str

    @property
    def layer(self) -> str:
        """Name of the tensor's module, e.g. ``layer1.0.conv1``."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Layout:
    """Maps the model's tensors to entries of the flat vector. Built by :meth:`Layout.of`."""

    fields: tuple[Field, ...]
    head: str  # name of the last linear layer; its input is the feature vector of a sample
    chain: Chain | None  # hidden neurons of a plain chain of layers; None for other networks
    order: tuple[str, ...] = ()  # layers with parameters, from input to output

    @classmethod
    def of(cls, model: nn.Module, order: Sequence[str] = ()) -> Layout:
        """The layout of a module. ``order``: its layers from input to output; default: as they are registered.

        Raises ValueError if the module has no trainable parameter, no linear layer (the last one is its head) or a
        ``head_layer`` that it lacks, or if it has batch norm with ``momentum=None``, whose statistics depend on a batch
        counter that is not stored.
        """
        modules = dict(model.named_modules())
        cumulative = [name for name, m in modules.items() if isinstance(m, _Norm) and m.momentum is None]
        if cumulative:
            raise ValueError(f"batch norm {cumulative[0]!r} has momentum=None; give it a number such as 0.1")
        fields, start = [], 0
        for name, tensor in (*trainable_parameters(model), *statistics(model)):
            norm = isinstance(modules[name.rpartition(".")[0]], _Norm)
            kind = STATISTIC if not isinstance(tensor, nn.Parameter) else NORM if norm else WEIGHT
            fields.append(Field(name, tuple(tensor.shape), start, start := start + tensor.numel(), kind))
        if not any(f.kind != STATISTIC for f in fields):
            raise ValueError(f"model {type(model).__name__} has no trainable parameter")
        order = tuple(order) or tuple(name for name, m in modules.items() if [*m.parameters(recurse=False)])
        linear = [name for name in order if isinstance(modules[name], nn.Linear)]
        head = getattr(model, HEAD_LAYER, None) or (linear[-1] if linear else None)
        if head is None:
            raise ValueError(
                f"model {type(model).__name__} has no linear layer; the last linear layer is the head, or the layer "
                f"that its attribute {HEAD_LAYER} names"
            )
        if head not in order:
            raise ValueError(f"model {type(model).__name__}: {HEAD_LAYER}={head!r} is none of {', '.join(order)}")
        chain = None
        if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
            chain = Chain.of(model)
        return cls(tuple(fields), head, chain, order)

    @cached_property
    def num_entries(self) -> int:
        return self.fields[-1].stop

    @cached_property
    def num_params(self) -> int:
        return max(f.stop for f in self.fields if f.kind != STATISTIC)

    @property
    def num_statistics(self) -> int:
        return self.num_entries - self.num_params

    @cached_property
    def params(self) -> tuple[Field, ...]:
        return tuple(f for f in self.fields if f.kind != STATISTIC)

    def field(self, name: str) -> Field:
        """The field of that name; raises ValueError for an unknown one."""
        for f in self.fields:
            if f.name == name:
                return f
        raise ValueError(f"no tensor {name!r} in the model; it has {', '.join(f.name for f in self.fields)}")

    def mask(self, select: Callable[[Field], bool]) -> Tensor:
        """Bool [e], True on every entry of the selected fields."""
        out = torch.zeros(self.num_entries, dtype=torch.bool)
        for f in self.fields:
            out[f.start : f.stop] = select(f)
        return out

    def in_head(self, field: Field) -> bool:
        """Whether the field belongs to the head; ``layout.mask(layout.in_head)`` is the mask of the head."""
        return field.layer == self.head

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Tensor name -> view of ``vector`` [e]; without the statistics for a vector [d]."""
        return {f.name: vector[f.start : f.stop].view(f.shape) for f in self.fields if f.stop <= len(vector)}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """A new vector [e] from named tensors, e.g. ``model.state_dict()``: the inverse of :meth:`unflatten`."""
        return torch.cat([tensors[f.name].detach().reshape(-1) for f in self.fields])


def trainable_fields(fields: tuple[Field, ...], trainable: Tensor | bool) -> tuple[Field, ...]:
    """The fields with a trainable entry in any row of ``trainable`` [R, d]; True selects all fields, False none."""
    if isinstance(trainable, bool):
        return fields if trainable else ()
    return tuple(f for f in fields if any_true(trainable[:, f.start : f.stop]))


def logits_of(output: Any) -> Any:
    """The logits in a network's output: the output itself, or its attribute ``logits``."""
    return output if isinstance(output, Tensor) else getattr(output, "logits", output)


def is_users_own(model: nn.Module) -> bool:
    """Whether a module of the network is of a class outside of torch and this package."""
    known = ("torch", "torchvision", PACKAGE)
    return any(type(m).__module__.partition(".")[0] not in known for m in model.modules())


def trainable_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that are not frozen, with their names."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def statistics(model: nn.Module) -> list[tuple[str, Tensor]]:
    """The buffers that are entries, with their names: floating and stored in state dicts."""
    modules = dict(model.named_modules())
    named = [(name, *name.rpartition(".")[::2], buffer) for name, buffer in model.named_buffers()]
    return [
        (name, buffer)
        for name, module, own, buffer in named
        if buffer.is_floating_point() and own not in modules[module]._non_persistent_buffers_set
    ]


@dataclass(frozen=True)
class Chain:
    """Hidden neurons of a plain chain of layers, numbered from input to output (a channel is one neuron).

    FedPeWS masks neurons, and a selected neuron "brings all weights associated with it". The paper does not define
    weights between two masked layers. Here a parameter is active iff both neurons that it connects are active; inputs
    and logits are always active.
    """

    activations: tuple[str, ...]  # for each hidden layer, the module whose output is multiplied by the gates
    sizes: tuple[int, ...]  # neurons of each hidden layer
    out: Tensor  # [e] the neuron to which an entry contributes; num_neurons stands for a logit
    into: Tensor  # [e] the neuron from which an entry reads; num_neurons stands for an input or a bias

    @property
    def num_neurons(self) -> int:
        return sum(self.sizes)

    def expand(self, neuron_active: Tensor) -> Tensor:
        """Masks of neurons [..., h] -> masks of entries [..., e]; bool, or float for gradients."""
        padded = self._padded(neuron_active)
        return padded[..., self.out] * padded[..., self.into]

    def expand_rows(self, neuron_active: Tensor) -> Tensor:
        """As :meth:`expand`, but a parameter is active iff the neuron to which it contributes is active."""
        return self._padded(neuron_active)[..., self.out]

    def _padded(self, neuron_active: Tensor) -> Tensor:
        """[..., h] -> [..., h + 1]: the last entry stands for inputs and logits, which are always active."""
        return torch.cat([neuron_active, torch.ones_like(neuron_active[..., :1])], dim=-1)

    @classmethod
    def of(cls, model: nn.Sequential) -> Chain | None:
        """The neurons of a model; None for nested modules, grouped convolutions, frozen parameters, layers of a class
        outside of torch and this package, a hidden layer without its ReLU, or a dense layer before a Flatten.
        """
        layers = [(n, m) for n, m in model.named_children() if any(True for _ in m.parameters(recurse=False))]
        weighted = [n for n, m in layers if isinstance(m, nn.Linear | nn.Conv2d)]
        activations, hidden = [], ""
        for name, module in model.named_children():
            hidden = name if name in weighted[:-1] else hidden
            if isinstance(module, nn.ReLU) and hidden:
                activations.append(name)
                hidden = ""
            elif isinstance(module, nn.MaxPool2d) and activations and not hidden:
                activations[-1] = name  # after the pool: a zero gate before it would tie all values of a window
        sizes = [len(_weight(model.get_submodule(name))) for name in weighted[:-1]]
        flat = all(name.count(".") == 1 for name, _ in model.named_parameters())
        grouped = any(isinstance(m, nn.Conv2d) and m.groups > 1 for _, m in layers)
        frozen = len(trainable_parameters(model)) < len(list(model.parameters()))
        own = any(map(is_users_own, model.children()))
        dense = [isinstance(m, nn.Linear) for m in model.children() if isinstance(m, nn.Linear | nn.Flatten)]
        along = dense != sorted(dense)  # a dense layer before a Flatten computes along an axis
        if not weighted or not flat or grouped or frozen or own or along or len(activations) != len(sizes):
            return None
        return cls(tuple(activations), tuple(sizes), *_ends(model, weighted, sizes))


def _ends(model: nn.Sequential, weighted: list[str], sizes: list[int]) -> tuple[Tensor, Tensor]:
    """``Chain.out`` and ``Chain.into``, each [e]."""
    none, first = sum(sizes), 0
    current: Tensor | None = None  # the neuron of each input channel of the next layer; None for the network's inputs
    ends: dict[str, tuple[Tensor, Tensor]] = {}
    for name, module in model.named_children():
        if name in weighted:
            weight = _weight(module)
            rows, columns = weight.shape[:2]
            before = torch.full((columns,), none)
            if current is not None:  # after flattening, a channel has several columns of the dense weight
                before = current.repeat_interleave(columns // len(current))
            last = name == weighted[-1]
            current = torch.full((rows,), none) if last else torch.arange(first, first + rows)
            first += 0 if last else rows
            # Weight [rows, columns, ...]: its rows are the outputs, its columns the inputs.
            ones = [1] * (weight.dim() - 2)
            ends[f"{name}.weight"] = (
                current.view(rows, 1, *ones).expand_as(weight),
                before.view(1, columns, *ones).expand_as(weight),
            )
        for tensor, value in (*module.named_parameters(recurse=False), *statistics(module)):
            here = current if current is not None else torch.full(value.shape, none)
            if here.dim() == value.dim() == 1:  # batch norm after flattening: a channel has several features
                here = here.repeat_interleave(len(value) // len(here))
            ends.setdefault(f"{name}.{tensor}", (here, torch.full(value.shape, none)))
    order = [name for name, _ in (*model.named_parameters(), *statistics(model))]
    out, into = (torch.cat([ends[name][side].reshape(-1) for name in order]) for side in (0, 1))
    return out, into


def _weight(module: nn.Module) -> Tensor:
    assert isinstance(module.weight, Tensor)
    return module.weight

"""A model as one flat vector: trainable scalars first, then its floating statistics.

Order is that of ``named_parameters()``, row-major inside each tensor: ``num_params`` = d trainable scalars; then the
floating buffers (batch-norm means and variances): ``num_entries`` = e in all. Every count, share and ranking of a paper
is over the first d. Integer counters are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from pfl_core.ops import any_true

_Norm = nn.modules.batchnorm._NormBase
WEIGHT, NORM, STATISTIC = "weight", "norm", "statistic"  # kinds of entries: of a layer, of batch norm, its statistics


@dataclass(frozen=True)
class Field:
    """One named tensor's place in the vector: ``vector[start:stop].view(shape)``."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    kind: str

    @property
    def layer(self) -> str:
        """The module that owns the tensor, e.g. ``layer1.0.conv1``."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Layout:
    """Which entry of the vector is what. Built by :meth:`Layout.of`."""

    fields: tuple[Field, ...]
    head: str  # name of the last linear layer, whose input is a sample's features
    chain: Chain | None  # neurons, for plain chains of layers; None for other networks

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """Read the layout off a module.

        Raises ValueError if it has no linear layer to be its head, or batch norm that counts its batches in place of a
        momentum (integer counters are not stored, so its statistics would depend on what ran before).
        """
        modules = dict(model.named_modules())
        counting = [name for name, m in modules.items() if isinstance(m, _Norm) and m.momentum is None]
        if counting:
            raise ValueError(f"batch norm {counting[0]!r} has momentum=None; give it a number such as 0.1")
        fields, start = [], 0
        for name, tensor in (*model.named_parameters(), *_statistics(model)):
            norm = isinstance(modules[name.rpartition(".")[0]], _Norm)
            kind = STATISTIC if not isinstance(tensor, nn.Parameter) else NORM if norm else WEIGHT
            fields.append(Field(name, tuple(tensor.shape), start, start := start + tensor.numel(), kind))
        linear = [name for name, module in modules.items() if isinstance(module, nn.Linear)]
        if not linear:
            raise ValueError(f"model {type(model).__name__} has no linear layer: the last one is taken as its head")
        return cls(tuple(fields), linear[-1], Chain.of(model) if isinstance(model, nn.Sequential) else None)

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
        """Whether the field belongs to the head; ``layout.mask(layout.in_head)`` is the head's mask."""
        return field.layer == self.head

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Named views of ``vector`` [e], or of [d] (then without statistics)."""
        return {f.name: vector[f.start : f.stop].view(f.shape) for f in self.fields if f.stop <= len(vector)}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The inverse of :meth:`unflatten`, e.g. of ``dict(model.state_dict())``: a new vector [e]."""
        return torch.cat([tensors[f.name].detach().reshape(-1) for f in self.fields])


def wanted(fields: tuple[Field, ...], trainable: Tensor | bool) -> tuple[Field, ...]:
    """All (True) or none of the fields, or those in which some row of ``trainable`` [R, d] is True somewhere."""
    if isinstance(trainable, bool):
        return fields if trainable else ()
    return tuple(f for f in fields if any_true(trainable[:, f.start : f.stop]))


def _statistics(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, buffer) for name, buffer in model.named_buffers() if buffer.is_floating_point()]


@dataclass(frozen=True)
class Chain:
    """Hidden neurons of a plain chain of layers, numbered from input to output (a channel is one neuron).

    FedPeWS section 3.1: a parameter is active iff every hidden neuron that it touches is selected ("both ends"); inputs
    and logits always count as selected.
    """

    activations: tuple[str, ...]  # the module after each hidden layer whose output a gate multiplies
    sizes: tuple[int, ...]  # neurons in each hidden layer
    out: Tensor  # [e] the neuron that an entry feeds; num_neurons = none (logits)
    into: Tensor  # [e] the neuron that an entry reads; num_neurons = none (inputs)

    @property
    def num_neurons(self) -> int:
        return sum(self.sizes)

    def expand(self, neuron_active: Tensor) -> Tensor:
        """Neuron masks [..., h] to entry masks [..., e], both bool, or floats to be differentiated."""
        padded = self._padded(neuron_active)
        return padded[..., self.out] * padded[..., self.into]

    def expand_rows(self, neuron_active: Tensor) -> Tensor:
        """The same where a parameter belongs only to the neuron that it feeds, not to the one that it reads."""
        return self._padded(neuron_active)[..., self.out]

    def _padded(self, neuron_active: Tensor) -> Tensor:
        """[..., h + 1]: inputs and logits, the last, always count as selected."""
        return torch.cat([neuron_active, torch.ones_like(neuron_active[..., :1])], dim=-1)

    @classmethod
    def of(cls, model: nn.Sequential) -> Chain | None:
        """Read the neurons off a chain; None if they nest, come in groups, or lack a ReLU of their own."""
        layers = [(n, m) for n, m in model.named_children() if any(True for _ in m.parameters(recurse=False))]
        weighted = [n for n, m in layers if isinstance(m, nn.Linear | nn.Conv2d)]
        activations, hidden = [], ""
        for name, module in model.named_children():
            hidden = name if name in weighted[:-1] else hidden
            if isinstance(module, nn.ReLU) and hidden:
                activations.append(name)
                hidden = ""
            elif isinstance(module, nn.MaxPool2d) and activations and not hidden:
                activations[-1] = name  # after the pool: a gate of 0 before it would make ties of the whole window
        sizes = [model.get_submodule(n).weight.shape[0] for n in weighted[:-1]]
        flat = all(name.count(".") == 1 for name, _ in model.named_parameters())
        grouped = any(isinstance(m, nn.Conv2d) and m.groups > 1 for _, m in layers)
        if not weighted or not flat or grouped or len(activations) != len(sizes):
            return None
        return cls(tuple(activations), tuple(sizes), *_ends(model, weighted, sizes))


def _ends(model: nn.Sequential, weighted: list[str], sizes: list[int]) -> tuple[Tensor, Tensor]:
    """For every entry the neuron it feeds and the neuron it reads, each [e]."""
    none, first, current = sum(sizes), 0, None  # current: neuron of each incoming channel, None for the inputs
    ends: dict[str, tuple[Tensor, Tensor]] = {}
    for name, module in model.named_children():
        if name in weighted:
            weight = module.weight
            rows, columns = weight.shape[:2]
            before = (
                torch.full((columns,), none) if current is None else current.repeat_interleave(columns // len(current))
            )
            last = name == weighted[-1]
            current = torch.full((rows,), none) if last else torch.arange(first, first + rows)
            first += 0 if last else rows
            shape = (rows, columns, *[1] * (weight.dim() - 2))
            ends[f"{name}.weight"] = (
                current.view(-1, *[1] * (weight.dim() - 1)).expand_as(weight),
                before.view(1, *shape[1:]).expand_as(weight),
            )
        for tensor, value in (*module.named_parameters(recurse=False), *_statistics(module)):
            here = current if current is not None else torch.full(value.shape, none)
            if here.dim() == value.dim() == 1:  # batch norm after flattening: a channel owns several features
                here = here.repeat_interleave(len(value) // len(here))
            ends.setdefault(f"{name}.{tensor}", (here, torch.full(value.shape, none)))
    order = [name for name, _ in (*model.named_parameters(), *_statistics(model))]
    out, into = (torch.cat([ends[name][side].reshape(-1) for name in order]) for side in (0, 1))
    return out, into

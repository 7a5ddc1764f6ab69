"""pFedGate's block layouts: how a model is divided into the sub-blocks that a gate scales.

The knapsack keeps or drops a block as a whole. Flat layouts divide each tensor separately. "output_rows" (not in the
paper) groups the neurons of each hidden layer. Weight rows, bias entries and norms of a group form one block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pfl_core.layout import Field, Layout


@dataclass(frozen=True, eq=False)
class Blocks:
    """A partition of the d parameters into L blocks, stored as runs of neighbouring entries of the same block.

    A flat layout has one run for each block. "output_rows" has several, such as weight rows and bias entries.
    """

    runs: Tensor  # [R] int64, run lengths; their sum is d
    block: Tensor  # [R] int64, block of each run
    always: np.ndarray  # [L] bool, first block of a tensor: always kept
    linear: np.ndarray  # [L] bool, block of a linear layer
    rows: tuple[tuple[int, ...], ...] = ()  # "output_rows": for each hidden layer, number of neurons in each block

    @cached_property
    def sizes(self) -> np.ndarray:
        """W [L] int64, number of entries in each block."""
        return np.bincount(self.block.numpy(), weights=self.runs.numpy(), minlength=len(self.always)).astype(np.int64)

    @property
    def num_blocks(self) -> int:
        return len(self.always)

    @cached_property
    def num_params(self) -> int:
        return int(self.sizes.sum())

    def share(self, kept: np.ndarray) -> np.ndarray:
        """s' = (I . W) / d, the share of the model that is kept; ``kept`` bool [..., L] -> [...]."""
        return kept @ self.sizes / self.num_params

    def macs_share(self, kept: np.ndarray, uses: Tensor) -> np.ndarray:
        """Share of the forward pass's MACs that is kept; ``kept`` [..., L], ``uses`` [d] of each weight -> [...]."""
        macs = self.sums(uses.double()).numpy()
        return kept @ macs / macs.sum()

    def expand(self, values: Tensor) -> Tensor:
        """The value of its block for each parameter: [L] -> [d]."""
        block, runs = self.block.to(values.device), self.runs.to(values.device)
        return values[block].repeat_interleave(runs, output_size=self.num_params)

    def scale(self, theta: Tensor, values: Tensor) -> Tensor:
        """Every entry of theta [d] times the value of its block, ``values`` [L]; differentiable in both."""
        return _Scale.apply(theta, values, self)

    def sums(self, x: Tensor) -> Tensor:
        """Sum of x [d] over each block, [L]. The order of summation is fixed, so the result is deterministic."""
        if x.device.type == "cpu":  # reduceat uses pairwise summation: more precise than a running sum, and faster
            starts = self.runs.cumsum(0) - self.runs
            of_runs = torch.from_numpy(np.add.reduceat(x.numpy(), starts.numpy()))
        else:
            of_runs = torch.segment_reduce(x, "sum", lengths=self.runs.to(x.device)).cpu()
        return torch.zeros(self.num_blocks, dtype=x.dtype).index_add_(0, self.block, of_runs).to(x.device)


class _Scale(torch.autograd.Function):
    """theta' = theta * M'[block]. With g = dLoss/dtheta', the gradients are M' g and, for M'_b, <g_b, theta_b>."""

    @staticmethod
    def forward(ctx, theta: Tensor, values: Tensor, blocks: Blocks) -> Tensor:
        expanded = blocks.expand(values.detach())  # [d]
        ctx.save_for_backward(theta, expanded)
        ctx.blocks = blocks
        return theta * expanded

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        theta, expanded = ctx.saved_tensors
        grad_theta = g * expanded if ctx.needs_input_grad[0] else None
        grad_values = ctx.blocks.sums(g * theta) if ctx.needs_input_grad[1] else None
        return grad_theta, grad_values, None


def first_min_ratio(n: int, num: int, least: float) -> list[int]:
    """Block sizes of n entries: first a share ``least`` (at least 1 entry), then ``num`` - 1 equal blocks."""
    first = max(1, math.floor(least * n + 1e-9))
    return [first, *_pieces(n - first, num - 1)]


def equal(n: int, num: int, least: float) -> list[int]:
    """Block sizes of n entries: ``num`` equal blocks, the last one may be smaller (Appendix I.4; released code)."""
    return _pieces(n, num)


def balanced(n: int, size: float, least: float) -> list[int]:
    """Block sizes of n entries: first a share ``least``, then equal blocks of about ``size`` entries.

    A tensor whose rest is at most half of ``size`` is one block.
    """
    pieces = round((1 - least) * n / size)
    return first_min_ratio(n, 1 + pieces, least) if pieces else [n]


def output_rows(n: int, num: int, least: float) -> list[int]:
    """Group sizes of n neurons: first a share ``least`` (rounded up), then ``num`` - 1 groups of almost equal size."""
    first = max(1, math.ceil(least * n - 1e-9))
    parts = min(num - 1, n - first)
    return [first, *((n - first + parts - 1 - i) // parts for i in range(parts))]


def _pieces(n: int, num: int) -> list[int]:
    """n in ``num`` pieces of equal size; the last may be smaller, and there may be fewer."""
    size = math.ceil(n / num) if n else 1
    return [min(size, n - start) for start in range(0, n, size)]


FLAT: dict[str, Callable[[int, int, float], list[int]]] = {"first_min_ratio": first_min_ratio, "equal": equal}


def build_blocks(layout: Layout, num: int, least: float, mode: str) -> Blocks:
    """The blocks of a network: ``num`` = B for each tensor (or hidden layer), ``least`` = s_min.

    "balanced" (not in the paper) makes blocks of about equal size over the whole model, about B for each tensor on
    average. Raises ValueError for ``mode`` "output_rows" if the network is not a plain chain of layers.
    """
    if mode == "output_rows":
        return _by_rows(layout, num, least)
    linear_layers = {f.layer for f in layout.params if _is_linear(f)}
    target_size = layout.num_params / (num * len(layout.params))  # of "balanced"
    runs: list[int] = []
    always: list[bool] = []
    linear: list[bool] = []
    for f in layout.params:
        n = f.stop - f.start
        sizes = balanced(n, target_size, least) if mode == "balanced" else FLAT[mode](n, num, least)
        runs += sizes
        always += [i == 0 for i in range(len(sizes))]
        linear += [f.layer in linear_layers] * len(sizes)
    return Blocks(torch.tensor(runs), torch.arange(len(runs)), np.array(always), np.array(linear))


def _by_rows(layout: Layout, num: int, least: float) -> Blocks:
    """Blocks of neuron groups. A group's block has all parameters that feed its neurons; the head is one block."""
    chain = layout.chain
    if chain is None:
        raise ValueError('pFedGate: block_layout="output_rows" needs a plain chain of layers; use "first_min_ratio"')
    rows = tuple(tuple(output_rows(n, num, least)) for n in chain.sizes)
    first_block = np.cumsum([0, *map(len, rows)])  # of each hidden layer; the last is the block of the head
    first_neuron = np.cumsum([0, *chain.sizes])  # of each hidden layer
    runs: list[int] = []
    block: list[int] = []
    is_linear: dict[int, bool] = {}  # hidden layer -> whether it is a linear layer
    for f in layout.params:
        i = int(np.searchsorted(first_neuron, int(chain.out[f.start]), side="right")) - 1  # hidden layer of the tensor
        if i == len(rows):  # the head
            runs.append(f.stop - f.start)
            block.append(int(first_block[-1]))
            continue
        per_neuron = (f.stop - f.start) // chain.sizes[i]  # entries of one neuron
        runs += [per_neuron * count for count in rows[i]]
        block += range(first_block[i], first_block[i + 1])
        is_linear[i] = is_linear.get(i, False) or _is_linear(f)
    always = [j == 0 for group in rows for j in range(len(group))]
    linear = [is_linear[i] for i, group in enumerate(rows) for _ in group]
    return Blocks(torch.tensor(runs), torch.tensor(block), np.array([*always, True]), np.array([*linear, True]), rows)


def _is_linear(field: Field) -> bool:
    """Whether the tensor is the weight matrix of a linear layer."""
    return len(field.shape) == 2

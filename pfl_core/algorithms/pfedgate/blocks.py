"""How pFedGate cuts a model into sub-blocks: specification sections 4.1 and 7.

A block is what the gate scales and the knapsack keeps or drops as a whole. Flat layouts cut every tensor by itself;
"output_rows" cuts hidden layers by neurons, whose weight rows, bias entries and norms then share one block.
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
    """L blocks over the d parameters, as runs of neighbouring entries of one block, from the first entry to the last.

    A flat layout has a run for each block; "output_rows" has several, e.g. weight rows and bias entries.
    """

    runs: Tensor  # [R] int64, lengths; their sum is d
    block: Tensor  # [R] int64, the block of each run
    always: np.ndarray  # [L] bool, is_first: kept whatever the gate says
    linear: np.ndarray  # [L] bool, of a linear layer
    rows: tuple[tuple[int, ...], ...] = ()  # of "output_rows": neurons of each block, for each hidden layer

    @cached_property
    def sizes(self) -> np.ndarray:
        """W [L] int64, entries of each block."""
        return np.bincount(self.block.numpy(), weights=self.runs.numpy(), minlength=len(self.always)).astype(np.int64)

    @property
    def num_blocks(self) -> int:
        return len(self.always)

    @cached_property
    def num_params(self) -> int:
        return int(self.sizes.sum())

    def share(self, kept: np.ndarray) -> np.ndarray:
        """s' = (I . W) / d, the part of the model that is kept; ``kept`` bool [..., L] -> [...]."""
        return kept @ self.sizes / self.num_params

    def macs_share(self, kept: np.ndarray, uses: Tensor) -> np.ndarray:
        """Share of the forward pass's MACs that is kept; ``kept`` [..., L], ``uses`` [d] of each weight -> [...]."""
        macs = self.sums(uses.double()).numpy()
        return kept @ macs / macs.sum()

    def expand(self, values: Tensor) -> Tensor:
        """A value for each block [L] -> one for each parameter [d]."""
        block, runs = self.block.to(values.device), self.runs.to(values.device)
        return values[block].repeat_interleave(runs, output_size=self.num_params)

    def scale(self, theta: Tensor, values: Tensor) -> Tensor:
        """theta [d] times its block's value, ``values`` [L]; differentiable by both."""
        return _Scale.apply(theta, values, self)

    def sums(self, x: Tensor) -> Tensor:
        """Sum of x [d] over each block, [L]; always in the same order, so always the same bits."""
        if x.device.type == "cpu":  # in pairs: many times as exact as one entry after the other, and faster
            starts = self.runs.cumsum(0) - self.runs
            of_runs = torch.from_numpy(np.add.reduceat(x.numpy(), starts.numpy()))
        else:
            of_runs = torch.segment_reduce(x, "sum", lengths=self.runs.to(x.device)).cpu()
        return torch.zeros(self.num_blocks, dtype=x.dtype).index_add_(0, self.block, of_runs).to(x.device)


class _Scale(torch.autograd.Function):
    """theta' = theta * M'[block]; with g = dLoss/dtheta': M' g for theta and <g_b, theta_b> for M'_b (section 4.5)."""

    @staticmethod
    def forward(ctx, theta: Tensor, values: Tensor, blocks: Blocks) -> Tensor:
        wide = blocks.expand(values.detach())
        ctx.save_for_backward(theta, wide)
        ctx.blocks = blocks
        return theta * wide

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        theta, wide = ctx.saved_tensors
        of_theta = g * wide if ctx.needs_input_grad[0] else None
        of_values = ctx.blocks.sums(g * theta) if ctx.needs_input_grad[1] else None
        return of_theta, of_values, None


def first_min_ratio(n: int, num: int, least: float) -> list[int]:
    """Sizes for n entries: a share ``least`` first (rounded down, 1 at least), the rest in ``num`` - 1 equal pieces."""
    first = max(1, math.floor(least * n + 1e-9))
    return [first, *_pieces(n - first, num - 1)]


def equal(n: int, num: int, least: float) -> list[int]:
    """Sizes for n entries: ``num`` equal pieces, the last one smaller: Appendix I.4, and the released code."""
    return _pieces(n, num)


def balanced(n: int, size: float, least: float) -> list[int]:
    """Sizes for n entries: a share ``least`` first, the rest in equal pieces of about ``size``; fewer are one block."""
    pieces = round((1 - least) * n / size)
    return first_min_ratio(n, 1 + pieces, least) if pieces else [n]


def output_rows(n: int, num: int, least: float) -> list[int]:
    """Sizes for n neurons: a share ``least`` first (rounded up), then groups that differ by one at most."""
    first = max(1, math.ceil(least * n - 1e-9))
    parts = min(num - 1, n - first)
    return [first, *((n - first + parts - 1 - i) // parts for i in range(parts))]


def _pieces(n: int, num: int) -> list[int]:
    size = math.ceil(n / num) if n else 1
    return [min(size, n - start) for start in range(0, n, size)]


FLAT: dict[str, Callable[[int, int, float], list[int]]] = {"first_min_ratio": first_min_ratio, "equal": equal}


def build_blocks(layout: Layout, num: int, least: float, mode: str) -> Blocks:
    """The blocks of a network: ``num`` = B for each tensor (or hidden layer), ``least`` = s_min.

    "balanced" (ours, section 11) has about B for each tensor on average, all of about one size over the whole model.
    Raises ValueError for ``mode`` "output_rows" with a network that is no plain chain of layers.
    """
    if mode == "output_rows":
        return _by_rows(layout, num, least)
    dense = {f.layer for f in layout.params if len(f.shape) == 2}
    cut, each = (balanced, layout.num_params / (num * len(layout.params))) if mode == "balanced" else (FLAT[mode], num)
    runs, always, linear = [], [], []
    for f in layout.params:
        sizes = cut(f.stop - f.start, each, least)
        runs += sizes
        always += [i == 0 for i in range(len(sizes))]
        linear += [f.layer in dense] * len(sizes)
    return Blocks(torch.tensor(runs), torch.arange(len(runs)), np.array(always), np.array(linear))


def _by_rows(layout: Layout, num: int, least: float) -> Blocks:
    """Neurons in groups; whatever feeds a neuron belongs to its group, and the head is one block, always kept."""
    chain = layout.chain
    if chain is None:
        raise ValueError('pFedGate: block_layout="output_rows" needs a plain chain of layers; take "first_min_ratio"')
    rows = tuple(tuple(output_rows(n, num, least)) for n in chain.sizes)
    firsts = np.cumsum([0, *map(len, rows)])  # number of each hidden layer's first block; the last is the head's
    neurons = np.cumsum([0, *chain.sizes])  # number of each hidden layer's first neuron
    runs, block, dense = [], [], {}
    for f in layout.params:
        at = int(np.searchsorted(neurons, int(chain.out[f.start]), side="right")) - 1
        if at == len(rows):
            runs.append(f.stop - f.start)
            block.append(int(firsts[-1]))
            continue
        each = (f.stop - f.start) // chain.sizes[at]  # entries of one neuron
        runs += [each * count for count in rows[at]]
        block += range(firsts[at], firsts[at + 1])
        dense[at] = dense.get(at, False) or _is_dense(f)
    always = [i == 0 for group in rows for i in range(len(group))]
    linear = [dense[at] for at, group in enumerate(rows) for _ in group]
    return Blocks(torch.tensor(runs), torch.tensor(block), np.array([*always, True]), np.array([*linear, True]), rows)


def _is_dense(field: Field) -> bool:
    return len(field.shape) == 2

r"""pFedGate's blocks, and the gating layer: a batch in, a scale M and an importance G for every block out.

    x₁ = switch_norm(x)        z_p = batch_norm_p(W_p flatten(x₁) + b_p)        p ∈ {scale, importance}
    M = mean over the batch of sigmoid(z_scale)        G = mean over the batch of sigmoid(z_importance)

The paper does not say how the samples of a batch are combined; the mean of sigmoids is that of the released code. A
client's gate is two vectors: its parameters [v], which the client trains, and its running statistics [q].

A block layout divides a model into the blocks that a gate scales. The knapsack keeps or drops a block as a whole. Flat
layouts divide each tensor separately. "output_rows" (not in the paper) groups the neurons of each hidden layer. Weight
rows, bias entries and norms of a group form one block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import batch_norm, linear

from pfl_core.layout import Field, Layout
from pfl_core.seeding import generator

EPS = 1e-5
KEPT = 0.9  # weight of the old value when a running statistic of the switchable norm is updated
MIX = 3  # kinds of statistics that it mixes: instance, layer and batch
NORMAL_NODES, NORMAL_WEIGHTS = np.polynomial.hermite_e.hermegauss(40)  # Gauss-Hermite quadrature: means over N(0, 1)
NORMAL_WEIGHTS /= NORMAL_WEIGHTS.sum()


@dataclass(frozen=True)
class Gate:
    """The architecture of the gates, the same for all clients. The parameters are passed to every call.

    ``shape`` is that of one sample: (C, H, W), or (features,), which counts as C = 1.
    """

    shape: tuple[int, ...]
    num_blocks: int  # L
    num_paths: int  # 2, or 1 if M and G come from the same z
    pre_norm: bool = True
    post_norm: bool = True
    sigmoid: bool = True
    tangent: tuple[float, ...] = ()  # without sigmoid, use its tangent: initial bias of each path

    @property
    def num_channels(self) -> int:
        return self.shape[0] if len(self.shape) > 1 else 1

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of the 8 parts of the parameter vector.

        gamma, beta, w_mean and w_var of the switchable norm; weights and biases of the linear layers; gamma and beta of
        the batch norms.
        """
        out = self.num_paths * self.num_blocks
        pre = (self.num_channels, self.num_channels, MIX, MIX) if self.pre_norm else (0, 0, 0, 0)
        return (*pre, out * math.prod(self.shape), out, *((out, out) if self.post_norm else (0, 0)))

    @cached_property
    def statistics(self) -> tuple[int, ...]:
        """Lengths of the 4 parts of the statistics: mean and variance of the switchable norm and of the batch norms."""
        pre = self.num_channels if self.pre_norm else 0
        post = self.num_paths * self.num_blocks if self.post_norm else 0
        return (pre, pre, post, post)

    def start(self, seed: int, *, copied: bool, scale_bias: float) -> tuple[Tensor, Tensor]:
        """Initial parameters [v] and statistics [q], the same for all clients.

        Linear layers start as in PyTorch, uniform in ± 1 / sqrt(d_X). Norms start with gamma 1 and beta 0. The running
        statistics (mean, variance) start at (0, 0) in the switchable norm and at (0, 1) in the batch norms. ``copied``:
        the second path starts as a copy of the first. ``scale_bias`` is added to the last bias of the scale path. With
        M = z, 1 is added to the last bias of both paths; otherwise the adapted model would start at 0.
        """
        inputs, num = math.prod(self.shape), self.num_blocks
        weights: list[Tensor] = []
        biases: list[Tensor] = []
        for path in range(self.num_paths):
            stream = generator(seed, "gate", 0 if copied else path)
            weights.append((2 * torch.rand((num, inputs), generator=stream) - 1) * inputs**-0.5)
            biases.append((2 * torch.rand((num,), generator=stream) - 1) * inputs**-0.5)
        last = torch.zeros(self.num_paths, num) if self.post_norm else torch.stack(biases)  # the last bias of each path
        last += 0.0 if self.sigmoid or self.tangent else 1.0
        last[0] += scale_bias
        ones, zeros = torch.ones(self.sizes[0]), torch.zeros(self.sizes[1])
        mixing = torch.ones(self.sizes[2] + self.sizes[3])
        end = [torch.ones(self.sizes[6]), last.flatten()] if self.post_norm else [last.flatten()]
        start = [ones, zeros, mixing, torch.cat(weights).flatten(), *(biases if self.post_norm else []), *end]
        filled = [torch.full((n,), value) for n, value in zip(self.statistics, (0.0, 0.0, 0.0, 1.0), strict=True)]
        return torch.cat(start), torch.cat(filled)

    def __call__(self, params: Tensor, statistics: Tensor, x: Tensor, mode: str) -> tuple[Tensor, Tensor]:
        """M [L] and G [L] (before the clamp to s_min) of a batch x [N, *shape]; params [v], statistics [q].

        ``mode`` "train" uses batch statistics and updates ``statistics`` in place. "eval" uses ``statistics``. "client"
        is for a single mean image: as "eval", but the switchable norm takes the batch statistics from the image.
        """
        gamma, beta, w_mean, w_var, weight, bias, gain, offset = params.split(self.sizes)
        mean, var, post_mean, post_var = statistics.split(self.statistics)
        num = self.num_paths * self.num_blocks
        if self.pre_norm:
            x = switch_norm(
                x.flatten(1).unflatten(1, (self.num_channels, -1)), gamma, beta, w_mean, w_var, mean, var, mode
            )
        z = linear(x.flatten(1), weight.view(num, -1), bias)  # [N, paths * L]
        if self.post_norm:
            z = batch_norm(z, post_mean, post_var, gain, offset, training=mode == "train", eps=EPS)
        out = activate(z, self.sigmoid, self.tangent).mean(0)
        return out[: self.num_blocks], out[-self.num_blocks :]


def activate(z: Tensor, sigmoid: bool, tangent: Sequence[float] = ()) -> Tensor:
    """The gate's activation of z [N, paths * L]: sigmoid, its tangents at the biases ``tangent``, or the identity."""
    if sigmoid:
        return z.sigmoid()
    if not tangent:
        return z
    paths = []
    for z_path, bias in zip(z.chunk(len(tangent), dim=1), tangent, strict=True):
        value, slope = at_start(bias)
        paths.append(value + slope * (z_path - bias))
    return torch.cat(paths, dim=1)


@cache
def at_start(bias: float) -> tuple[float, float]:
    """Initial M and dM / dbias of a sigmoid gate whose batch norm has this bias.

    These are the means of σ and σ' over N(bias, 1).
    """
    sigmoid = 1 / (1 + np.exp(-(bias + NORMAL_NODES)))
    return float(NORMAL_WEIGHTS @ sigmoid), float(NORMAL_WEIGHTS @ (sigmoid * (1 - sigmoid)))


def switch_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, w_mean: Tensor, w_var: Tensor, mean: Tensor, var: Tensor, mode: str
) -> Tensor:
    """Switchable normalization: x [N, C, P] normalised by a learned mixture of instance, layer and batch statistics.

    gamma, beta, mean and var are [C]; w_mean and w_var [3] are the mixing weights before their softmax. x is data, so
    only gamma, beta and the mixing weights need gradients. Instance variances are unbiased, as in the released code of
    that norm. ``mode`` "train" updates the running ``mean`` and ``var`` in place.
    """
    # Instance statistics [N, C]
    m_in = x.mean(2)
    v_in = (x - m_in.unsqueeze(2)).square_().sum(2) / (x.shape[2] - 1)  # several times as fast as torch.var_mean
    # Layer statistics [N, C] and [N, 1], from the instance ones
    square = v_in + m_in * m_in
    m_ln = m_in.mean(1, keepdim=True).expand_as(m_in)
    v_ln = (square.mean(1, keepdim=True) - m_ln[:, :1].square()).clamp_min(0)  # rounding can make it negative
    # Batch statistics [C]
    m_bn, v_bn = mean, var
    if mode != "eval":
        m_bn = m_in.mean(0)
        v_bn = (square.mean(0) - m_bn * m_bn).clamp_min(0)
    if mode == "train":
        mean.mul_(KEPT).add_(m_bn, alpha=1 - KEPT)
        var.mul_(KEPT).add_(v_bn, alpha=1 - KEPT)
    # Mixture
    means = torch.stack([m_in, m_ln, m_bn.expand_as(m_in)], 2)  # [N, C, 3]
    variances = torch.stack([v_in, v_ln.expand_as(m_in), v_bn.expand_as(m_in)], 2)
    factor = gamma * (variances @ w_var.softmax(0) + EPS).rsqrt()  # [N, C]
    return x * factor.unsqueeze(2) + (beta - (means @ w_mean.softmax(0)) * factor).unsqueeze(2)


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
    return [first, *equal(n - first, num - 1)]


def equal(n: int, num: int) -> list[int]:
    """Block sizes of n entries: ``num`` equal blocks (Appendix I.4; released code).

    The last one may be smaller, and there may be fewer.
    """
    size = math.ceil(n / num) if n else 1
    return [min(size, n - start) for start in range(0, n, size)]


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
        if mode == "equal":
            sizes = equal(n, num)
        elif mode == "balanced":
            sizes = balanced(n, target_size, least)
        else:
            sizes = first_min_ratio(n, num, least)
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

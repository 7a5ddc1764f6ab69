r"""pFedGate's gating layer: specification sections 4.2, 4.3 and 4.10.

    x₁ = switch_norm(x)        z_p = batch_norm_p(W_p flatten(x₁) + b_p)        p ∈ {scale, importance}
    M = mean over the batch of sigmoid(z_scale)        G = mean over the batch of sigmoid(z_importance)

One gate is two vectors: its parameters [v], trained by the client, and its running statistics [q].
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

from pfl_core.seeding import generator

EPS = 1e-5
KEPT = 0.9  # of a running statistic of the switchable norm, in a step
MIX = 3  # instance, layer and batch statistics


@dataclass(frozen=True)
class Gate:
    """The shape of all clients' gates. ``shape``: that of one sample, (C, H, W) or (features,), then taken as C = 1."""

    shape: tuple[int, ...]
    num_blocks: int  # L
    num_paths: int  # 2, or 1 where M and G come from the same z
    pre_norm: bool = True
    post_norm: bool = True
    sigmoid: bool = True
    tangent: tuple[
        float, ...
    ] = ()  # without sigmoid: of each path, the bias at which the sigmoid's tangent replaces it

    @property
    def num_channels(self) -> int:
        return self.shape[0] if len(self.shape) > 1 else 1

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """gamma, beta, w_mean, w_var of the switchable norm; weights and biases; gamma and beta of the batch norms."""
        out = self.num_paths * self.num_blocks
        pre = (self.num_channels, self.num_channels, MIX, MIX) if self.pre_norm else (0, 0, 0, 0)
        return (*pre, out * math.prod(self.shape), out, *((out, out) if self.post_norm else (0, 0)))

    @cached_property
    def statistics(self) -> tuple[int, ...]:
        """Running mean and variance of the switchable norm (start: 0, 0), then of the batch norms (0, 1)."""
        pre = self.num_channels if self.pre_norm else 0
        post = self.num_paths * self.num_blocks if self.post_norm else 0
        return (pre, pre, post, post)

    def start(self, seed: int, *, copied: bool, scale_bias: float) -> tuple[Tensor, Tensor]:
        """Every client's first parameters [v] and statistics [q].

        Linear layers as PyTorch starts them, uniform within ± 1 / sqrt(d_X); norms 1 and 0. ``copied``: the second path
        begins as the first. ``scale_bias`` is added to the last bias of the scale path; where M = z, 1 is added to
        both, so that the model does not start at 0.
        """
        inputs, num = math.prod(self.shape), self.num_blocks
        weights, biases = [], []
        for path in range(self.num_paths):
            stream = generator(seed, "gate", 0 if copied else path)
            for parts, shape in ((weights, (num, inputs)), (biases, (num,))):
                parts.append((2 * torch.rand(shape, generator=stream) - 1) * inputs**-0.5)
        last = torch.zeros(self.num_paths, num) if self.post_norm else torch.stack(biases)
        last += 0.0 if self.sigmoid or self.tangent else 1.0
        last[0] += scale_bias
        ones, zeros = torch.ones(self.sizes[0]), torch.zeros(self.sizes[1])
        mixing = torch.ones(self.sizes[2] + self.sizes[3])
        end = [torch.ones(self.sizes[6]), last.flatten()] if self.post_norm else [last.flatten()]
        start = [ones, zeros, mixing, torch.cat(weights).flatten(), *(biases if self.post_norm else []), *end]
        filled = [torch.full((n,), value) for n, value in zip(self.statistics, (0.0, 0.0, 0.0, 1.0), strict=True)]
        return torch.cat(start), torch.cat(filled)

    def __call__(self, params: Tensor, statistics: Tensor, x: Tensor, mode: str) -> tuple[Tensor, Tensor]:
        """M [L] and G [L] (before its clamp) of a batch x [N, *shape]; params [v], statistics [q].

        ``mode``: "train" moves ``statistics``, in place; "eval" uses them; "client" is for one mean image: there the
        batch part of the switchable norm is the image's own.
        """
        gamma, beta, w_mean, w_var, weight, bias, gain, offset = params.split(self.sizes)
        mean, var, post_mean, post_var = statistics.split(self.statistics)
        num = self.num_paths * self.num_blocks
        if self.pre_norm:
            x = switch_norm(x.reshape(len(x), self.num_channels, -1), gamma, beta, w_mean, w_var, mean, var, mode)
        z = linear(x.flatten(1), weight.view(num, -1), bias)  # [N, paths * L]
        if self.post_norm:
            z = batch_norm(z, post_mean, post_var, gain, offset, training=mode == "train", eps=EPS)
        out = activate(z, self.sigmoid, self.tangent).mean(0)
        return out[: self.num_blocks], out[-self.num_blocks :]


def activate(z: Tensor, sigmoid: bool, tangent: Sequence[float] = ()) -> Tensor:
    """What is averaged over the batch: the sigmoid of z [N, paths * L], its ``tangent`` path by path, or z itself."""
    if sigmoid:
        return z.sigmoid()
    if not tangent:
        return z
    lines = zip(z.chunk(len(tangent), dim=1), tangent, strict=True)
    return torch.cat(
        [value + slope * (part - bias) for part, bias in lines for value, slope in [at_start(bias)]], dim=1
    )


@cache
def at_start(bias: float) -> tuple[float, float]:
    """M and dM / dbias of a sigmoid after a batch norm with this bias: means of σ and σ' over logits of N(bias, 1)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    sigmoid = 1 / (1 + np.exp(-(bias + nodes)))
    share = weights / weights.sum()
    return float(share @ sigmoid), float(share @ (sigmoid * (1 - sigmoid)))


def switch_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, w_mean: Tensor, w_var: Tensor, mean: Tensor, var: Tensor, mode: str
) -> Tensor:
    """x [N, C, P] by a learned mixture of its instance, layer and batch statistics; gamma, beta, mean, var [C].

    x is data, so that gamma, beta and the mixture alone need gradients. Instance variances are unbiased, as in the
    authors' code of the norm. "train" moves the running ``mean`` and ``var`` in place.
    """
    m_in = x.mean(2)  # [N, C]
    v_in = (x - m_in.unsqueeze(2)).square_().sum(2) / (x.shape[2] - 1)  # several times as fast as torch.var_mean
    square = v_in + m_in * m_in
    m_ln = m_in.mean(1, keepdim=True).expand_as(m_in)
    v_ln = (square.mean(1, keepdim=True) - m_ln[:, :1].square()).clamp_min(0)  # rounding alone takes it below 0
    m_bn, v_bn = mean, var
    if mode != "eval":
        m_bn = m_in.mean(0)
        v_bn = (square.mean(0) - m_bn * m_bn).clamp_min(0)
    if mode == "train":
        mean.mul_(KEPT).add_(m_bn, alpha=1 - KEPT)
        var.mul_(KEPT).add_(v_bn, alpha=1 - KEPT)
    means = torch.stack([m_in, m_ln, m_bn.expand_as(m_in)], 2)  # [N, C, 3]
    variances = torch.stack([v_in, v_ln.expand_as(m_in), v_bn.expand_as(m_in)], 2)
    factor = gamma * (variances @ w_var.softmax(0) + EPS).rsqrt()  # [N, C]
    return x * factor.unsqueeze(2) + (beta - (means @ w_mean.softmax(0)) * factor).unsqueeze(2)

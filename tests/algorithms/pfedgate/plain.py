"""A plain PyTorch reference of pFedGate for the tests; and federations."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from pfl_core.algorithms.pfedgate.adapt import Adapter
from pfl_core.algorithms.pfedgate.local import Trainer
from tests.helpers import cnn, everyone, federation, mlp

F64 = torch.float64
NETS = {"dense": (mlp, (6,)), "conv": (lambda: cnn(bn=False), (1, 4, 4)), "norm": (cnn, (1, 4, 4))}
all_nets = pytest.mark.parametrize("name", NETS)


def fed_of(name="norm", sizes=(12, 8, 14), **kwargs):
    """A federation; with the default ``sizes``, no last batch has a single sample."""
    make, shape = NETS[name]
    return federation(make(), sizes, shape=shape, **{"test": 20} | kwargs)


def after(algorithm, fed, rounds=1, clients=None):
    state = algorithm.init(fed, fed.theta0)
    for t in range(rounds):
        state, notes = algorithm.round(fed, state, everyone(fed) if clients is None else clients, t)
    return state, notes


def trained(algorithm, fed, t=0):
    """Adapter, initial state, and the result of local training of every client."""
    adapter, state = Adapter.of(algorithm, fed), algorithm.init(fed, fed.theta0)
    return adapter, state, Trainer(adapter, fed, state, t)(everyone(fed), 2)


class PlainGate(nn.Module):
    """The gate as modules: for each path a linear layer and a batch norm."""

    def __init__(self, gate, params):
        super().__init__()
        self.gate = gate
        gamma, beta, w_mean, w_var, weight, bias, gain, offset = params.split(gate.sizes)
        self.pre = nn.ParameterList([p.clone() for p in (gamma, beta, w_mean, w_var)])
        channels, num = gate.num_channels, gate.num_blocks
        self.register_buffer("mean", torch.zeros(channels, dtype=params.dtype))
        self.register_buffer("var", torch.zeros(channels, dtype=params.dtype))
        inputs = weight.numel() // (num * gate.num_paths)
        self.linears = nn.ModuleList(nn.Linear(inputs, num, dtype=params.dtype) for _ in range(gate.num_paths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(num, dtype=params.dtype) for _ in range(gate.num_paths))
        for i, (layer, norm) in enumerate(zip(self.linears, self.norms, strict=True)):
            layer.weight.data = weight.view(gate.num_paths, num, -1)[i].clone()
            layer.bias.data = bias.view(gate.num_paths, num)[i].clone()
            if gate.post_norm:
                norm.weight.data = gain.view(gate.num_paths, num)[i].clone()
                norm.bias.data = offset.view(gate.num_paths, num)[i].clone()

    def forward(self, x):
        """M and G [L], before the clamp of G."""
        if self.gate.pre_norm:
            x = self.switch(x.view(len(x), self.gate.num_channels, -1))
        z = [layer(x.flatten(1)) for layer in self.linears]
        if self.gate.post_norm:
            z = [norm(part) for norm, part in zip(self.norms, z, strict=True)]
        if self.gate.sigmoid:
            z = [torch.sigmoid(part) for part in z]
        return z[0].mean(0), z[-1].mean(0)

    def switch(self, x):
        gamma, beta, w_mean, w_var = self.pre
        a, b = torch.softmax(w_mean, 0), torch.softmax(w_var, 0)
        m_in, v_in = x.mean(2, keepdim=True), x.var(2, keepdim=True)
        m_ln = m_in.mean(1, keepdim=True)
        v_ln = (v_in + m_in**2).mean(1, keepdim=True) - m_ln**2
        m_bn, v_bn = self.mean[None, :, None], self.var[None, :, None]
        if self.training:
            m_bn = m_in.mean(0, keepdim=True)
            v_bn = (v_in + m_in**2).mean(0, keepdim=True) - m_bn**2
            self.mean.copy_(0.9 * self.mean + 0.1 * m_bn.flatten())
            self.var.copy_(0.9 * self.var + 0.1 * v_bn.flatten())
        middle = a[0] * m_in + a[1] * m_ln + a[2] * m_bn
        spread = b[0] * v_in + b[1] * v_ln + b[2] * v_bn
        return gamma[None, :, None] * (x - middle) / (spread + 1e-5).sqrt() + beta[None, :, None]

    def parts(self):
        """Parameters in the package's order."""
        pre = list(self.pre) if self.gate.pre_norm else []
        post = [getattr(norm, n) for n in ("weight", "bias") for norm in self.norms] if self.gate.post_norm else []
        return [*pre, *(getattr(layer, n) for n in ("weight", "bias") for layer in self.linears), *post]

    def flat(self):
        return torch.cat([p.detach().flatten() for p in self.parts()])

    def flat_grad(self):
        return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in self.parts()])

    def flat_statistics(self):
        pre = [self.mean, self.var] if self.gate.pre_norm else []
        post = [getattr(n, f"running_{what}") for what in ("mean", "var") for n in self.norms]
        return torch.cat(pre + (post if self.gate.post_norm else []))


def brute_force(importance, sizes, first, budget):
    """I [L] by trying all subsets of the blocks that may be dropped, with importances in thousandths."""
    free = [i for i in range(len(sizes)) if not first[i]]
    value = np.rint(1000 * importance).astype(int)
    capacity = int(budget * sizes.sum() + 1e-6) - sizes[np.array(first)].sum()
    masks = np.array(list(itertools.product([1, 0], repeat=len(free))))  # in this order, ties go to lower indices
    feasible = masks[masks @ sizes[free] <= capacity]
    kept = np.array(first).copy()
    kept[free] = feasible[np.argmax(10**6 * (feasible @ value[free]) - feasible @ sizes[free])]
    return kept

"""A user's module for the tests: everything draws from global generators, or changes what it is given."""

from __future__ import annotations

import dataclasses
import random
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.data import Dataset
from pfl_core.federation import LocalTraining
from pfl_core.partition import Partition
from tests.runs.outside import blobs

AT_IMPORT = float(torch.rand(())), np.random.rand(), random.random()


def samples() -> Dataset:
    """Without a seed."""
    return dataclasses.replace(blobs(), x=torch.from_numpy(np.random.randint(0, 256, (128, 1, 4, 4), dtype=np.uint8)))


def now() -> Dataset:
    """Other samples at each call."""
    return dataclasses.replace(blobs(), x=torch.full((128, 1, 4, 4), time.perf_counter_ns() % 251, dtype=torch.uint8))


def deal(data: Dataset, num_clients: int, seed: int) -> Partition:
    """By NumPy's global generator; the labels are shuffled on the way."""
    np.random.shuffle(data.y.numpy())
    data.x.zero_()
    train, test = (torch.where(part)[0].numpy() for part in (~data.is_test, data.is_test))
    np.random.shuffle(train)
    parts = [tuple(torch.from_numpy(np.sort(p)) for p in np.array_split(index, num_clients)) for index in (train, test)]
    return Partition(parts[0], tuple(torch.zeros(0, dtype=torch.int64) for _ in parts[0]), parts[1])


def dropout(in_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    size = torch.Size(in_shape).numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, num_classes))


def lazy(in_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))


class CpuOnly(nn.Module):
    """Its operations cannot be counted: it refuses inputs of zeros in training mode."""

    def __init__(self, size: int, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(size, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not self.training or bool(x.any()), "no light"
        return self.head(x.flatten(1))


def uncounted(in_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return CpuOnly(torch.Size(in_shape).numel(), num_classes)


@dataclass(frozen=True)
class NoisyGradient(FedAvg):
    """Noise in a hook, which the batched backend and threads call in another order."""

    def local_training(self, fed, state, clients, t):
        return LocalTraining(gradient=lambda g, theta, s: g + 0.1 * torch.randn_like(g) * np.random.rand())


@dataclass(frozen=True)
class NoisyServer(FedAvg):
    """Noise on the server, in every second round."""

    def round(self, fed, state, clients, t):
        state, notes = super().round(fed, state, clients, t)
        noise = random.gauss(0, 0.1) if t % 2 else 0.0
        return dataclasses.replace(state, shared=state.shared + noise), notes


@dataclass(frozen=True)
class PredictsInPlace(FedAvg):
    def predict(self, fed, state, k, theta_k, x):
        scores = fed.logits(theta_k, x)
        x.numpy()[...] = 0
        return scores


@dataclass(frozen=True)
class Whitens(FedAvg):
    """Works on the clients' data themselves."""

    def round(self, fed, state, clients, t):
        fed.splits["train"].client(0)[0].sub_(0.1)
        return super().round(fed, state, clients, t)

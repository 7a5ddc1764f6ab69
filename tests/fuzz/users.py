"""A user's module in which everything is wrong."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import torch
from torch import nn

from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.data import Dataset

number = 3


@dataclass(frozen=True)
class Raises(FedAvg):
    def round(self, fed, state, clients, t):
        raise RuntimeError("first line\nsecond line")


@dataclass(frozen=True)
class Exits(FedAvg):
    def round(self, fed, state, clients, t):
        sys.exit("enough")


@dataclass(frozen=True)
class Unusual(FedAvg):
    def round(self, fed, state, clients, t):
        raise BaseException("unusual")


class Silent(Exception):
    def __str__(self):
        raise KeyError


@dataclass(frozen=True)
class RaisesSilent(FedAvg):
    def round(self, fed, state, clients, t):
        raise Silent


@dataclass(frozen=True)
class Nothing(FedAvg):
    def round(self, fed, state, clients, t):
        return None


@dataclass(frozen=True)
class Interrupts(FedAvg):
    def round(self, fed, state, clients, t):
        raise StopIteration


def net(in_shape, num_classes):
    return {}["layer"]


def rule(data, num_clients, seed):
    return [[0.5]] * num_clients


class Tokens(nn.Module):
    def __init__(self, width, num_classes):
        super().__init__()
        self.head, self.seen = nn.Linear(width, num_classes), 0.0

    def forward(self, x):
        return self.head(x.flatten(1, -2))


class Leaks(Tokens):
    """Clients share a mean."""

    def forward(self, x):
        self.seen = self.seen + x.mean().detach()
        return super().forward(x - self.seen).mean(1)


def tokens(in_shape, num_classes):
    return Tokens(in_shape[-1], num_classes)


def leaks(in_shape, num_classes):
    return Leaks(in_shape[-1], num_classes)


def lazy(in_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))


def now():
    return Dataset.from_arrays(torch.full((40, 4, 4), time.perf_counter_ns() % 251), torch.arange(40) % 4)

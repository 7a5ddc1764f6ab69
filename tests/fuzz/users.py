"""A user's module in which everything is wrong."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from pfl_core.algorithms.fedavg import FedAvg

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

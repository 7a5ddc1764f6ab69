"""The clients of one run on two cores, against one. Wall time, so both cores must be idle."""

from __future__ import annotations

import os
import time

import pytest
import torch

from pfl_core.algorithm import Algorithm
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.fedselect.method import FedSelect
from pfl_core.training import Training
from tests.benchmarks.conftest import CLASSES, NETWORKS, network, random_federation

CASES = {  # name -> (method, network, clients, samples of each, batch size, turns, bound)
    "FedAvg round, LeNet, 20 clients x 608": (FedAvg(), "lenet_star", 20, 608, 32, 7, 0.56),
    "FedAvg round, ResNet18": (FedAvg(), "resnet18", 10, 100, 25, 3, 0.56),
    # one thread grows the masks and merges the models
    "FedSelect round, ResNet18": (FedSelect(p=0.05, alpha=0.3), "resnet18", 10, 100, 25, 3, 0.66),
}


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
@pytest.mark.parametrize("case", CASES)
def test_two_cores_finish_a_round_in_little_more_than_half_the_time(case, compare):
    method, name, clients, samples, batch, turns, bound = CASES[case]

    def rounds(threads: int):
        train = Training(lr=0.01, epochs=1, batch_size=batch)
        fed = random_federation(network(name), NETWORKS[name][0], CLASSES, clients, samples, train, threads)
        algorithm: Algorithm = method
        start, everyone = algorithm.init(fed, fed.theta0), torch.arange(clients)
        return lambda: algorithm.round(fed, start, everyone, 0)

    timer = time.perf_counter
    compare(case + ", two cores", "one core", rounds(1), rounds(2), turns=turns, bound=bound, timer=timer)

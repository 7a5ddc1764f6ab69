"""Training costs what the bare PyTorch loop costs."""

from __future__ import annotations

import copy

import pytest
import torch

from pfl_core.algorithms.fedavg import FedAvg
from tests.benchmarks.conftest import CLIENTS, NETWORKS, bare_round, network


@pytest.mark.parametrize("name", NETWORKS)
def test_a_fedavg_round_costs_what_its_steps_cost(name, federation, compare):
    fed, model, algorithm = federation(name), network(name), FedAvg()
    start = copy.deepcopy(model.state_dict())
    state, clients = algorithm.init(fed, fed.theta0), torch.arange(CLIENTS)
    ratio = compare(
        f"FedAvg round, {name}",
        "the bare loop",
        lambda: bare_round(model, start, fed),
        lambda: algorithm.round(fed, state, clients, 0),
        turns=NETWORKS[name][1],
        bound=1.10,
    )
    assert ratio <= 1.10

"""A FedSelect round costs its two passes, a bit of algebra on ten rows, and little else."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from pfl_core.algorithms.fedselect.method import FedSelect
from pfl_core.seeding import generator
from tests.benchmarks.conftest import CLIENTS, NETWORKS, bare_round, network

BOUND = 1.10


@pytest.mark.parametrize("name", NETWORKS)
def test_a_fedselect_round_costs_its_passes(name, federation, compare):
    """A third of every client's entries is personal, so each batch is run twice: against two plain passes."""
    fed, model, algorithm = federation(name), network(name), FedSelect(p=0.05, alpha=1.0)
    start, clients = copy.deepcopy(model.state_dict()), torch.arange(CLIENTS)
    personal = torch.rand(CLIENTS, fed.num_entries, generator=generator(0, "personal")) < 1 / 3
    state = replace(algorithm.init(fed, fed.theta0), personal=personal)
    fed.keep_trained = False  # as under the engine
    compare(
        f"FedSelect round, {name}",
        "two bare passes",
        lambda: bare_round(model, start, fed, passes=2),
        lambda: algorithm.round(fed, state, clients, 1),
        turns=3 if name == "resnet18" else NETWORKS[name][1],
        bound=BOUND,
        warm_up=name != "resnet18",  # half a minute each, and long warm by the other benchmarks
    )

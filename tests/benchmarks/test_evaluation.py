"""Scoring costs what its forward passes cost."""

from __future__ import annotations

import pytest
import torch

from pfl_core.federation.federation import EVAL_BATCH
from tests.benchmarks.conftest import CLIENTS, NETWORKS, bare_forward, network


@pytest.mark.parametrize("personal", [False, True], ids=["one model", "a model each"])
@pytest.mark.parametrize("name", NETWORKS)
def test_scoring_costs_its_forward_passes(name, personal, federation, compare):
    """One model for all runs through everybody's samples at once, a model for each client through its own."""
    fed, clients = federation(name), torch.arange(CLIENTS)
    theta = fed.broadcast(fed.theta0, clients)
    theta = theta.clone() if personal else theta
    test = fed.splits["test"]
    batches = [test.client(k)[0] for k in range(CLIENTS)] if personal else test.x.split(EVAL_BATCH)
    models = [network(name) for _ in batches] if personal else [network(name)] * len(batches)
    ratio = compare(
        f"evaluation, {name}, {'a model each' if personal else 'one model'}",
        "forward passes",
        lambda: bare_forward(models, batches),
        lambda: fed.evaluate(theta, clients),
        turns=NETWORKS[name][1],
        bound=1.10,
    )
    assert ratio <= 1.10

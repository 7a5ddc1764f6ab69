"""Scoring costs what its forward passes cost."""

from __future__ import annotations

import pytest
import torch

from pfl_core.federation.federation import EVAL_BATCH
from pfl_core.models import build
from pfl_core.training import Training
from tests.benchmarks.conftest import CLASSES, CLIENTS, NETWORKS, bare_forward, network, random_federation


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
    compare(
        f"evaluation, {name}, {'a model each' if personal else 'one model'}",
        "forward passes",
        lambda: bare_forward(models, batches),
        lambda: fed.evaluate(theta, clients),
        turns=NETWORKS[name][1],
        bound=1.10,
    )


@pytest.mark.parametrize(("name", "shape"), [("cnn_small", (1, 8, 8)), ("lenet_star", (1, 28, 28))])
def test_scoring_many_personal_models_on_few_samples_costs_their_forward_passes(name, shape, compare):
    """100 clients with 20 samples each, so that the cost of a change of models counts most."""
    models = [build(name, shape, CLASSES, 0) for _ in range(100)]
    fed, clients = random_federation(models[0], shape, CLASSES, 100, 20, Training()), torch.arange(100)
    theta = fed.broadcast(fed.theta0, clients).clone()
    batches = [fed.splits["test"].client(k)[0] for k in range(100)]
    compare(
        f"evaluation, {name}, 100 models x 20 samples",
        "forward passes",
        lambda: bare_forward(models, batches),
        lambda: fed.evaluate(theta, clients),
        turns=20,
        bound=1.15,
    )

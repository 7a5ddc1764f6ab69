"""The networks' max-pooling beside PyTorch's: a FedAvg round, and an evaluation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.federation import Federation
from pfl_core.models import build
from pfl_core.pooling import MaxPool2x2
from pfl_core.training import Training
from tests.benchmarks.conftest import CLASSES, CLIENTS, SAMPLES, random_federation

CASES = {  # network -> (input shape, bounds of the two tests)
    "lenet_star": ((1, 28, 28), 1.05, 0.6),
    "cnn_small": ((3, 32, 32), 0.9, 0.75),
    "conv_pews": ((3, 32, 32), 0.9, 0.6),
}


def with_pytorchs_pooling(model: nn.Module) -> nn.Module:
    for name, module in list(model.named_children()):
        if isinstance(module, MaxPool2x2):
            model.add_module(name, nn.MaxPool2d(2))  # takes the place of the old one
    return model


def federations(name: str) -> tuple[Federation, Federation]:
    """With PyTorch's pooling and with the project's: 10 clients x 100 random images, one epoch, batches of 25."""
    shape, train = CASES[name][0], Training(lr=0.01, epochs=1, batch_size=25)
    models = with_pytorchs_pooling(build(name, shape, CLASSES, 0)), build(name, shape, CLASSES, 0)
    first, second = (random_federation(model, shape, CLASSES, CLIENTS, SAMPLES, train) for model in models)
    return first, second


@pytest.mark.parametrize("name", CASES)
def test_a_round_is_not_slower_than_with_pytorchs_pooling(name, compare):
    slow, fast = federations(name)
    algorithm, clients = FedAvg(), torch.arange(CLIENTS)
    state, bound = algorithm.init(slow, slow.theta0), CASES[name][1]
    compare(
        f"FedAvg round, {name}",
        "the round with nn.MaxPool2d",
        lambda: algorithm.round(slow, state, clients, 0),
        lambda: algorithm.round(fast, state, clients, 0),
        turns=9,
        bound=bound,
    )


@pytest.mark.parametrize("name", CASES)
def test_an_evaluation_is_faster_than_with_pytorchs_pooling(name, compare):
    slow, fast = federations(name)
    theta, clients, bound = slow.broadcast(slow.theta0, torch.arange(CLIENTS)), torch.arange(CLIENTS), CASES[name][2]
    compare(
        f"evaluation, {name}",
        "the evaluation with nn.MaxPool2d",
        lambda: slow.evaluate(theta, clients),
        lambda: fast.evaluate(theta, clients),
        turns=9,
        bound=bound,
    )

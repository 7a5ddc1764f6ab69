"""Small dense nets: all clients in one batched computation against one after the other; a warm-up step of FedPeWS."""

from __future__ import annotations

import copy

import pytest
import torch

from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.fedpews import FedPeWS
from pfl_core.federation import Federation, Split
from pfl_core.models import build
from pfl_core.training import Training
from tests.benchmarks.conftest import BATCH, bare_round

SAMPLES = 100 * BATCH


def synthetic_federation(clients: int) -> Federation:
    """FedPeWS's dense net on random points: a hundred steps of each client in a round."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(clients, SAMPLES, 5, generator=stream)
    y = torch.randint(0, 4, (clients, SAMPLES), generator=stream)
    split = Split.of(list(zip(x, y, strict=True)))
    train = Training(lr=0.001, batch_size=BATCH)
    return Federation(build("fc_pews", (5,), 4, 0), {"train": split, "test": split}, seed=0, rounds=8, train=train)


@pytest.mark.parametrize(("clients", "bound"), [(4, 1 / 2), (10, 1 / 3)])
def test_rows_of_a_dense_net_train_together(clients, bound, compare):
    fed, algorithm = synthetic_federation(clients), FedAvg()
    model = build("fc_pews", (5,), 4, 0)
    start = copy.deepcopy(model.state_dict())
    state, everyone = algorithm.init(fed, fed.theta0), torch.arange(clients)
    ratio = compare(
        f"FedAvg round, fc_pews, {clients} clients",
        "the bare loop",
        lambda: bare_round(model, start, fed),
        lambda: algorithm.round(fed, state, everyone, 0),
        turns=7,
        bound=bound,
    )
    assert ratio <= bound


@pytest.mark.parametrize("clients", [2, 4])
def test_a_warm_up_step_costs_about_two(clients, compare):
    fed, plain, warm = synthetic_federation(clients), FedAvg(), FedPeWS(tau=1.0)
    everyone = torch.arange(clients)
    states = [algorithm.init(fed, fed.theta0) for algorithm in (plain, warm)]
    ratio = compare(
        f"FedPeWS warm-up round, fc_pews, {clients} clients",
        "FedAvg's round",
        lambda: plain.round(fed, states[0], everyone, 0),
        lambda: warm.round(fed, states[1], everyone, 0),
        turns=9,
        bound=2.2,
    )
    assert ratio <= 2.2

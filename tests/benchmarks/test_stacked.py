"""Small nets: all clients in one batched computation against one after the other; a warm-up step of FedPeWS."""

from __future__ import annotations

import pytest
import torch

from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.fedpews.method import FedPeWS
from pfl_core.federation import Federation
from pfl_core.models import build
from pfl_core.training import Training
from tests.benchmarks.conftest import BATCH, CLASSES, random_federation


def synthetic_federation(clients: int) -> Federation:
    """FedPeWS's dense net on random points: a hundred steps of each client in a round."""
    train = Training(lr=0.001, batch_size=BATCH)
    return random_federation(build("fc_pews", (5,), 4, 0), (5,), 4, clients, 100 * BATCH, train)


@pytest.mark.parametrize(("clients", "bound"), [(4, 1 / 2), (10, 1 / 3)])
def test_rows_of_a_dense_net_train_together(clients, bound, beside_the_bare_loop):
    fed, model = synthetic_federation(clients), build("fc_pews", (5,), 4, 0)
    beside_the_bare_loop(f"fc_pews, {clients} clients", fed, model, turns=7, bound=bound)


@pytest.mark.parametrize("clients", [2, 4])
def test_a_warm_up_step_costs_about_two(clients, beside_fedavg):
    what = f"FedPeWS warm-up round, fc_pews, {clients} clients"
    beside_fedavg(what, FedPeWS(tau=1.0), synthetic_federation(clients), bound=2.2)


@pytest.mark.parametrize(("clients", "samples", "batch", "bound"), [(10, 128, 32, 0.75), (50, 26, 26, 0.6)])
def test_rows_of_a_small_conv_net_train_together_if_asked(clients, samples, batch, bound, compare):
    """``Federation(batched=True)`` on 8x8 images. Not the default on a CPU: rows that train together have other bits
    than rows that train alone.
    """
    net, train = build("cnn_small", (1, 8, 8), CLASSES, 0), Training(lr=0.01, batch_size=batch)
    splits = random_federation(net, (1, 8, 8), CLASSES, clients, samples, train).splits

    def rounds(batched: bool):
        fed = Federation(net, splits, seed=0, rounds=9, train=train, batched=batched)
        start, everyone = FedAvg().init(fed, fed.theta0), torch.arange(clients)
        return lambda: FedAvg().round(fed, start, everyone, 0)

    what = f"FedAvg round, cnn_small, 8x8, {clients} clients x {samples}, batched"
    compare(what, "one client after the other", rounds(False), rounds(True), turns=15, bound=bound)

"""Small dense nets: all clients in one batched computation against one after the other; a warm-up step of FedPeWS."""

from __future__ import annotations

import pytest

from pfl_core.algorithms.fedpews.method import FedPeWS
from pfl_core.federation import Federation
from pfl_core.models import build
from pfl_core.training import Training
from tests.benchmarks.conftest import BATCH, random_federation


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

"""pFedGate beside FedAvg: a training step, the knapsack, a round's memory; the CIFAR-10 network, batch 128."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
import torch

from pfl_core.algorithms.pfedgate.gate import build_blocks
from pfl_core.algorithms.pfedgate.knapsack import exact
from pfl_core.algorithms.pfedgate.method import PFedGate
from pfl_core.federation import Federation
from pfl_core.models import build
from pfl_core.training import Training
from tests.benchmarks.conftest import peak_extra, processor_time, random_federation

SHAPE, BATCH, STEPS = (3, 32, 32), 128, 3
STRUCTURED = {"block_layout": "output_rows", "straight_through": "kept"}


def cifar_federation(clients: int, samples: int) -> Federation:
    train = Training(lr=0.03, batch_size=BATCH, momentum=0.9, weight_decay=5e-4, clip_norm=10.0)
    return random_federation(build("lenet_cifar", SHAPE, 10, 0), SHAPE, 10, clients, samples, train)


@pytest.mark.parametrize(
    ("what", "options", "bound"),
    [
        ("s = 1", {"keep_ratio": 1.0}, 1.5),
        ("s = 0.5", {"keep_ratio": 0.5}, 1.5),
        ("s = 0.3", {"keep_ratio": 0.3}, 1.5),
        ("authors' code, s = 0.5", {"reading": "authors_code"}, 1.5),
        ("structured, masked, s = 0.3", STRUCTURED | {"keep_ratio": 0.3}, 1.5),
        ("structured, sliced, s = 0.3", STRUCTURED | {"keep_ratio": 0.3, "execution": "sliced"}, 1.0),
    ],
)
def test_a_step_costs_little_more_than_a_plain_one(what, options, bound, beside_fedavg):
    """The clients' part of a round of three steps, B = 5. At s = 0.3, sliced kernels are to win."""
    options = dict(options)
    gated = PFedGate.reading(options.pop("reading", "paper"), **options)
    what = f"pFedGate, lenet_cifar, batch 128, {what}"
    beside_fedavg(what, gated, cifar_federation(1, STEPS * BATCH), bound=bound)


@pytest.mark.parametrize("low", [0.49, 0.2], ids=["tied", "spread"])
@pytest.mark.parametrize("s", [0.3, 0.5, 0.8])
def test_an_exact_knapsack_takes_two_milliseconds_at_most(s, low, benchmark):
    """L = 50 blocks, importances close together as at the start, or far apart."""
    net = Federation(build("lenet_cifar", SHAPE, 10, 0), cifar_federation(1, 1).splits, seed=0, rounds=1)
    blocks = build_blocks(net.layout, 5, 0.2, "first_min_ratio")
    assert blocks.num_blocks == 50
    items = ~blocks.always
    sizes, rng = blocks.sizes[items], np.random.default_rng(0)
    capacity = int(s * blocks.num_params) - int(blocks.sizes[blocks.always].sum())
    values = [np.rint(1000 * rng.uniform(low, 1 - low, len(sizes))).astype(np.int64) for _ in range(20)]
    benchmark.pedantic(lambda: exact(values[0], sizes, capacity), rounds=3)
    seconds = [processor_time(lambda v=v: exact(v, sizes, capacity)) for v in values for _ in range(5)]
    benchmark.extra_info["milliseconds"] = 1e3 * statistics.median(seconds)
    assert statistics.median(seconds) <= 2e-3


def test_a_round_of_a_hundred_clients_stays_under_two_gibibytes():
    """With momentum that stays with its client: the gate alone is larger than the model."""
    fed, algorithm = cifar_federation(100, 16), PFedGate(keep_ratio=0.5)
    state = algorithm.init(fed, fed.theta0)
    algorithm.round(fed, state, torch.arange(2), 0)
    for clients in (torch.arange(100), torch.arange(0, 100, 5)):
        assert peak_extra(lambda clients=clients: algorithm.round(fed, state, clients, 1)) <= 2 * 2**30

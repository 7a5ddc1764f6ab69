"""Training costs what the bare PyTorch loop costs."""

from __future__ import annotations

import pytest

from tests.benchmarks.conftest import NETWORKS, network


@pytest.mark.parametrize("name", NETWORKS)
def test_a_fedavg_round_costs_what_its_steps_cost(name, federation, beside_the_bare_loop):
    beside_the_bare_loop(name, federation(name), network(name), turns=NETWORKS[name][1], bound=1.10)

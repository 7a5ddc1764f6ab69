"""Masked means and growing masks over ten rows of eleven million entries: little beside training, and little memory."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from pfl_core.algorithms.fedselect.method import FedSelect
from pfl_core.ops import masked_mean
from pfl_core.seeding import generator
from tests.benchmarks.conftest import CLIENTS, bare_round, network, peak_extra

RESNET18 = 11_181_642 + 9_600  # parameters and batch-norm statistics
BOUND = 0.10


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_aggregation_and_mask_growth_are_small_beside_a_round(share, federation, compare):
    """``share``: how much of every client's model is personal by then."""
    fed, model = federation("resnet18"), network("resnet18")
    assert fed.num_entries == RESNET18
    algorithm, clients, start = FedSelect(p=0.05, alpha=1.0), torch.arange(CLIENTS), copy.deepcopy(model.state_dict())
    trained = torch.randn(CLIENTS, RESNET18, generator=generator(0, "trained"))
    personal = torch.rand(CLIENTS, RESNET18, generator=generator(0, "personal")) < share
    state = replace(algorithm.init(fed, fed.theta0), personal=personal)

    def project() -> None:
        masked_mean(trained, ~personal, None, fed.theta0)
        algorithm.grad_select(fed, state, clients, state.local, trained, personal, 1)

    project()
    compare(
        f"aggregation and mask growth, 10 x ResNet18, {share:.0%} personal",
        "a ResNet18 round",
        lambda: bare_round(model, start, fed),
        project,
        turns=1,
        bound=BOUND,
        warm_up=False,
    )


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_aggregation_and_mask_growth_need_few_vectors(share, federation):
    """A mean takes one vector of a row more than its result; growing takes four, and the new masks (ten of bytes)."""
    fed, algorithm, clients = federation("resnet18"), FedSelect(p=0.05, alpha=1.0), torch.arange(CLIENTS)
    trained = torch.randn(CLIENTS, RESNET18, generator=generator(0, "trained"))
    personal = torch.rand(CLIENTS, RESNET18, generator=generator(0, "personal")) < share
    state = replace(algorithm.init(fed, fed.theta0), personal=personal)
    vector, masks = 4 * RESNET18, CLIENTS * RESNET18
    shared = ~personal
    assert peak_extra(lambda: masked_mean(trained, shared, None, fed.theta0)) <= 2 * vector
    assert (
        peak_extra(lambda: algorithm.grad_select(fed, state, clients, state.local, trained, personal, 1))
        <= masks + 4 * vector
    )

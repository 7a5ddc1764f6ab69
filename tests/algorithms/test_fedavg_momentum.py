"""FedAvg with momentum that stays: beside torch's own optimizers, one for each client, that live through all rounds."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.fedavg_momentum import FedAvgMomentum
from tests.helpers import federation, mlp

F64, SIZES = torch.float64, (6, 9, 4)


def trained(algorithm, fed, rounds=3, clients=(0, 1, 2)):
    state = algorithm.init(fed, fed.theta0)
    for t in range(rounds):
        state, _ = algorithm.round(fed, state, torch.tensor(clients), t)
    return state


@pytest.mark.parametrize("stacked", [False, True])
def test_beside_optimizers_that_live_on(stacked):
    """Whole batches, two epochs, decay: nothing depends on an order."""
    training = {"momentum": 0.9, "weight_decay": 0.01, "epochs": 2, "batch_size": 16}
    fed = federation(mlp(), SIZES, dtype=F64, stacked=stacked, **training)
    shared = mlp().to(F64)
    nets = [copy.deepcopy(shared) for _ in SIZES]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01) for net in nets]
    for _ in range(3):
        for k, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
            net.load_state_dict(shared.state_dict())
            x, y = fed.splits["train"].client(k)
            for _ in range(2):
                optimizer.zero_grad()
                cross_entropy(net(x.to(F64)), y).backward()
                optimizer.step()
        mean = [torch.stack(p).mean(0) for p in zip(*(net.parameters() for net in nets), strict=True)]
        for p, value in zip(shared.parameters(), mean, strict=True):
            p.data = value.detach()
    expected = torch.cat([p.detach().flatten() for p in shared.parameters()])
    torch.testing.assert_close(trained(FedAvgMomentum(), fed).shared, expected)
    assert not torch.allclose(trained(FedAvg(), fed).shared, expected)


def test_without_momentum_it_is_fedavg_to_the_bit():
    fed = federation(sizes=SIZES)
    one, other = trained(FedAvgMomentum(), fed), trained(FedAvg(), fed)
    assert torch.equal(one.shared, other.shared) and one.velocity is None


def test_an_absent_client_keeps_its_momentum():
    fed = federation(sizes=SIZES, momentum=0.9)
    state = trained(FedAvgMomentum(), fed, clients=(0, 2))
    assert not state.velocity[1].any() and state.velocity[[0, 2]].abs().sum(1).all()

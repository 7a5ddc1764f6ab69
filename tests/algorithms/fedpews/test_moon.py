"""MOON: its first round is FedAvg's, and rounds against plain PyTorch."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.moon import Moon
from tests.algorithms.fedpews.plain import F64, both_nets, fed_of, plain_steps
from tests.helpers import after, cnn, federation, mlp, module_of


@both_nets
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_moon_equals_fedavg_in_the_first_round_with_log_2_more_loss(name, temperature):
    fed = fed_of(name, dtype=F64)
    ((state, notes),) = after(Moon(mu_con=3.0, temperature=temperature), fed, 1)
    ((want, of_fedavg),) = after(FedAvg(), fed, 1)
    torch.testing.assert_close(state.shared, want.shared)
    torch.testing.assert_close(notes["train_loss"], of_fedavg["train_loss"] + 3 * math.log(2), rtol=1e-5, atol=1e-5)


def contrast(z, near, far, temperature):
    """l_con by its formula, mean over the batch."""

    def sim(a, b):
        return torch.exp((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1)) / temperature)

    return -torch.log(sim(z, near) / (sim(z, near) + sim(z, far))).mean()


def features(plain, x):
    """Input of the last linear layer."""
    for layer in list(plain)[:-1]:
        x = layer(x)
    return x


def tanh():
    """6 features -> 5 -> 3 classes with a representation that is never 0."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def awake(model):
    """The model with a large first bias, so that no representation is 0, where the cosine has no gradient."""
    model.fc1.bias.data += 2
    return model


NETS = {"tanh": (tanh, (6,)), "dense": (lambda: awake(mlp()), (6,)), "conv": (lambda: awake(cnn(bn=False)), (1, 4, 4))}


@pytest.mark.parametrize(
    ("name", "stacked"), [("tanh", False), ("dense", False), ("dense", True), ("conv", False), ("conv", True)]
)
@pytest.mark.parametrize("mu_con", [1.0, 5.0])
def test_moon_against_plain_autograd(name, stacked, mu_con):
    """Three rounds with two or three clients. The previous model of a new client is the initial model."""
    model, shape = NETS[name][0](), NETS[name][1]
    fed = federation(model, (12, 6, 9), shape=shape, dtype=F64, epochs=2, stacked=stacked)
    algorithm, x_g, previous = Moon(mu_con=mu_con, temperature=0.5), fed.theta0, fed.theta0.repeat(3, 1)
    taking_part = [[0, 2], [0, 1, 2], [1, 2]]
    for t, (state, notes) in enumerate(after(algorithm, fed, taking_part)):
        trained = {}
        for k in taking_part[t]:
            shared, last = (module_of(fed, model, theta) for theta in (x_g, previous[k]))

            def loss(plain, x, y, shared=shared, last=last):
                near, far = features(shared, x).detach(), features(last, x).detach()
                return cross_entropy(plain(x), y) + mu_con * contrast(features(plain, x), near, far, 0.5)

            trained[k], _ = plain_steps(fed, model, x_g, k, t, loss=loss, epochs=2)
        x_g = torch.stack(list(trained.values())).mean(0)
        previous = torch.stack([trained.get(k, previous[k]) for k in range(3)])
        torch.testing.assert_close(state.shared, x_g)
        torch.testing.assert_close(state.previous, previous)
        assert notes["passes"] == pytest.approx(2 + 2 / 3)
    without = after(FedAvg(), fed, taking_part)[-1][0].shared
    assert not torch.allclose(state.shared, without)

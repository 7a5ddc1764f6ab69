"""Baselines of FedPeWS: rounds in plain PyTorch, FedNova's by hand, and settings in which they equal FedAvg."""

import math

import pytest
import torch

from pfl_core.algorithm import build
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.fednova import FedNova
from pfl_core.algorithms.fedprox import FedProx
from pfl_core.algorithms.momentum import effective_steps
from pfl_core.algorithms.scaffold import Scaffold
from tests.algorithms.fedpews.plain import F64, both_nets, fed_of, net, plain_steps, shared_of
from tests.algorithms.two_nets import both_backends, wrong
from tests.helpers import after, cnn, everyone, federation, linear_federation

A = torch.tensor([1, 0.5, -1, -0.5], dtype=F64)  # what client 0, x = (2, 1), y = 0, trains from W = 0 in a step of 1
B = torch.tensor([-0.5, -1.5, 0.5, 1.5], dtype=F64)  # client 1, x = (1, 3), y = 1: class y has + x/2, the other - x/2


def by_hand(**training):
    """Logits W x, W = 0, rate 1. Client 0 has one sample, client 1 twice the same one."""
    return linear_federation([([[2, 1]], [0]), ([[1, 3]] * 2, [1] * 2)], **training)


# ---- FedProx --------------------------------------------------------------------------------------------------------


@both_nets
@both_backends
def test_fedprox_against_plain_autograd(name, stacked):
    fed, model = fed_of(name, (12, 6, 9), dtype=F64, epochs=2, stacked=stacked), net(name)
    theta = fed.theta0
    for t, (state, notes) in enumerate(after(FedProx(mu=0.5), fed, 2)):

        def pulled(g, now, anchor=theta):
            return g + 0.5 * (now - anchor)

        theta = torch.stack([plain_steps(fed, model, theta, k, t, change=pulled, epochs=2)[0] for k in range(3)]).mean(
            0
        )
        torch.testing.assert_close(state.shared, theta)
        assert notes["upload"].tolist() == [fed.num_params] * 3


# ---- SCAFFOLD -------------------------------------------------------------------------------------------------------


@both_nets
@both_backends
def test_scaffold_against_plain_autograd(name, stacked):
    """Option II with ragged clients; two, then all, then one of three."""

    def drift_of(correction):
        return lambda g, now: g + correction

    fed, model = fed_of(name, (12, 6, 9), dtype=F64, epochs=2, stacked=stacked), net(name)
    x_g, c = fed.theta0, torch.zeros(fed.num_params, dtype=F64)
    own = torch.zeros(3, fed.num_params, dtype=F64)
    taking_part = [[0, 2], [0, 1, 2], [1]]
    for t, (state, notes) in enumerate(after(Scaffold(lr_server=0.8), fed, taking_part)):
        trained, news = [], torch.zeros_like(own)
        for k in taking_part[t]:
            theta, steps = plain_steps(fed, model, x_g, k, t, change=drift_of(c - own[k]), epochs=2)
            trained.append(theta)
            news[k] = -c + (x_g - theta) / (steps * 0.1)
        x_g = x_g + 0.8 * (torch.stack(trained).mean(0) - x_g)
        own, c = own + news, c + news.sum(0) / 3
        torch.testing.assert_close(state.shared, x_g)
        torch.testing.assert_close(state.controls, own)
        torch.testing.assert_close(state.control, c)
        assert notes["upload"].tolist() == [2 * fed.num_params] * len(taking_part[t])


def test_scaffold_follows_the_schedule_of_rates():
    """c_k+ divides by the rate of the round: after one plain step from rest it is the gradient, whatever the rate."""
    fed, slow = (fed_of(dtype=F64, batch_size=100, rounds=2, decay=d, milestones=(0.5,)) for d in (1.0, 0.1))
    start = Scaffold().init(fed, fed.theta0)
    one, other = (Scaffold().round(f, start, everyone(fed), 1)[0] for f in (fed, slow))
    torch.testing.assert_close(one.controls, other.controls)


def test_scaffold_with_learning_rate_0_stays_finite():
    """A schedule may end at a rate of 0: the model is unchanged, and the controls must not become NaN."""
    fed = fed_of(rounds=3, milestones=(1 / 3,), decay=0.0)
    (first, _), *later = after(Scaffold(), fed, 3)
    for state, _ in later:
        assert state.controls.isfinite().all() and state.control.isfinite().all()
        torch.testing.assert_close(state.shared, first.shared)


@both_nets
@pytest.mark.parametrize("options", [{}, {"lr_server": 0.5, "client_weighting": "samples"}], ids=str)
@pytest.mark.parametrize("training", [{}, {"momentum": 0.9}, {"epochs": 3}], ids=str)
def test_scaffold_equals_fedavg_in_the_first_round(name, options, training):
    fed = fed_of(name, **training)
    assert torch.equal(shared_of(Scaffold(**options), fed, 1)[0], shared_of(FedAvg(**options), fed, 1)[0])


# ---- FedNova --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_fednova_by_hand(rate):
    """Batches of one: client 0 makes one step, to A; client 1 two, to (1 + 2 q) B with q = 1 / (1 + e^10).

    d = (-A, -(1 + 2 q) B / 2). Equal weights: K_eff = 3/2, so x = 3/2 (A/2 + (1 + 2 q) B / 4). By samples, 1/3 and 2/3:
    K_eff = 5/3 and x = 5/3 (A/3 + (1 + 2 q) B / 3).
    """
    fed, end = by_hand(batch_size=1), (1 + 2 * wrong(10.0)) * B
    (uniform, notes), (samples, _) = (after(FedNova(w, rate), fed, 1)[0] for w in ("uniform", "samples"))
    torch.testing.assert_close(uniform.shared, rate * 1.5 * (A / 2 + end / 4))
    torch.testing.assert_close(samples.shared, rate * 5 / 3 * (A + end) / 3)
    assert notes["upload"].tolist() == [4, 4]


@both_nets
@pytest.mark.parametrize("options", [{}, {"lr_server": 0.5}], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_with_equal_steps_is_fedavg(name, options, momentum):
    fed = fed_of(name, (12, 11, 9), dtype=F64, epochs=2, momentum=momentum)  # 3 batches each
    pairs = zip(shared_of(FedNova(**options), fed), shared_of(FedAvg(**options), fed), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other)
    ragged = fed_of(name, (12, 4, 9), dtype=F64, momentum=momentum)
    assert not torch.allclose(shared_of(FedNova(**options), ragged)[0], shared_of(FedAvg(**options), ragged)[0])


@both_nets
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_against_its_formula(name, weighting, momentum):
    """d_k = (x - x_k) / K_k, K_eff = sum w K, x - lr_server K_eff sum w d; K_k with momentum by the formula."""
    sizes = (12, 4, 9, 18)
    fed = fed_of(name, sizes, dtype=F64, epochs=2, momentum=momentum)
    clients, x_g = [[0, 1, 3], [1, 2]], fed.theta0
    for t, (state, _) in enumerate(after(FedNova(weighting, 0.8), fed, clients)):
        chosen = torch.tensor(clients[t])
        theta = fed.sgd(fed.broadcast(x_g, chosen), chosen, key=t).theta
        n = torch.tensor([float(sizes[k]) if weighting == "samples" else 1.0 for k in clients[t]], dtype=F64)
        w, lengths = n / n.sum(), []
        for k in clients[t]:
            steps = 2 * math.ceil(sizes[k] / 4)
            lengths.append((steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum))
        length = torch.tensor(lengths, dtype=F64)
        d = (x_g - theta) / length[:, None]
        x_g = x_g - 0.8 * (w @ length) * (w @ d)
        torch.testing.assert_close(state.shared, x_g)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_fednovas_steps_with_momentum(momentum, steps):
    """The distance that SGD with momentum covers with a constant gradient of 1."""
    x = v = 0.0
    for _ in range(steps):
        v = momentum * v + 1
        x += v
    got = effective_steps(torch.tensor([float(steps)], dtype=F64), momentum)
    torch.testing.assert_close(got, torch.tensor([x], dtype=F64))


def test_fednova_averages_statistics():
    """Batch-norm statistics are averaged: with equal steps as in FedAvg, else within the clients' values."""
    equal = federation(cnn(bn=True), (12, 11, 10), shape=(1, 4, 4), dtype=F64)
    torch.testing.assert_close(shared_of(FedNova(), equal)[-1], shared_of(FedAvg(), equal)[-1])
    fed = federation(cnn(bn=True), (4, 40), shape=(1, 4, 4), dtype=F64, epochs=3)
    d, theta = fed.num_params, fed.sgd(fed.broadcast(fed.theta0, everyone(fed)), everyone(fed), key=0).theta
    statistics = shared_of(FedNova(), fed, 1)[0][d:]
    low, high = theta[:, d:].min(0).values - 1e-9, theta[:, d:].max(0).values + 1e-9
    assert ((statistics >= low) & (statistics <= high)).all()


def test_fednova_without_steps_leaves_the_model_unchanged():
    fed = fed_of(epochs=0)
    assert torch.equal(shared_of(FedAvg(), fed, 1)[0], fed.theta0)
    assert torch.equal(shared_of(FedNova(), fed, 1)[0], fed.theta0)


# ---- all of them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedprox", "scaffold", "fednova", "moon"])
def test_with_lr_server_0_the_model_is_unchanged(method):
    fed = fed_of(sizes=(12,))
    assert torch.equal(shared_of(build(method, {"lr_server": 0.0}), fed, 2)[-1], fed.theta0)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_scaffold_with_momentum_still_has_the_gradient_as_control(momentum):
    """With a nearly constant gradient, c_k is that gradient: the distance divided by the effective number of steps."""
    fed = by_hand(lr=1e-6, epochs=10, batch_size=4, momentum=momentum)
    ((state, _),) = after(Scaffold(), fed, 1)
    assert torch.allclose(state.controls, torch.stack([-A, -B]), rtol=1e-4)

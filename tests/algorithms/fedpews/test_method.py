"""FedPeWS with learned masks: rounds against plain PyTorch, and invariants."""

from dataclasses import replace

import pytest
import torch

from pfl_core import Schedule, run
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.fedpews.method import FedPeWS, uniform_numbers
from tests.algorithms.fedpews.plain import (
    F64,
    both_nets,
    fed_of,
    first_batch,
    middle,
    net,
    plain_round,
    some_scores,
    with_scores,
)
from tests.algorithms.two_nets import both_backends
from tests.helpers import cnn, coin, everyone, federation, mlp, some_rows


def score_gradient(algorithm, fed, score, others, theta=None, bits=None):
    """dL_s / ds [1, h] on client 0's first batch; by default of the initial model, with every neuron drawn."""
    theta = fed.theta0[None] if theta is None else theta
    bits = torch.ones_like(score, dtype=torch.bool) if bits is None else bits
    return algorithm.gradient_of_scores(fed, theta, torch.sigmoid(score), bits, others, first_batch(fed))


# ---- a learned warm-up round against plain autograd -----------------------------------------------------------------

WARM = {
    "defaults": {},
    "no diversity": {"lam": 0.0},
    "fast masks": {"lr_mask": 1.0, "lam": 20.0},
    "server rate, samples": {"lr_server": 0.5, "client_weighting": "samples"},
    "fedprox": {"base": "fedprox", "base_options": {"mu": 0.5}},
    "row": {"expand_rule": "row"},
    "product": {"score_gradient": "product", "lr_mask": 1.0},
    "product of rows": {"score_gradient": "product", "expand_rule": "row", "lr_mask": 1.0},
    "draw and sigmoid": {"straight_through": "draw_and_sigmoid"},
    "one draw a step": {"draws": "one_per_step", "lr_mask": 1.0},
    "one draw a round": {"draws": "one_per_round", "lr_mask": 1.0},
    "samples heard": {"prob_update": "samples"},
    "nothing heard": {"prob_update": "constant"},
    "participants": {"prob_over": "participants"},
}


@pytest.mark.parametrize("case", WARM)
@both_nets
@both_backends
def test_warm_rounds_against_plain_autograd(case, name, stacked):
    """Two rounds, the second with two clients. Numbers of samples differ; the last client's last batch has one.

    Every step, draw, weight and upload of the options A1, A2, A4, A5, A7 and A8 of the method page.
    """
    fed = fed_of(name, sizes=(12, 6, 9), dtype=F64, stacked=stacked)
    algorithm = FedPeWS(tau=1.0, **WARM[case])
    state = want = middle(algorithm, fed)
    for t, clients in enumerate([everyone(fed), torch.tensor([2, 0])]):
        state, notes = algorithm.round(fed, state, clients, t)
        want, expected = plain_round(algorithm, fed, net(name), want, clients, t)
        torch.testing.assert_close(state.shared, want.shared)
        torch.testing.assert_close(state.score, want.score)
        torch.testing.assert_close(state.mask_prob, want.mask_prob)
        for metric, values in expected.items():
            assert notes[metric].tolist() == pytest.approx(values, rel=1e-5, abs=1e-6), metric
        assert notes["passes"] == 2
        assert set(notes["upload_bits"].tolist()) == {fed.layout.chain.num_neurons}


@both_nets
def test_several_epochs_are_more_batches(name):
    """``train_loss`` is a mean over the samples seen; with all masks at 1 it is that of FedAvg."""
    fed = fed_of(name, dtype=F64, epochs=2)
    algorithm = FedPeWS(tau=1.0)
    state = with_scores(algorithm, fed, torch.full_like(some_scores(fed), 50.0))
    new, notes = algorithm.round(fed, state, everyone(fed), 0)
    want, of_fedavg = FedAvg().round(fed, FedAvg().init(fed, fed.theta0), everyone(fed), 0)
    torch.testing.assert_close(new.shared, want.shared)
    torch.testing.assert_close(notes["train_loss"], of_fedavg["train_loss"])
    assert notes["passes"] == 4


def test_with_batch_norm_a_warm_up_is_finite_and_moves_the_statistics_of_selected_neurons():
    fed = federation(cnn(bn=True), shape=(1, 4, 4))
    algorithm = FedPeWS(tau=1.0)
    on = torch.tensor([1.0, -1, 1, 1, -1, 1, 1]).expand(4, -1) * 50
    new, _ = algorithm.round(fed, with_scores(algorithm, fed, on), everyone(fed), 0)
    assert new.shared.isfinite().all()
    fields, start = fed.layout.unflatten(new.shared), fed.layout.unflatten(fed.theta0)
    for statistic in ("bn1.running_mean", "bn1.running_var"):
        assert (fields[statistic] != start[statistic]).tolist() == [True, False, True]


# ---- gates ----------------------------------------------------------------------------------------------------------


@both_nets
@both_backends
@pytest.mark.parametrize(("rule", "factor"), [("both_ends", 2), ("row", 1)])
def test_the_gradient_of_eq_6_is_twice_that_of_gates_on_selected_neurons_and_0_on_others(name, stacked, rule, factor):
    """A mask bit multiplies the weights into a neuron and, with both ends, the weights out of it.

    w m x + b m is m times the pre-activation, and a ReLU follows. Each half therefore gives df/da * a, the gradient of
    the gate.
    """
    fed = fed_of(name, sizes=(40,), batch_size=40, dtype=F64, stacked=stacked)
    gate = FedPeWS(lam=0.0, expand_rule=rule)
    product, met = replace(gate, score_gradient="product"), []
    for key in range(4):
        bits, score = coin(1, fed.layout.chain.num_neurons, key=key), some_scores(fed, key)
        own = {"theta": some_rows(fed, torch.arange(1)), "bits": bits}
        of_gate, of_product = (score_gradient(each, fed, score, score, **own) for each in (gate, product))
        torch.testing.assert_close(of_product, factor * of_gate * bits, rtol=1e-10, atol=1e-14)
        met.append(of_gate[bits] != 0)
    assert torch.cat(met).any()


# ---- diversity ------------------------------------------------------------------------------------------------------


def test_a_larger_lambda_gives_a_larger_distance():
    """The noted distance grows with lambda and is at most h."""
    found = []
    for lam in (0.0, 1.0, 20.0):
        fed = fed_of()
        algorithm = FedPeWS(tau=1.0, lam=lam, score_init="uniform_per_client")
        _, history = run(algorithm, fed, Schedule(3))
        found.append(sum(history.series["diversity"][1][-1]))
        assert all(0 <= x <= fed.layout.chain.num_neurons for row in history.series["diversity"][1] for x in row)
    assert found == sorted(found) and found[0] < found[-1]


def test_a_single_client_is_pushed_from_its_own_probability():
    fed = fed_of(sizes=(12,))
    state = with_scores(FedPeWS(), fed, some_scores(fed))
    assert torch.equal(FedPeWS().others(fed, state, everyone(fed), 0), state.mask_prob)


# ---- streams --------------------------------------------------------------------------------------------------------


def test_mask_draws_have_one_random_stream_per_round_and_client():
    """A client's numbers do not depend on which other clients take part."""
    fed = fed_of(sizes=(12, 6, 9))
    numbers = uniform_numbers(fed, torch.tensor([0, 2, 1]), 3)
    assert numbers.shape == (3, 1 + 2 * 3, 9)
    for row, k, steps in zip(numbers, (0, 2, 1), (3, 3, 2), strict=True):
        own = uniform_numbers(fed, torch.tensor([k]), 3)[0]
        assert torch.equal(row[: 1 + 2 * steps], own)
        assert ((own >= 0) & (own < 1)).all()
    streams = [uniform_numbers(fed, torch.tensor([k]), t)[0, :5] for k in range(3) for t in range(3)]
    assert len({tuple(x.flatten().tolist()) for x in streams}) == 9
    other = uniform_numbers(fed_of(sizes=(12, 6, 9), seed=1), torch.tensor([0]), 3)[0]
    assert not torch.equal(other, numbers[0])


def test_diagnostics_by_hand():
    """Two clients with p = (0.05, 0.5) and (0.95, 0.5); p_others is that of the other client."""
    prob = torch.tensor([[0.05, 0.5], [0.95, 0.5]])
    notes = FedPeWS().diagnostics(prob, prob.flip(0))
    assert notes["mask_prob"] == pytest.approx(0.5)
    assert (notes["mask_low"], notes["mask_high"]) == (0.25, 0.25)
    assert notes["mask_distance"] == pytest.approx(0.45)
    torch.testing.assert_close(notes["diversity"], torch.tensor([0.81, 0.81]))


def test_coverage_and_traffic_are_noted():
    """mlp: 5 neurons, 53 parameters. A neuron has 6 weights, a bias and 3 outgoing weights; all cover the last bias.

    Masks 11000 and 01100: 3 of 5 neurons covered, 1 shared; 3 * 10 + 3 of 53 parameters; each sends 2 * 10 + 3, and 5
    probabilities.
    """
    fed = federation(mlp(), sizes=(12, 9))
    algorithm = FedPeWS(tau=1.0)
    score = 50 * torch.tensor([[1.0, 1, -1, -1, -1], [-1, 1, 1, -1, -1]])
    _, notes = algorithm.round(fed, with_scores(algorithm, fed, score), everyone(fed), 0)
    assert notes["upload"].tolist() == [28, 28]
    assert notes["selected"].tolist() == pytest.approx([0.4, 0.4])
    assert notes["neurons_covered"] == pytest.approx(3 / 5)
    assert notes["neurons_shared"] == pytest.approx(1 / 5)
    assert notes["params_covered"] == pytest.approx(33 / 53)
    assert (notes["trained"] != 0).sum(1).tolist() == [23, 23]

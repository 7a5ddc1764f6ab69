"""Local: every client trains its own model."""

import torch

from pfl_core import Schedule, run
from pfl_core.algorithms.local import Local
from tests.helpers import cnn, everyone, federation, linear_federation, same_bits


def test_two_rounds_by_hand():
    """Two clients with one sample each, logits = W x, W = 0 at the start, rate 1.

    Gradient of the cross-entropy: row c of W gets (p_c - [c = y]) x. Client 0 has x = (2, 1), y = 0; client 1 has
    x = (1, 3), y = 1.

    Round 0: p = (1/2, 1/2), so W_0 += x/2 and W_1 -= x/2 for client 0, the other way round for client 1:
        client 0: (1, 0.5; -1, -0.5)        client 1: (-0.5, -1.5; 0.5, 1.5)
    Round 1: the logits' difference in favour of the label is x.x = 5 and 10, so the wrong class has the probability
    q = 1 / (1 + e^5) and r = 1 / (1 + e^10), and the rows move by another q x and r x.
    """
    fed = linear_federation([([[2, 1]], [0]), ([[1, 3]], [1])])
    algorithm = Local()
    state = algorithm.init(fed, fed.theta0)
    assert torch.equal(state.local, torch.zeros(2, 4, dtype=torch.float64))
    state, notes = algorithm.round(fed, state, everyone(fed), 0)
    want = torch.tensor([[1, 0.5, -1, -0.5], [-0.5, -1.5, 0.5, 1.5]], dtype=torch.float64)
    torch.testing.assert_close(state.local, want)
    torch.testing.assert_close(notes["train_loss"], torch.log(torch.tensor([2.0, 2.0])))
    state, _ = algorithm.round(fed, state, everyone(fed), 1)
    q, r = (1 / (1 + torch.tensor([5.0, 10.0], dtype=torch.float64).exp())).tolist()
    move = torch.tensor([[2 * q, q, -2 * q, -q], [-r, -3 * r, r, 3 * r]], dtype=torch.float64)
    torch.testing.assert_close(state.local, want + move)
    assert torch.equal(algorithm.evaluation_models(fed, state, torch.tensor([1]), 1), state.local[1:])


def test_it_continues_sgd_from_round_to_round():
    fed = federation(cnn(), shape=(1, 4, 4), epochs=2)
    state, history = run(Local(), fed, Schedule(3))
    theta = fed.broadcast(fed.theta0, everyone(fed))
    for t in range(3):
        theta = fed.sgd(theta, everyone(fed), key=t).theta
    assert torch.equal(state.local, theta)
    assert state.shared is None
    assert history.series["upload"][1] == [[0.0] * 4] * 3
    assert history.series["passes"][1] == [2.0] * 3
    assert history.series["correct"] == history.series["correct_trained"]


def test_a_client_does_not_depend_on_other_clients():
    alone, _ = run(Local(), federation(sizes=(12, 9)), Schedule(3))
    crowd, _ = run(Local(), federation(sizes=(12, 9, 14, 10)), Schedule(3))
    assert torch.equal(alone.local, crowd.local[:2])


def test_absent_clients_keep_their_models():
    fed = federation()
    state = Local().init(fed, fed.theta0)
    new, _ = Local().round(fed, state, torch.tensor([1, 2]), 0)
    assert same_bits(new.local[[0, 3]], state.local[[0, 3]])
    assert not torch.equal(new.local[1], state.local[1])

"""FedAvg and FedAvg-FT: by hand, against plain PyTorch, and their weights, steps and statistics."""

import pytest
import torch

from pfl_core import Schedule, run
from pfl_core.algorithms.fedavg import FedAvg, FedAvgFT
from tests.helpers import cnn, everyone, federation, linear_federation, mlp, plain_sgd, same_bits

F64 = torch.float64


def by_hand():
    """Client 0 has one sample, client 1 three equal ones; one full batch, logits = W x, W = 0, rate 1."""
    return linear_federation([([[2, 1]], [0]), ([[1, 3]] * 3, [1] * 3)])


A = torch.tensor([1, 0.5, -1, -0.5], dtype=F64)  # what client 0 trains from 0: +x/2 on its class, -x/2 on the other
B = torch.tensor([-0.5, -1.5, 0.5, 1.5], dtype=F64)  # client 1: three equal samples have the gradient of one


@pytest.mark.parametrize(
    ("weighting", "lr_server", "shared"),
    [
        ("uniform", 1.0, [0.25, -0.5, -0.25, 0.5]),
        ("samples", 1.0, [-0.125, -1.0, 0.125, 1.0]),
        ("uniform", 0.5, [0.125, -0.25, -0.125, 0.25]),
        ("samples", 2.0, [-0.25, -2.0, 0.25, 2.0]),
        ("samples", 0.0, [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_a_round_by_hand(weighting, lr_server, shared):
    """At W = 0 both classes have probability 1/2, so client k trains W_y += x/2, W_other -= x/2: A and B above.

    uniform: (A + B) / 2 = (0.25, -0.5, -0.25, 0.5); samples: (A + 3 B) / 4 = (-0.125, -1, 0.125, 1).
    A server step of g from 0 multiplies by g.
    """
    fed, algorithm = by_hand(), FedAvg(weighting, lr_server)
    state, notes = algorithm.round(fed, algorithm.init(fed, fed.theta0), everyone(fed), 0)
    torch.testing.assert_close(state.shared, torch.tensor(shared, dtype=F64))
    torch.testing.assert_close(notes["train_loss"], torch.full((2,), 2.0).log())
    assert notes["upload"].tolist() == [4, 4]
    assert notes["passes"] == 1


def test_a_second_round_by_hand():
    """From w = (0.25, -0.5; -0.25, 0.5), logits' difference z = (0.5, -1).x.

    Client 0: z = 1 - 1 = 0, so its class has p = 1/2 again and it trains w + A.
    Client 1: z = 0.5 - 3 = -2.5 towards its class 1, the wrong class has r = 1 / (1 + e^2.5): w + 2 r B.
    Mean: w + A/2 + r B.
    """
    fed = by_hand()
    state, _ = run(FedAvg(), fed, Schedule(2))
    r = 1 / (1 + torch.tensor(2.5, dtype=F64).exp())
    torch.testing.assert_close(state.shared, (A + B) / 2 + A / 2 + r * B)


def test_fine_tuning_by_hand():
    """After one round every client takes one more step of its own from the mean (see the second round above)."""
    fed, algorithm = by_hand(), FedAvgFT(finetune_epochs=1)
    state, _ = algorithm.round(fed, algorithm.init(fed, fed.theta0), everyone(fed), 0)
    r = 1 / (1 + torch.tensor(2.5, dtype=F64).exp())
    mean = (A + B) / 2
    torch.testing.assert_close(
        algorithm.evaluation_models(fed, state, everyone(fed), 0), torch.stack([mean + A, mean + 2 * r * B])
    )
    torch.testing.assert_close(state.shared, mean)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_rounds_against_plain_modules(weighting):
    """Batch-norm statistics are averaged with the same weights."""
    model = cnn(bn=True)
    fed = federation(model, sizes=(12, 8, 20), shape=(1, 4, 4), dtype=F64, epochs=2)
    state, _ = run(FedAvg(weighting), fed, Schedule(2))
    share = torch.tensor([12, 8, 20]) / 40 if weighting == "samples" else torch.full((3,), 1 / 3, dtype=F64)
    theta = fed.theta0
    for t in range(2):
        trained = torch.stack([plain_sgd(fed, model, theta, k, t, lr=0.1, epochs=2)[0] for k in range(3)])
        theta = share.double() @ trained
    torch.testing.assert_close(state.shared, theta, rtol=1e-6, atol=1e-7)


def test_only_participants_count():
    fed = federation(sizes=(12, 9, 14, 10))
    algorithm = FedAvg("samples")
    state, notes = algorithm.round(fed, algorithm.init(fed, fed.theta0), torch.tensor([3, 1]), 0)
    trained = fed.sgd(fed.theta0.expand(2, -1), torch.tensor([3, 1]), key=0).theta
    torch.testing.assert_close(state.shared, (10 * trained[0] + 9 * trained[1]) / 19)
    assert notes["upload"].tolist() == [fed.num_params] * 2


def test_fine_tuning_does_not_change_training():
    fed = federation(mlp(bn=True), sizes=(12, 9, 14, 10), epochs=2)
    plain, history = run(FedAvg(), fed, Schedule(3))
    tuned, tuned_history = run(FedAvgFT(), federation(mlp(bn=True), epochs=2), Schedule(3))
    assert same_bits(plain, tuned)
    assert history.series["correct_trained"] == tuned_history.series["correct_trained"]
    assert history.series["loss"] != tuned_history.series["loss"]


def test_fine_tuning_trains_a_copy_of_all_parameters():
    fed = federation(mlp(bn=True), sizes=(12, 9, 14, 10), epochs=2)
    state, _ = run(FedAvgFT(), fed, Schedule(2))
    got = FedAvgFT(finetune_epochs=3).evaluation_models(fed, state, torch.tensor([2, 0]), 1)
    want, _ = plain_sgd(fed, mlp(bn=True), state.shared, 2, (1, "finetune"), lr=0.1, epochs=3)
    torch.testing.assert_close(got[0], want, rtol=1e-5, atol=1e-6)
    nothing = FedAvgFT(finetune_epochs=0).evaluation_models(fed, state, torch.tensor([2, 0]), 1)
    assert torch.equal(nothing, state.shared.expand(2, -1))


def test_fine_tuning_follows_the_learning_rate_schedule():
    late = federation(milestones=(0.5,), decay=0.0, rounds=2)
    state = FedAvgFT().init(late, late.theta0)
    assert torch.equal(FedAvgFT().evaluation_models(late, state, torch.tensor([0]), 1)[0], late.theta0)
    assert not torch.equal(FedAvgFT().evaluation_models(late, state, torch.tensor([0]), 0)[0], late.theta0)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_a_client_that_cannot_train_is_left_out_of_the_mean(weighting):
    """Under batch norm a single sample makes no batch: the mean is that of the other two, with their weights."""
    fed, others = federation(cnn(), (12, 1, 8), shape=(1, 4, 4)), torch.tensor([0, 2])
    algorithm = FedAvg(weighting)
    start = algorithm.init(fed, fed.theta0)
    state, _ = algorithm.round(fed, start, everyone(fed), 0)
    of_two, _ = algorithm.round(fed, start, others, 0)
    torch.testing.assert_close(state.shared, of_two.shared)
    assert algorithm.weight(fed, everyone(fed))[1] == 0
    alone, _ = algorithm.round(fed, start, torch.tensor([1]), 0)
    assert torch.equal(alone.shared, start.shared), "no client trains: the model is unchanged"
    dense = federation(mlp(), (12, 1, 8))
    assert (algorithm.weight(dense, everyone(dense)) > 0).all(), "without batch norm one sample is a batch"

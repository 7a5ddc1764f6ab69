"""FedAvg and FedAvg-FT: against plain PyTorch, fine-tuning by hand, and their weights, steps and statistics."""

import pytest
import torch

from pfl_core import Schedule, run
from pfl_core.algorithms.fedavg import FedAvg, FedAvgFT
from tests.helpers import after, cnn, everyone, federation, linear_federation, mlp, plain_sgd, same_bits

F64 = torch.float64


def test_fine_tuning_by_hand():
    """Logits W x, W = 0, rate 1, one full batch. Client 0 has one sample, client 1 three equal ones.

    At W = 0 both classes have probability 1/2, so a client trains +x/2 on its class and -x/2 on the other: A and B. At
    their mean w = (0.25, -0.5; -0.25, 0.5) client 0 has equal logits again and takes the step A; client 1's differ by
    2.5 towards the wrong class, which has r = 1 / (1 + e^2.5) of its own, so its step is 2 r B.
    """
    fed = linear_federation([([[2, 1]], [0]), ([[1, 3]] * 3, [1] * 3)])
    a, b = torch.tensor([[1, 0.5, -1, -0.5], [-0.5, -1.5, 0.5, 1.5]], dtype=F64)
    algorithm = FedAvgFT(finetune_epochs=1)
    state, _ = algorithm.round(fed, algorithm.init(fed, fed.theta0), everyone(fed), 0)
    r = 1 / (1 + torch.tensor(2.5, dtype=F64).exp())
    mean = (a + b) / 2
    torch.testing.assert_close(
        algorithm.evaluation_models(fed, state, everyone(fed), 0), torch.stack([mean + a, mean + 2 * r * b])
    )
    torch.testing.assert_close(state.shared, mean)


@pytest.mark.parametrize("lr_server", [1.0, 0.5])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_rounds_against_plain_modules(weighting, lr_server):
    """Batch-norm statistics are averaged with the same weights."""
    model = cnn(bn=True)
    fed = federation(model, sizes=(12, 8, 20), shape=(1, 4, 4), dtype=F64, epochs=2)
    share = torch.tensor([12, 8, 20]) / 40 if weighting == "samples" else torch.full((3,), 1 / 3, dtype=F64)
    theta = fed.theta0
    for t, (state, notes) in enumerate(after(FedAvg(weighting, lr_server), fed, 2)):
        trained, losses = zip(*(plain_sgd(fed, model, theta, k, t, lr=0.1, epochs=2) for k in range(3)), strict=True)
        theta = theta + lr_server * (share.double() @ torch.stack(trained) - theta)
        torch.testing.assert_close(state.shared, theta, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(notes["train_loss"], torch.tensor([sum(row) / len(row) for row in losses]))
        assert notes["passes"] == 2


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

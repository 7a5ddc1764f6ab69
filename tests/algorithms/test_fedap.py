"""FedAP: the matrix by hand, FedAvg where it is uniform, a plain reference, and its options."""

import pytest
import torch

from pfl_core import Schedule, run
from pfl_core.algorithms.fedap import FedAP, distances, mixing, norm_inputs, stratified_sample
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.fedbn import FedBN
from tests.algorithms import two_nets
from tests.algorithms.two_nets import F64
from tests.helpers import cnn, everyone, federation, mlp, module_of, plain_sgd, same_bits

QUICK = {"pretrain_epochs": 2, "pretrain_rounds": 2}


def fed_of(bn=True, **options):
    return two_nets.fed_of("cnn", bn, **{"rounds": 4, "dtype": F64} | options)


# ---- the matrix -----------------------------------------------------------------------------------------------------


def test_the_matrix_by_hand():
    """Layer 1: means 0, 3, 0 and deviations 1, 5, 1 (one channel); layer 2: means (0, 0), (0, 0), (3, 4), deviations 2.

    d01 = sqrt(9 + 16) + 0 = 5, d02 = 0 + 5 = 5, d12 = 5 + 5 = 10. Row 0: 1/5 and 1/5; rows 1 and 2: 1/5 : 1/10.
    """
    one = torch.tensor([[0.0], [3], [0]]), torch.tensor([[1.0], [5], [1]])
    two = torch.tensor([[0.0, 0], [0, 0], [3, 4]]), torch.full((3, 2), 2.0)
    d = distances([one, two])
    torch.testing.assert_close(d, torch.tensor([[0.0, 5, 5], [5, 0, 10], [5, 10, 0]]))
    third = torch.tensor([[0.4, 0.3, 0.3], [0.4, 0.4, 0.2], [0.4, 0.2, 0.4]])
    torch.testing.assert_close(mixing(d, 0.4), third)


def test_clients_at_distance_zero():
    """1 / d counts as 1e14, so two equal clients give each other the weight 1 - lambda."""
    weight = mixing(torch.tensor([[0.0, 0, 1], [0, 0, 1], [1, 1, 0]], dtype=F64), 0.5)
    expected = torch.tensor([[0.5, 0.5, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]], dtype=F64)
    torch.testing.assert_close(weight, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(weight.sum(1), torch.ones(3, dtype=F64))
    assert mixing(torch.zeros(1, 1), 0.3).tolist() == [[1]]


def test_norm_inputs_against_plain_pytorch():
    """Mean and standard deviation, over samples and pixels, of batch norm's input in evaluation mode."""
    fed = fed_of()
    theta = fed.sgd(fed.theta0.expand(4, -1), everyone(fed), key=0).theta
    ((means, spreads),) = norm_inputs(fed, theta)
    for k in range(4):
        net = module_of(fed, cnn(bn=True), theta[k]).eval()
        inputs = net.conv1(fed.splits["train"].client(k)[0])  # [n, 3, 4, 4]
        for c in range(3):
            values = inputs[:, c].reshape(-1)
            torch.testing.assert_close(means[k, c], values.mean().detach())
            torch.testing.assert_close(spreads[k, c], values.var(unbiased=False).sqrt().detach())


def test_clients_with_similar_data_weigh_more():
    """Clients 0 and 1 have bright images, 2 and 3 dark ones."""
    fed = fed_of(sizes=(12, 12, 12, 12))
    for k, (start, stop) in enumerate(zip(fed.splits["train"].bounds, fed.splits["train"].bounds[1:], strict=False)):
        fed.splits["train"].x[start:stop] += 3 if k < 2 else -3
    for pretrain in ("pooled", "fedbn"):
        weight = FedAP(pretrain=pretrain, **QUICK).init(fed, fed.theta0).matrix
        torch.testing.assert_close(weight.sum(1), torch.ones(4, dtype=F64))
        torch.testing.assert_close(weight.diagonal(), torch.full((4,), 0.5, dtype=F64))
        assert weight[0, 1] > weight[0, 2] + weight[0, 3] and weight[3, 2] > weight[3, 0] + weight[3, 1]


def test_pretraining_uses_a_share_of_the_training_data_only():
    """30 % of each class of each client, drawn once; no test data."""
    fed = fed_of(sizes=(60, 45))
    for k in range(2):
        x, y = stratified_sample(fed, k, 0.3)
        own, labels = fed.splits["train"].client(k)
        assert all(int((y == c).sum()) == round(0.3 * int((labels == c).sum()) + 1e-9) for c in labels.unique())
        places = [(own == each).flatten(1).all(1).nonzero().item() for each in x]
        assert len(set(places)) == len(y) and torch.equal(labels[places], y)
    algorithm = FedAP(**QUICK)
    before = algorithm.init(fed, fed.theta0)
    fed.splits["test"].x.zero_()
    assert same_bits(algorithm.init(fed, fed.theta0), before)
    assert torch.equal(before.local, fed.theta0.expand(2, -1))  # the pretrained model serves the matrix alone


def test_with_fedbn_each_client_measures_with_its_own_model():
    fed, algorithm = fed_of(), FedAP(pretrain="fedbn", pretrain_rounds=2)
    state = run(FedBN(), fed_of(), Schedule(4), until=2)[0]
    assert same_bits(algorithm.pretrained(fed, fed.theta0), FedBN().evaluation_models(fed, state, everyone(fed), 2))
    assert algorithm.inner_algorithms == (FedBN(),) and FedAP().inner_algorithms == ()


# ---- rounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda: federation(mlp(), epochs=2, dtype=F64), lambda: fed_of(bn=False)], ids=["mlp", "cnn"]
)
def test_with_a_uniform_matrix_it_is_fedavg(make):
    """Four clients, no norm layers (so all d = 0), lambda = 1/4: each gets the mean, up to rounding."""
    algorithm, fed = FedAP(lam=0.25), make()
    assert same_bits(algorithm.init(fed, fed.theta0).matrix, torch.full((4, 4), 0.25, dtype=F64))
    one, other = run(algorithm, fed, Schedule(3)), run(FedAvg(), make(), Schedule(3))
    torch.testing.assert_close(one[0].local, other[0].shared.expand(4, -1))
    torch.testing.assert_close(torch.tensor(one[1].series["loss"][1]), torch.tensor(other[1].series["loss"][1]))


def test_against_plain_pytorch():
    """Three rounds, one with two of the clients; batch norm and its statistics stay."""
    fed, model = fed_of(), cnn(bn=True)
    algorithm = FedAP(**QUICK)
    state = algorithm.init(fed, fed.theta0)
    rows, weight, own = fed.theta0.repeat(4, 1), state.matrix, fed.layout.mask(lambda f: "bn" in f.name)
    for t, clients in enumerate([[0, 1, 2, 3], [1, 3], [0, 1, 2, 3]]):
        state, notes = algorithm.round(fed, state, torch.tensor(clients), t)
        trained = {k: plain_sgd(fed, model, rows[k], k, t, lr=0.1, epochs=2)[0] for k in clients}
        for i in clients:
            total = sum(weight[i, j] for j in clients)
            mixed = sum(weight[i, j] / total * trained[j] for j in clients)
            rows[i] = torch.where(own, trained[i], mixed)
        torch.testing.assert_close(notes["trained"], torch.stack(list(trained.values())))
        torch.testing.assert_close(state.local, rows)
        assert notes["upload"].tolist() == [fed.num_params - 6] * len(clients)

"""FedBN: a round by hand, equality with FedAvg without norm layers, and which entries are personal."""

from collections import OrderedDict

import torch
from torch import nn

from pfl_core import Federation, Split, Training
from pfl_core.algorithms.fedbn import FedBN
from pfl_core.layout import WEIGHT
from tests.algorithms import two_nets
from tests.algorithms.two_nets import F64
from tests.helpers import cnn, everyone, plain_sgd


def fed_of(bn=True, **options):
    return two_nets.fed_of("cnn", bn, **{"rounds": 4} | options)


def test_a_round_by_hand():
    """bn(x) of one feature, then logits (w0, w1) z with w = (1, -1); clients of 2 and 4 samples, one full batch each.

    Client 0 has x = ±1, client 1 x = ±2 (twice): normalised z = ±|x| / sqrt(x^2 + eps). Running means stay 0, running
    variances move a tenth of the way to the unbiased 2 and 16 / 3. Labels: positive 0. With q = 1 / (1 + e^(2 z)), the
    wrong class's share: dL/dw0 = -q z, dL/dw1 = q z, dL/d(scale) = -2 q z, dL/d(shift) = 0. The heads are averaged by
    2 : 4; scales, shifts and statistics stay at home.
    """
    model = nn.Sequential(OrderedDict(bn=nn.BatchNorm1d(1), head=nn.Linear(1, 2, bias=False)))
    model.head.weight.data = torch.tensor([[1.0], [-1.0]])
    x = [torch.tensor([[1.0], [-1.0]], dtype=F64), torch.tensor([[2.0], [-2.0], [2.0], [-2.0]], dtype=F64)]
    data = Split.of([(x[0], torch.tensor([0, 1])), (x[1], torch.tensor([0, 1, 0, 1]))])
    train = Training(lr=1.0, batch_size=9)
    fed = Federation(model, {"train": data, "test": data}, seed=0, rounds=2, train=train, dtype=F64)
    algorithm = FedBN()
    state, notes = algorithm.round(fed, algorithm.init(fed, fed.theta0), everyone(fed), 0)
    rows = algorithm.evaluation_models(fed, state, everyone(fed), 0)
    expected = []
    for size, variance in ((1.0, 0.9 + 0.1 * 2), (2.0, 0.9 + 0.1 * 16 / 3)):
        z = torch.tensor(size, dtype=F64) / (size**2 + 1e-5) ** 0.5
        q = 1 / (1 + torch.exp(2 * z))
        expected.append([1 + 2 * q * z, 0, 1 + q * z, -1 - q * z, 0, variance])  # scale, shift, head, mean, variance
    expected = torch.tensor(expected, dtype=F64)
    expected[:, 2:4] = (2 * expected[0, 2:4] + 4 * expected[1, 2:4]) / 6  # n_k
    torch.testing.assert_close(rows, expected)
    assert notes["upload"].tolist() == [2, 2]


def test_against_plain_pytorch():
    """Two rounds: all but batch norm is averaged by n_k, scales, shifts and statistics are not."""
    fed, model = fed_of(dtype=F64), cnn(bn=True)
    rows, algorithm = fed.theta0.repeat(4, 1), FedBN()
    at_home = fed.layout.mask(lambda f: "bn" in f.name)
    state = algorithm.init(fed, fed.theta0)
    for t in range(2):
        rows = torch.stack([plain_sgd(fed, model, rows[k], k, t, lr=0.1, epochs=2)[0] for k in range(4)])
        mean = (fed.num_train[:, None] * rows).sum(0) / fed.num_train.sum()
        rows[:, ~at_home] = mean[~at_home]
        state, _ = algorithm.round(fed, state, everyone(fed), t)
        torch.testing.assert_close(algorithm.evaluation_models(fed, state, everyone(fed), t), rows)
    assert not torch.equal(rows[0, at_home], rows[1, at_home])


def test_exactly_the_tensors_of_norm_layers_are_personal():
    fed = fed_of()
    personal = FedBN().personal_mask(fed)
    assert torch.equal(personal, fed.layout.mask(lambda f: f.kind != WEIGHT))
    assert torch.equal(personal, fed.layout.mask(lambda f: "bn" in f.name)) and personal.sum() == 12
    average = FedBN(buffer_policy="average").personal_mask(fed)
    assert torch.equal(average, personal & (torch.arange(len(personal)) < fed.num_params))

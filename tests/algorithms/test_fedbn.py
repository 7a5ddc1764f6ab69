"""FedBN: rounds in plain PyTorch, and which entries are personal."""

import torch

from pfl_core.algorithms.fedbn import FedBN
from pfl_core.layout import WEIGHT
from tests.algorithms import two_nets
from tests.algorithms.two_nets import F64
from tests.helpers import cnn, everyone, plain_sgd


def fed_of(bn=True, **options):
    return two_nets.fed_of("cnn", bn, **{"rounds": 4} | options)


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
        state, notes = algorithm.round(fed, state, everyone(fed), t)
        torch.testing.assert_close(algorithm.evaluation_models(fed, state, everyone(fed), t), rows)
        assert notes["upload"].tolist() == [int((~at_home)[: fed.num_params].sum())] * 4
    assert not torch.equal(rows[0, at_home], rows[1, at_home])


def test_exactly_the_tensors_of_norm_layers_are_personal():
    fed = fed_of()
    personal = FedBN().personal_mask(fed)
    assert torch.equal(personal, fed.layout.mask(lambda f: f.kind != WEIGHT))
    assert torch.equal(personal, fed.layout.mask(lambda f: "bn" in f.name)) and personal.sum() == 12
    average = FedBN(buffer_policy="average").personal_mask(fed)
    assert torch.equal(average, personal & (torch.arange(len(personal)) < fed.num_params))

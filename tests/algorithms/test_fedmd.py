"""FedMD: against plain autograd, and its public samples."""

import re

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pfl_core import Split
from pfl_core.algorithms.fedmd import FedMD
from tests.algorithms import two_nets
from tests.algorithms.two_nets import F64, SIZES, SOME, net_of
from tests.helpers import after, federation, module_of, samples, seeded


def fed_of(net="mlp", public=11, **options):
    """With that many public samples."""
    fed = two_nets.fed_of(net, **options)
    x, y = samples(public, fed.splits["test"].x.shape[1:], key=200)
    fed.splits["public"] = Split.of([(x.to(fed.theta0), y)])
    return fed


# ---- against plain autograd -----------------------------------------------------------------------------------------


def plain_client(fed, model, theta, k, t, x, target, epochs):
    """Digest, then two epochs of its own: the model, and the mean loss on its own samples."""
    plain = module_of(fed, model, theta)
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    public = [(x, torch.zeros(len(x), dtype=torch.int64))]
    digest = fed.batches(torch.tensor([k]), (t, "digest"), epochs=epochs, data=public)
    for batch in digest:
        optimizer.zero_grad()
        (plain(batch.x[0]) - target[batch.index[0]]).square().mean().backward()
        optimizer.step()
    losses = []
    for batch in fed.batches(torch.tensor([k]), t):
        optimizer.zero_grad()
        loss = cross_entropy(plain(batch.x[0]), batch.y[0])
        loss.backward()
        optimizer.step()
        losses += [loss.detach()] * len(batch.y[0])
    return fed.layout.flatten(dict(plain.state_dict())), torch.stack(losses).mean()


@pytest.mark.parametrize(("net", "stacked"), [("mlp", True), ("mlp", False), ("cnn", False)])
@pytest.mark.parametrize("options", [{}, {"digest_epochs": 3, "client_weighting": "uniform"}], ids=str)
@pytest.mark.parametrize("some", [6, 5000])
def test_rounds_against_plain_modules(net, stacked, options, some):
    fed, model = fed_of(net, dtype=F64, stacked=stacked), net_of(net)
    algorithm, theta = FedMD(public_samples=some, **options), fed.theta0.repeat(4, 1)
    for t, (state, notes) in enumerate(after(algorithm, fed, SOME)):
        x = algorithm.samples(fed, t)
        n = torch.tensor([SIZES[k] if algorithm.client_weighting == "samples" else 1 for k in SOME[t]], dtype=F64)
        opinions = torch.stack([module_of(fed, model, theta[k]).eval()(x).detach() for k in SOME[t]])
        target = ((n / n.sum())[:, None, None] * opinions).sum(0)
        losses = []
        for k in SOME[t]:
            theta[k], loss = plain_client(fed, model, theta[k], k, t, x, target, algorithm.digest_epochs)
            losses.append(loss)
        torch.testing.assert_close(torch.stack(state.local), theta, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(notes["train_loss"], torch.stack(losses).float())
        assert notes["upload"].tolist() == [3 * min(some, 11)] * len(SOME[t])


# ---- public samples -------------------------------------------------------------------------------------------------


def test_public_samples_differ_by_round_and_do_not_repeat():
    fed, algorithm = fed_of(public=20), FedMD(public_samples=6)
    first, second = (algorithm.samples(fed, t) for t in (0, 1))
    pool = {tuple(row) for row in fed.splits["public"].x.tolist()}
    for x in (first, second):
        assert len({tuple(row) for row in x.tolist()}) == 6 and {tuple(row) for row in x.tolist()} <= pool
    assert not torch.equal(first, second) and torch.equal(first, algorithm.samples(fed, 0))
    assert sorted(FedMD().samples(fed, 3).tolist()) == sorted(fed.splits["public"].x.tolist())


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 6, 6)])
def test_a_public_data_set_is_resized_to_the_clients_shape(shape):
    """The embedded digits are grey, 8 x 8."""
    net = {"flatten": nn.Flatten(), "head": nn.Linear(shape[0] * shape[1] ** 2, 3)}
    fed = federation(seeded(net, 0), shape=shape)
    x = FedMD(public="digits", public_samples=7).samples(fed, 0)
    assert x.shape == (7, *shape) and x.dtype == fed.theta0.dtype
    assert 0 <= x.min() < x.max() <= 1
    assert after(FedMD(public="digits", public_samples=7), fed, 1)[0][0].local[0].isfinite().all()


def test_a_data_set_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=re.compile(r"\AFedMD: public='digits'[^\n]+\Z")):
        FedMD(public="digits").init(fed_of(), fed_of().theta0)
    with pytest.raises(ValueError, match="no_such_set"):
        FedMD(public="no_such_set").init(fed_of("cnn"), fed_of("cnn").theta0)

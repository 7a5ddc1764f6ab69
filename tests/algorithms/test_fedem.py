"""FedEM: against plain autograd, and its predictions and start."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from pfl_core import Schedule, run
from pfl_core.algorithms.fedem import FedEM
from tests.algorithms.two_nets import F64, SIZES, SOME, both_nets, fed_of, net_of
from tests.helpers import after, module_of, same_bits


def plain_losses(fed, model, theta, k):
    x, y = fed.splits["train"].client(k)
    return cross_entropy(module_of(fed, model, theta).eval()(x), y, reduction="none").detach()


def plain_component(fed, model, theta, k, t, duty):
    """Two epochs on the loss with every sample's weight [n_k]: the model, and the mean of this loss."""
    plain = module_of(fed, model, theta)
    optimizer, losses = torch.optim.SGD(plain.parameters(), 0.1), []
    for batch in fed.batches(torch.tensor([k]), t):
        each = cross_entropy(plain(batch.x[0]), batch.y[0], reduction="none")
        optimizer.zero_grad()
        weighted = duty[batch.index[0]] * each
        (weighted.sum() / len(each)).backward()
        optimizer.step()
        losses.append(weighted.detach())
    return fed.layout.flatten(dict(plain.state_dict())), torch.cat(losses).mean()


@pytest.mark.parametrize(("net", "stacked"), [("mlp", True), ("mlp", False), ("cnn", False)])
@pytest.mark.parametrize("options", [{}, {"components": 2, "client_weighting": "uniform", "lr_server": 0.6}], ids=str)
def test_rounds_against_plain_modules(net, stacked, options):
    fed, model, algorithm = fed_of(net, dtype=F64, stacked=stacked), net_of(net), FedEM(**options)
    start, num = algorithm.init(fed, fed.theta0), algorithm.components
    components, mixture = start.components, torch.full((4, num), 1 / num, dtype=F64)
    for t, (state, notes) in enumerate(after(algorithm, fed, SOME)):
        own, losses = [], []
        for k in SOME[t]:
            likely = torch.stack([plain_losses(fed, model, c, k).neg().exp() for c in components], 1) * mixture[k]
            duty = likely / likely.sum(1, keepdim=True)
            mixture[k] = duty.mean(0)
            trained = [plain_component(fed, model, c, k, t, duty[:, m]) for m, c in enumerate(components)]
            own.append(torch.stack([theta for theta, _ in trained]))
            losses.append(sum(loss for _, loss in trained))
        n = torch.tensor([SIZES[k] if algorithm.client_weighting == "samples" else 1 for k in SOME[t]], dtype=F64)
        mean = ((n / n.sum())[:, None, None] * torch.stack(own)).sum(0)
        components = components + algorithm.lr_server * (mean - components)
        torch.testing.assert_close(state.mixture, mixture, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(state.components, components, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(notes["train_loss"], torch.stack(losses).float())
        assert notes["upload"].tolist() == [num * fed.num_params] * len(SOME[t])


# ---- prediction, the start, the absent ------------------------------------------------------------------------------


@both_nets
def test_the_prediction_is_the_mixture_of_the_predictions(net):
    fed, model, algorithm = fed_of(net, dtype=F64), net_of(net), FedEM()
    state = after(algorithm, fed, 2)[-1][0]
    x = fed.splits["test"].client(2)[0]
    got = algorithm.predict(fed, state, 2, state.components[0], x)
    rows = [torch.softmax(module_of(fed, model, c).eval()(x), 1) for c in state.components]
    want = sum(p * row for p, row in zip(state.mixture[2], rows, strict=True))
    torch.testing.assert_close(got.exp(), want.detach())


@both_nets
def test_before_aggregation_a_client_is_scored_with_its_trained_components(net):
    """With one participant its components become the shared ones, so both scores are equal."""
    fed = fed_of(net, sizes=(14,))
    _, history = run(FedEM(), fed, Schedule(2))
    assert same_bits(history.series["loss"], history.series["loss_trained"])
    _, several = run(FedEM(), fed_of(net), Schedule(2))
    assert several.series["loss"] != several.series["loss_trained"]


@both_nets
def test_components_start_from_shuffled_copies(net):
    fed = fed_of(net)
    components = FedEM().init(fed, fed.theta0).components
    assert torch.equal(components[0], fed.theta0)
    for f in fed.layout.fields:
        parts = components[:, f.start : f.stop]
        assert torch.equal(parts.sort(1).values, parts[:1].sort(1).values.expand_as(parts)), f.name
        if f.kind == "weight" and f.stop - f.start > 10:
            assert not torch.equal(parts[1], parts[0]) and not torch.equal(parts[1], parts[2])


@both_nets
def test_a_novel_client_makes_one_e_step_from_equal_weights(net):
    fed, model, algorithm = fed_of(net, dtype=F64), net_of(net), FedEM()
    ((state, _),) = after(algorithm, fed, [[0, 2]])
    other = replace(state, mixture=torch.softmax(torch.arange(12, dtype=F64).view(4, 3), 1))
    adapted = algorithm.adapt(fed, other, torch.tensor([3, 1]), 0)
    for k in (3, 1):
        likely = torch.stack([plain_losses(fed, model, c, k).neg().exp() for c in state.components], 1)
        torch.testing.assert_close(adapted.mixture[k], (likely / likely.sum(1, keepdim=True)).mean(0))
    assert same_bits((adapted.components, adapted.mixture[[0, 2]]), (state.components, other.mixture[[0, 2]]))

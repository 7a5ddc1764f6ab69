"""Per-FedAvg: against plain autograd through the inner step, and how clients are scored."""

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from pfl_core import LocalTraining, Schedule, run
from pfl_core.algorithms.perfedavg import PerFedAvg
from tests.algorithms.two_nets import F64, SOME, both_nets, fed_of, net_of
from tests.helpers import after, module_of

both_orders = pytest.mark.parametrize("order", ["first_order", "hessian"])


# ---- against plain autograd -----------------------------------------------------------------------------------------


def plain_client(fed, model, theta, k, t, alpha, order):
    """Every pair through one graph: differentiated through the inner step, or with that step cut off.

    The model, and the mean of the second losses.
    """
    plain, losses = module_of(fed, model, theta), []
    for epoch in range(2):
        batches = list(fed.batches(torch.tensor([k]), t, epochs=range(epoch, epoch + 1)))
        for i in range(0, len(batches), 2):
            (x1, y1), (x2, y2) = ((b.x[0], b.y[0]) for b in (batches[i], batches[min(i + 1, len(batches) - 1)]))
            params = dict(plain.named_parameters())
            aside = {n: v.clone() for n, v in plain.named_buffers()}  # the first pass moves no statistics
            first = cross_entropy(functional_call(plain, {**params, **aside}, x1), y1)
            gradients = torch.autograd.grad(first, list(params.values()), create_graph=order == "hessian")
            ahead = {n: p - alpha * g for (n, p), g in zip(params.items(), gradients, strict=True)}
            second = cross_entropy(functional_call(plain, ahead, x2), y2)
            outer = torch.autograd.grad(second, list(params.values()))
            with torch.no_grad():
                for p, g in zip(params.values(), outer, strict=True):
                    p -= 0.1 * g
            losses += [second.detach()] * len(y2)
    return fed.layout.flatten(dict(plain.state_dict())), torch.stack(losses).mean()


@pytest.mark.parametrize(("net", "stacked"), [("mlp", True), ("mlp", False), ("cnn", False)])
@both_orders
@pytest.mark.parametrize("alpha", [None, 0.4])
def test_rounds_against_plain_modules(net, stacked, order, alpha):
    """Clients of 3, 3, 4 and 1 batches: with a whole pair and a half, with two pairs, with half a pair."""
    sizes = (12, 9, 14, 3)
    fed, model = fed_of(net, sizes=sizes, dtype=F64, stacked=stacked), net_of(net)
    theta = fed.theta0
    for t, (state, notes) in enumerate(after(PerFedAvg(alpha=alpha, order=order), fed, SOME)):
        clients = [plain_client(fed, model, theta, k, t, 0.1 if alpha is None else alpha, order) for k in SOME[t]]
        rows, losses = zip(*clients, strict=True)
        n = torch.tensor([float(sizes[k]) for k in SOME[t]], dtype=F64)
        theta = (n / n.sum()) @ torch.stack(rows)
        torch.testing.assert_close(state.shared, theta, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(notes["train_loss"], torch.stack(losses).float())
        assert notes["upload"].tolist() == [fed.num_params] * len(SOME[t])


@both_nets
def test_momentum_applies_to_the_outer_steps_only(net):
    """Against plain SGD with momentum and weight decay on every second batch, since alpha is 0."""
    fed, model = fed_of(net, sizes=(16, 8), dtype=F64, epochs=1, momentum=0.9, weight_decay=0.01), net_of(net)
    ((state, _),) = after(PerFedAvg(alpha=0.0, client_weighting="uniform"), fed, 1)
    rows = []
    for k in range(2):
        plain = module_of(fed, model, fed.theta0)
        optimizer = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
        for batch in list(fed.batches(torch.tensor([k]), 0))[1::2]:
            optimizer.zero_grad()
            cross_entropy(plain(batch.x[0]), batch.y[0]).backward()
            optimizer.step()
        rows.append(fed.layout.flatten(dict(plain.state_dict())))
    torch.testing.assert_close(state.shared, torch.stack(rows).mean(0), rtol=1e-6, atol=1e-8)


# ---- scores, chunks, settings ---------------------------------------------------------------------------------------


@both_nets
def test_clients_are_scored_after_one_step_on_one_batch(net):
    fed, model, algorithm = fed_of(net, dtype=F64), net_of(net), PerFedAvg(alpha=0.3)
    ((state, _),) = after(algorithm, fed, 1)
    rows = algorithm.evaluation_models(fed, state, torch.tensor([2, 0]), 5)
    for row, k in zip(rows, (2, 0), strict=True):
        plain, batch = module_of(fed, model, state.shared), next(fed.batches(torch.tensor([k]), (5, "adapt")))
        optimizer = torch.optim.SGD(plain.parameters(), 0.3)
        cross_entropy(plain(batch.x[0]), batch.y[0]).backward()
        optimizer.step()
        torch.testing.assert_close(row, fed.layout.flatten(dict(plain.state_dict())))


def test_the_step_before_a_score_is_the_one_of_the_training():
    """No clipping and no weight decay: the inner step of the training has none."""
    plain, bounded = (fed_of("mlp", dtype=F64, **options) for options in ({}, {"clip_norm": 1e-3, "weight_decay": 0.1}))
    ((state, _),) = after(PerFedAvg(alpha=0.3), plain, 1)
    clients = torch.tensor([2, 0])
    rows = [PerFedAvg(alpha=0.3).evaluation_models(fed, state, clients, 5) for fed in (plain, bounded)]
    assert torch.equal(*rows) and not torch.equal(rows[0], plain.broadcast(state.shared, clients))


@both_nets
def test_clients_are_scored_after_one_epoch_with_that_option(net):
    fed, algorithm = fed_of(net), PerFedAvg(adaptation="epoch")
    ((state, _),) = after(algorithm, fed, 1)
    clients = torch.tensor([3, 1])
    want = fed.sgd(fed.broadcast(state.shared, clients), clients, LocalTraining(epochs=1), key=(2, "adapt")).theta
    assert torch.equal(algorithm.evaluation_models(fed, state, clients, 2), want)
    _, history = run(algorithm, fed, Schedule(2))
    assert history.series["correct"][1] != history.series["correct_trained"][1]


def test_chunks_change_second_derivatives_only_by_rounding(one_by_one):
    """They are batched over clients, and some processors multiply a batch of matrices in another order than one."""
    algorithm, fed = PerFedAvg(order="hessian"), fed_of(dtype=torch.float64)
    whole, _ = run(algorithm, fed, Schedule(2, participation=0.5))
    one_by_one()
    parts, _ = run(algorithm, fed, Schedule(2, participation=0.5))
    torch.testing.assert_close(whole.shared, parts.shared, rtol=1e-9, atol=1e-12)

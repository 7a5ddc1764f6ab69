"""Ditto: in plain PyTorch, and with lam = 0 FedAvg and Local side by side."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from pfl_core import LocalTraining, Schedule, run
from pfl_core.algorithms.ditto import Ditto
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.local import Local
from tests.algorithms.two_nets import F64, both_nets, fed_of, net_of
from tests.helpers import after, module_of, plain_sgd, same_bits

# ---- lam = 0 --------------------------------------------------------------------------------------------------------


@both_nets
@pytest.mark.parametrize("training", [{}, {"momentum": 0.9, "weight_decay": 0.01}], ids=str)
def test_without_lam_it_is_fedavg_and_local_side_by_side(net, training):
    """Bitwise, including absent clients and batch-norm statistics."""
    fed, chosen = fed_of(net, **training), [[0, 1, 2, 3], [3, 1], [2, 1, 0]]
    options = {"client_weighting": "samples", "lr_server": 0.7}
    runs = (after(algorithm, fed, chosen) for algorithm in (Ditto(**options, lam=0.0), FedAvg(**options), Local()))
    for (state, notes), (shared, _), (local, of_local) in zip(*runs, strict=True):
        assert torch.equal(state.shared, shared.shared)
        assert torch.equal(torch.stack(state.local), local.local)
        assert torch.equal(notes["train_loss"], of_local["train_loss"])


@both_nets
def test_scores_are_those_of_the_personal_models(net):
    """Before and after aggregation, equal to Local's scores; never those of the averaged model."""
    fed = fed_of(net)
    _, history = run(Ditto(lam=0.0), fed, Schedule(3))
    _, of_local = run(Local(), fed, Schedule(3))
    for metric in ("correct", "loss", "correct_trained", "loss_trained"):
        assert same_bits(history.series[metric], of_local.series[metric]), metric


# ---- the pull -------------------------------------------------------------------------------------------------------


def plain_pulled(fed, model, v, anchor, k, t, lam, epochs):
    """Steps on cross-entropy plus lam / 2 |v - anchor|^2, written as a loss: the model, and the mean cross-entropy."""
    plain, still = module_of(fed, model, v), dict(module_of(fed, model, anchor).named_parameters())
    optimizer, losses = torch.optim.SGD(plain.parameters(), lr=0.1), []
    for batch in fed.batches(torch.tensor([k]), t, epochs=epochs):
        apart = sum((p - still[name].detach()).square().sum() for name, p in plain.named_parameters())
        optimizer.zero_grad()
        loss = cross_entropy(plain(batch.x[0]), batch.y[0])
        (loss + lam / 2 * apart).backward()
        optimizer.step()
        losses += [loss.detach()] * len(batch.y[0])
    return fed.layout.flatten(dict(plain.state_dict())), torch.stack(losses).mean()


@both_nets
@pytest.mark.parametrize("personal_epochs", [None, 1, 3])
def test_rounds_against_plain_modules(net, personal_epochs):
    """The anchor is the model at the start of the round; v_k persists; absent clients keep theirs."""
    model, fed = net_of(net), fed_of(net, sizes=(12, 8, 20), dtype=F64)
    v, theta, chosen = fed.theta0.repeat(3, 1), fed.theta0, [[0, 1, 2], [2, 0], [1, 2]]
    rounds = after(Ditto(lam=0.5, personal_epochs=personal_epochs), fed, chosen)
    for t, (state, notes) in enumerate(rounds):
        losses = []
        for k in chosen[t]:
            v[k], loss = plain_pulled(fed, model, v[k], theta, k, t, 0.5, personal_epochs or 2)
            losses.append(loss)
        theta = torch.stack([plain_sgd(fed, model, theta, k, t, lr=0.1, epochs=2)[0] for k in chosen[t]]).mean(0)
        torch.testing.assert_close(torch.stack(state.local), v)
        torch.testing.assert_close(state.shared, theta)
        torch.testing.assert_close(notes["train_loss"], torch.stack(losses).float())
        assert notes["upload"].tolist() == [fed.num_params] * len(chosen[t])
        assert notes["passes"] == 2 + (personal_epochs or 2)


# ---- who is not there, memory, settings -----------------------------------------------------------------------------


@both_nets
def test_a_novel_clients_model_starts_from_the_shared_one(net):
    fed, novel, algorithm = fed_of(net), torch.tensor([3, 1]), Ditto(lam=0.0, personal_epochs=3)
    ((state, _),) = after(algorithm, fed, [[0, 2]])
    adapted = algorithm.adapt(fed, state, novel, 0)
    want = fed.sgd(fed.broadcast(state.shared, novel), novel, LocalTraining(epochs=3), key=(0, "adapt")).theta
    assert torch.equal(algorithm.evaluation_models(fed, adapted, novel, 0), want)
    assert same_bits((adapted.shared, adapted.local[0], adapted.local[2]), (state.shared, *state.local[::2]))
    pulled = replace(algorithm, lam=2.0).adapt(fed, state, novel, 0)
    near, far = ((torch.stack(s.local)[novel] - state.shared).norm() for s in (pulled, adapted))
    assert 0 < near < far


def test_clients_models_share_no_memory():
    fed = fed_of("cnn")
    (state, _), *_ = after(Ditto(), fed, [[0, 1, 3]])
    assert all(row.untyped_storage().nbytes() == 4 * fed.num_entries for row in state.local)

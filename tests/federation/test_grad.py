"""A hand-written loop reproduces sgd; Hessian products equal finite differences of the gradient."""

import pytest
import torch

from pfl_core import LocalTraining
from tests.helpers import cnn, everyone, federation, mlp, module_of, some_rows

F64 = torch.float64


@pytest.mark.parametrize("bn", [False, True], ids=["no norm", "batch norm"])
def test_groups_batches_and_grad_reproduce_sgd(bn):
    fed = federation(cnn(bn), shape=(1, 4, 4), dtype=F64)
    clients = torch.tensor([2, 0, 3])
    start = some_rows(fed, clients)
    theta, losses = start.clone(), torch.zeros(3, dtype=F64)
    covered = []
    for rows in fed.groups(clients):
        covered += clients[rows].tolist()
        for batch in fed.batches(clients[rows], (4, "a"), epochs=2):
            got = fed.grad(theta[rows], batch)
            theta[rows, : fed.num_params] -= 0.1 * got.theta
            theta[rows, fed.num_params :] = got.statistics
            losses[rows] += got.loss * batch.y.shape[1]
    out = fed.sgd(start, clients, LocalTraining(epochs=2), key=(4, "a"))
    assert covered == clients.tolist()
    torch.testing.assert_close(theta, out.theta, rtol=1e-7, atol=1e-8)
    seen = 2 * fed.splits["train"].sizes[clients]
    torch.testing.assert_close(losses / seen, out.loss.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("stacked", [True, False])
def test_grad_takes_a_group(stacked):
    from pfl_core.federation import Batch

    fed = federation(mlp(), sizes=(8, 8), dtype=F64, stacked=stacked)
    parts = [next(fed.batches(torch.tensor([k]), 0)) for k in range(2)]
    joined = (torch.cat([getattr(p, name) for p in parts]) for name in ("x", "y", "index", "clients"))
    both = Batch(*joined, parts[0].count + parts[1].count, torch.cat([p.weight for p in parts]))
    theta = some_rows(fed, torch.arange(2))
    if not stacked:
        with pytest.raises(ValueError, match="2 rows at once"):
            fed.grad(theta, both)
        return
    alone = [fed.grad(theta[s : s + 1].clone(), part) for s, part in enumerate(parts)]
    got = fed.grad(theta.clone(), both)
    assert got.theta.shape == (2, fed.num_params)
    assert got.loss.shape == (2,)
    for name in ("theta", "loss", "statistics"):
        torch.testing.assert_close(getattr(got, name), torch.cat([getattr(a, name) for a in alone]))


def test_grad_returns_the_plain_gradient_and_the_new_statistics():
    model = mlp(bn=True)
    fed = federation(model, dtype=F64)
    theta = some_rows(fed, torch.arange(1))
    kept, d = theta.clone(), fed.num_params
    batch = next(fed.batches(torch.tensor([0]), 0))
    got = fed.grad(theta, batch)
    plain = module_of(fed, model, kept[0])
    value = torch.nn.functional.cross_entropy(plain(batch.x[0]), batch.y[0])
    value.backward()
    torch.testing.assert_close(got.theta[0], torch.cat([p.grad.flatten() for p in plain.parameters()]))
    torch.testing.assert_close(got.loss[0], value.detach())
    torch.testing.assert_close(got.statistics[0], fed.layout.flatten(dict(plain.state_dict()))[d:])
    assert not torch.equal(got.statistics, kept[:, d:])
    assert got.variables is None
    assert torch.equal(fed.grad(theta, batch, norm_mode="eval").statistics, kept[:, d:])
    assert torch.equal(theta, kept)


@pytest.mark.parametrize("stacked", [True, False])
def test_without_copy_the_next_gradient_overwrites_this_one(stacked):
    fed = federation(mlp(), stacked=stacked)
    batch = next(fed.batches(torch.tensor([0]), 0))
    kept = fed.grad(fed.theta0[None], batch).theta
    first = fed.grad(fed.theta0[None], batch, copy=False).theta
    assert torch.equal(first, kept)
    second = fed.grad(2 * fed.theta0[None], batch, copy=False).theta
    assert second.data_ptr() == first.data_ptr()
    assert not torch.equal(second, kept)


@pytest.mark.parametrize("stacked", [True, False])
def test_results_that_are_not_requested_are_none(stacked):
    fed = federation(mlp(), stacked=stacked)
    batch = next(fed.batches(torch.tensor([0]), 0))
    for of in (("theta",), ("gates",), ("loss", "theta"), ("loss", "gates")):
        got = fed.grad(fed.theta0[None], batch, gates=torch.ones(1, 5), of=of)
        assert {name for name in ("loss", "theta", "gates") if getattr(got, name) is not None} == set(of)


@pytest.mark.parametrize("bn", [False, True], ids=["no norm", "batch norm"])
def test_hessian_products_are_finite_differences_of_the_gradient(bn):
    fed = federation(cnn(bn), shape=(1, 4, 4), dtype=F64, batch_size=6)
    clients, d, step = torch.tensor([0]), fed.num_params, 1e-6
    theta = some_rows(fed, clients)
    batch = next(fed.batches(clients, 0))
    vector = torch.randn(1, d, generator=torch.Generator().manual_seed(1), dtype=F64)
    kept = theta.clone()
    got = fed.hessian_product(theta, batch, vector)
    assert torch.equal(theta, kept)  # statistics too
    ends = []
    for sign in (1, -1):
        moved = theta.clone()
        moved[:, :d] += sign * step * vector
        ends.append(fed.grad(moved, batch).theta)
    torch.testing.assert_close(got, (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-7)
    assert got.abs().max() > 0.01


def test_hessian_products_after_training_with_a_mask():
    """Training computes no gradients of frozen tensors; the next operation must compute them again."""
    fed = federation(mlp(), dtype=F64)
    clients = torch.tensor([0])
    batch = next(fed.batches(clients, 0))
    vector = torch.ones(1, fed.num_params, dtype=F64)
    want = fed.hessian_product(fed.theta0[None], batch, vector)
    slope = fed.grad(fed.theta0[None], batch).theta
    head = fed.layout.mask(fed.layout.in_head)
    fed.sgd(fed.theta0[None], clients, LocalTraining(trainable=head), key=0)
    assert torch.equal(fed.hessian_product(fed.theta0[None], batch, vector), want)
    fed.grad(fed.theta0[None], batch, of=["gates"], gates=torch.ones(1, 5, dtype=F64))
    assert torch.equal(fed.grad(fed.theta0[None], batch).theta, slope)


def test_properties_of_a_federation():
    fed = federation(sizes=(12, 9), batch_size=4)
    assert (fed.num_clients, fed.num_params, fed.num_entries) == (2, 53, 53)
    assert fed.num_train.tolist() == [12.0, 9.0]
    assert fed.num_train.dtype == fed.theta0.dtype
    assert torch.equal(fed.labels(1), fed.splits["train"].client(1)[1])
    assert fed.labels(1, "test").shape == (8,)
    assert [fed.num_steps(k, epochs) for k in (0, 1) for epochs in (0, 1, 2)] == [0, 3, 6, 0, 3, 6]
    rows = fed.broadcast(fed.theta0, everyone(fed))
    assert rows.shape == (2, 53)
    assert rows.data_ptr() == fed.theta0.data_ptr()

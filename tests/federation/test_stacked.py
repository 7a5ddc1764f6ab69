"""The batched backend gives the same results as training row by row."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

from pfl_core import models
from pfl_core.federation import DerivedWeights, Federation, LocalTraining
from pfl_core.layout import Layout
from pfl_core.seeding import generator
from tests.helpers import federation, some_rows

F64 = torch.float64
RAGGED = (12, 9, 14, 3)
NETWORKS = {
    "dense": ((6,), lambda: models.build("mlp", (6,), 3, 0, hidden=(7, 5))),
    "linear": ((6,), lambda: models.build("linear", (6,), 3, 0)),
    "images, dense": ((1, 4, 4), lambda: models.build("mlp", (1, 4, 4), 3, 0, hidden=(7,))),
    "conv": ((2, 9, 9), lambda: models.build("cnn_small", (2, 9, 9), 3, 0)),  # odd: the pool leaves a border out
}


def both(network: str, sizes=RAGGED, **training) -> tuple[Federation, Federation]:
    shape, build = NETWORKS[network]
    made = (federation(build(), sizes, shape=shape, dtype=F64, stacked=s, **training) for s in (True, False))
    return tuple(made)


def close(a, b) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def same(together, alone) -> None:
    for name in ("theta", "velocity", "variables", "velocity_variables"):
        close(getattr(together, name), getattr(alone, name))
    torch.testing.assert_close(together.loss, alone.loss, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert torch.equal(together.steps, alone.steps)


def scaled(theta, variables, x, s):
    return theta * (1 + variables.sum()) + 0.01 * s + 0 * x.sum()


def contrast(output):
    away = cosine_similarity(output.features, torch.ones_like(output.features), dim=1).mean()
    return cross_entropy(output.logits, output.labels) + 0.3 * away + output.row * output.logits.pow(2).mean()


OPTIONS = {
    "plain": ({}, {}),
    "epochs": ({"epochs": 3}, {}),
    "momentum": ({"momentum": 0.9}, {}),
    "decay and clipping": ({"weight_decay": 0.1, "clip_norm": 0.05}, {}),
    "smallest batch": ({}, {"smallest_batch": 2}),
    "a rate for each row": ({}, {"lr": torch.tensor([0.1, 0.0, 0.2, 0.05])}),
    "gradient hook": ({}, {"gradient": lambda g, theta, s: g + 0.1 * (s + 1) * theta}),
    "loss hook": ({}, {"loss": contrast}),
    "nothing to do": ({"epochs": 0}, {}),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("network", NETWORKS)
def test_stacked_rows_train_as_single_ones(network, name):
    training, how = OPTIONS[name]
    together, alone = both(network, **training)
    clients = torch.tensor([2, 0, 3, 1])  # sizes 14, 12, 3, 9: not in order
    theta = some_rows(together, clients)
    same(*(fed.sgd(theta, clients, LocalTraining(**how), key=(1, "a")) for fed in (together, alone)))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("network", ["dense", "conv"])
def test_variables_and_velocities(network, momentum):
    together, alone = both(network, momentum=momentum)
    clients = torch.tensor([1, 2, 0])
    theta, variables = some_rows(together, clients), torch.tensor([[0.1, 0.2], [0.0, -0.1], [0.3, 0.0]], dtype=F64)
    velocity = torch.full((3, together.num_params), 0.01, dtype=F64)
    training = LocalTraining(weights=DerivedWeights(scaled, variables, 0.03, torch.ones_like(variables)))
    same(*(fed.sgd(theta, clients, training, key=0, velocity=velocity) for fed in (together, alone)))


@pytest.mark.parametrize("what", ["head", "body", "nothing", "entries"])
@pytest.mark.parametrize("network", ["dense", "conv"])
def test_trainable_masks(network, what):
    together, alone = both(network, momentum=0.5, weight_decay=0.1)
    clients = torch.arange(4)
    head = together.layout.mask(together.layout.in_head)
    entries = torch.rand(4, len(head), generator=torch.Generator().manual_seed(0)) < 0.3
    mask = {"head": head, "body": ~head, "nothing": head & ~head, "entries": entries}[what]
    theta = some_rows(together, clients)
    out = [fed.sgd(theta, clients, LocalTraining(trainable=mask), key=0) for fed in (together, alone)]
    same(*out)
    frozen = ~mask.expand(4, -1)
    assert torch.equal(out[0].theta[frozen], theta[frozen])


def test_repeated_clients_and_other_data():
    together, alone = both("dense")
    clients = torch.tensor([1, 1, 3])
    theta = some_rows(together, clients)
    same(*(fed.sgd(theta, clients, key=0) for fed in (together, alone)))
    stream = generator(0, "other data")
    data = [(torch.randn(n, 6, dtype=F64, generator=stream), torch.arange(n) % 3) for n in (2, 11, 5)]
    same(*(fed.sgd(theta, clients, key=0, data=data) for fed in (together, alone)))


@pytest.mark.parametrize("of", [("loss", "theta"), ("loss", "gates"), ("loss", "theta", "gates")])
@pytest.mark.parametrize("kind", ["mask", "0 and 1", "real"])
@pytest.mark.parametrize("network", ["dense", "conv"])
def test_gates_and_their_gradients(network, kind, of):
    """Every group of every batch; unselected neurons have gradients of their gates too."""
    together, alone = both(network)
    clients = torch.arange(4)
    theta, h = some_rows(together, clients), together.layout.chain.num_neurons
    numbers = torch.rand(4, h, generator=torch.Generator().manual_seed(0), dtype=F64)
    gates = {"mask": numbers < 0.6, "0 and 1": (numbers < 0.6).double(), "real": 2 * numbers - 0.5}[kind]
    (rows,) = together.groups(clients)
    firsts = [next(alone.batches(clients[k : k + 1], 0)) for k in range(4)]
    one = [alone.grad(theta[k : k + 1], b, gates=gates[k : k + 1], of=of) for k, b in enumerate(firsts)]
    got = together.grad(theta[rows], next(together.batches(clients[rows], 0)), gates=gates[rows], of=of)
    order = torch.arange(4)[rows].tolist()
    close(got.loss, torch.cat([one[k].loss for k in order]))
    for name in ("theta", "gates"):
        if name in of:
            close(getattr(got, name), torch.cat([getattr(one[k], name) for k in order]))
        else:
            assert getattr(got, name) is None
    assert "gates" not in of or kind == "real" or (got.gates[gates[rows] == 0] != 0).any()


def test_a_group_runs_out_of_batches_from_its_end():
    fed = both("dense")[0]  # 12, 9, 14 and 3 samples in batches of 4
    (rows,) = fed.groups(torch.arange(4))
    assert rows.tolist() == [2, 0, 1, 3]
    batches = list(fed.batches(rows, 0))
    assert [b.count for b in batches] == [(4, 4, 4, 3), (4, 4, 4), (4, 4, 1), (2,)]
    seen = {k: [] for k in range(4)}
    for batch in batches:
        for r, (k, n) in enumerate(zip(batch.clients.tolist(), batch.count, strict=True)):
            seen[k] += batch.index[r, :n].tolist()
            x, y = fed.splits["train"].client(k)
            assert torch.equal(batch.x[r, :n], x[batch.index[r, :n]])
            assert torch.equal(batch.y[r, :n], y[batch.index[r, :n]])
    assert {k: sorted(v) for k, v in seen.items()} == {k: list(range(n)) for k, n in enumerate(RAGGED)}
    with pytest.raises(ValueError, match="are not a group"):
        next(fed.batches(torch.arange(4), 0))


def test_other_rows_of_a_group_do_not_change_a_row():
    """A row's result is bitwise independent of the group; the arguments are not modified."""
    fed = both("dense")[0]
    clients = torch.arange(4)
    theta = some_rows(fed, clients)
    kept = theta.clone()
    every = fed.sgd(theta, clients, key=0).theta
    some = fed.sgd(theta[[3, 1]], clients[[3, 1]], key=0).theta
    assert torch.equal(some, every[[3, 1]])
    assert torch.equal(theta, kept)


def test_a_broadcast_row_and_other_rows_at_the_same_address():
    """Views are reused between calls, but not for another stride at the same address."""
    fed = both("dense", sizes=(8, 8))[0]
    theta = some_rows(fed, torch.arange(2))
    batch = next(fed.batches(torch.arange(2), 0))
    fed.grad(theta, batch)
    close(fed.grad(theta[:1].expand(2, -1), batch).theta, fed.grad(theta[:1].repeat(2, 1), batch).theta)


def test_the_backend_depends_on_network_device_and_training():
    def suits(model: nn.Module, device: str = "cpu") -> bool:
        return BatchedBackend.suits(model, Layout.of(model), device)

    from pfl_core.federation.batched_backend import BatchedBackend

    dense, conv = (NETWORKS[name][1]() for name in ("dense", "conv"))
    assert suits(dense)
    assert not suits(conv)
    assert suits(conv, "cuda")
    assert not suits(models.build("lenet_star", (1, 28, 28), 3, 0), "cuda")  # batch norm
    assert not suits(models.build("resnet18", (3, 32, 32), 3, 0), "cuda")
    odd = OrderedDict(conv1=nn.Conv2d(1, 2, 3), relu1=nn.ReLU(), pool1=nn.MaxPool2d(3, stride=1), flatten=nn.Flatten())
    assert not suits(nn.Sequential(odd | {"head": nn.Linear(2, 2)}), "cuda")
    assert not suits(nn.Sequential(OrderedDict(fc1=nn.Linear(4, 3), act=nn.Tanh(), head=nn.Linear(3, 2))))
    assert not suits(nn.Sequential(OrderedDict(fc1=nn.Linear(4, 3, bias=False), relu1=nn.ReLU(), head=nn.Linear(3, 2))))


def test_an_unsupported_network_is_refused_and_not_trained_wrongly():
    """The batched backend would leave out a layer that it does not know."""
    tanh = nn.Sequential(OrderedDict(fc1=nn.Linear(6, 3), act=nn.Tanh(), head=nn.Linear(3, 3)))
    with pytest.raises(ValueError, match="batched=True needs a plain chain"):
        federation(tanh, RAGGED, shape=(6,), dtype=F64, stacked=True)
    assert not federation(tanh, RAGGED, shape=(6,), dtype=F64, stacked=None).batched

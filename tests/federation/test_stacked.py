"""The batched backend gives the same results as training row by row."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

from pfl_core import models
from pfl_core.federation import DerivedWeights, Federation, LocalTraining
from pfl_core.federation.batched_backend import BatchedBackend
from pfl_core.layout import Layout
from pfl_core.seeding import generator
from tests.helpers import federation, samples, some_rows

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


def some_entries(fed):
    return torch.rand(fed.num_entries, generator=generator(0, "entries")) < 0.3


LOCAL = {  # what differs between methods: options of LocalTraining for this federation and number of rows
    "plain": lambda fed, rows: {},
    "smallest batch": lambda fed, rows: {"smallest_batch": 2},
    "a rate for each row": lambda fed, rows: {"lr": torch.linspace(0, 0.2, rows)},
    "gradient hook": lambda fed, rows: {"gradient": lambda g, theta, s: g + 0.1 * (s + 1) * theta},
    "loss hook": lambda fed, rows: {"loss": contrast},
    "the head alone": lambda fed, rows: {"trainable": fed.layout.mask(fed.layout.in_head)},
    "the body alone": lambda fed, rows: {"trainable": ~fed.layout.mask(fed.layout.in_head)},
    "nothing": lambda fed, rows: {"trainable": torch.zeros(fed.num_entries, dtype=torch.bool)},
    "some entries": lambda fed, rows: {"trainable": some_entries(fed).expand(rows, -1)},
    "variables": lambda fed, rows: {"weights": variables(rows)},
}


def variables(rows):
    start = torch.linspace(-0.1, 0.3, 2 * rows, dtype=F64).view(rows, 2)
    return DerivedWeights(scaled, start, 0.003, torch.full_like(start, 0.1))


TRAINING = st.fixed_dictionaries(
    {
        "epochs": st.integers(0, 3),
        "momentum": st.sampled_from([0.0, 0.9]),
        "weight_decay": st.sampled_from([0.0, 0.1]),
        "clip_norm": st.sampled_from([None, 0.05]),
    }
)


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("network", NETWORKS)
@settings(max_examples=2, phases=(Phase.generate,))
@given(
    training=TRAINING,
    clients=st.lists(st.integers(0, 3), min_size=1, max_size=4).map(torch.tensor),
    moving=st.booleans(),
    lent=st.booleans(),
)
def test_batched_rows_train_as_single_ones(network, name, training, clients, moving, lent):
    """In any order, with repeated clients, velocities, and data of others; frozen entries do not move by one bit."""
    together, alone = both(network, **training)
    theta, shape = some_rows(together, clients), NETWORKS[network][0]
    options = LOCAL[name](together, len(clients))
    velocity = torch.full((len(clients), together.num_params), 0.01, dtype=F64) if moving else None
    data = [samples(2 + 3 * k, shape, key=50 + k) for k in range(len(clients))] if lent else "train"
    how = {"key": (1, "a"), "velocity": velocity, "data": data}
    out = [fed.sgd(theta, clients, LocalTraining(**options), **how) for fed in (together, alone)]
    same(*out)
    if "trainable" in options:
        frozen = ~options["trainable"].expand(len(clients), -1)
        assert torch.equal(out[0].theta[frozen], theta[frozen])


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


def suits(model: nn.Module, device: str = "cpu") -> bool:
    return BatchedBackend.suits(model, Layout.of(model), device)


def test_the_backend_depends_on_network_device_and_training():
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


def test_convolutions_padded_by_name_and_dense_layers_along_an_axis_train_one_by_one():
    """The batched backend has no such layers."""
    same = OrderedDict(conv1=nn.Conv2d(1, 2, 3, padding="same"), relu1=nn.ReLU(), flatten=nn.Flatten())
    assert not suits(nn.Sequential(same | {"head": nn.Linear(32, 3)}), "cuda")
    along = OrderedDict(fc1=nn.Linear(4, 5), relu1=nn.ReLU(), flatten=nn.Flatten(), head=nn.Linear(20, 3))
    after = OrderedDict(conv1=nn.Conv2d(1, 3, 3, padding=1), relu1=nn.ReLU(), fc1=nn.Linear(4, 2), relu2=nn.ReLU())
    after |= {"flatten": nn.Flatten(), "head": nn.Linear(24, 3)}
    for layers in (along, after):
        fed = federation(nn.Sequential(layers), shape=(1, 4, 4))
        assert not fed.batched and fed.layout.chain is None
        assert fed.sgd(fed.theta0.repeat(2, 1), torch.tensor([0, 1]), key=0).loss.isfinite().all()


def test_an_unsupported_network_is_refused_and_not_trained_wrongly():
    """The batched backend would leave out a layer that it does not know."""
    tanh = nn.Sequential(OrderedDict(fc1=nn.Linear(6, 3), act=nn.Tanh(), head=nn.Linear(3, 3)))
    with pytest.raises(ValueError, match="batched=True needs a plain chain"):
        federation(tanh, RAGGED, shape=(6,), dtype=F64, stacked=True)
    assert not federation(tanh, RAGGED, shape=(6,), dtype=F64, stacked=None).batched

"""Client momentum: against torch optimizers that persist over rounds, and in every method that offers it."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from pfl_core.algorithm import build, methods
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.algorithms.momentum import Momentum
from pfl_core.algorithms.partial import FedRep
from pfl_core.federation import federation as federations
from tests.helpers import federation, mlp, same_bits

F64, SIZES = torch.float64, (6, 9, 4)
OPTIONS = {  # where the defaults do not fit the tiny federation, or a single client
    "ditto": {"lam": 0.0},
    "fedem": {"components": 1},
    "fedmask": {"layers": 2, "lr_mask": 0.5},
    "fedmd": {"public": "train", "digest_epochs": 0},
    "fedprox": {"mu": 0.0},
    "heterofl": {"full_share": 1.0},
    "lg_fedavg": {"shared_layers": 1},
}
REFUSED = ("fedpac", "pfedme", "scaffold")
KEEPERS = sorted({name for name, entry in methods().items() if issubclass(entry.cls, Momentum)} - {*REFUSED})
# Whose rounds go on where the last one ended, when there is one client: no alternating, no drift of its own
ONE_WAY = sorted({*KEEPERS} - {"fedrep", "moon"})


def trained(algorithm, fed, rounds=3, clients=(0, 1, 2)):
    state = algorithm.init(fed, fed.theta0)
    for t in range(rounds):
        state, _ = algorithm.round(fed, state, torch.tensor(clients), t)
    return state


def made(name, **options):
    return build(name, OPTIONS.get(name, {}) | options)


def without_velocity(state):
    return {name: value for name, value in vars(state).items() if name != "velocity"}


# ---- beside optimizers that live on ---------------------------------------------------------------------------------


def living(shared):
    """A network and a persistent optimizer for each client."""
    nets = [copy.deepcopy(shared) for _ in SIZES]
    return nets, [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01) for net in nets]


def whole_batches(fed, k, net, optimizer, epochs):
    x, y = fed.splits["train"].client(k)
    for _ in range(epochs):
        optimizer.zero_grad()
        cross_entropy(net(x.to(F64)), y).backward()
        optimizer.step()


def flat(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def fed_of(stacked=None, **training):
    return federation(
        mlp(), SIZES, dtype=F64, stacked=stacked, momentum=0.9, weight_decay=0.01, batch_size=16, **training
    )


@pytest.mark.parametrize("stacked", [False, True])
def test_fedavg(stacked):
    fed, shared = fed_of(stacked, epochs=2), mlp().to(F64)
    nets, optimizers = living(shared)
    for _ in range(3):
        for k, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
            net.load_state_dict(shared.state_dict())
            whole_batches(fed, k, net, optimizer, 2)
        mean = [torch.stack(p).mean(0) for p in zip(*(net.parameters() for net in nets), strict=True)]
        for p, value in zip(shared.parameters(), mean, strict=True):
            p.data = value.detach()
    torch.testing.assert_close(trained(FedAvg(keep_momentum=True), fed).shared, flat(shared))
    assert not torch.allclose(trained(FedAvg(), fed).shared, flat(shared))


@pytest.mark.parametrize("stacked", [False, True])
def test_fedrep_keeps_the_momentum_of_the_frozen_part(stacked):
    """What is frozen keeps its momentum as it is: torch's optimizers leave out parameters without a gradient."""
    fed, shared = fed_of(stacked), mlp().to(F64)
    nets, optimizers = living(shared)
    algorithm = FedRep(keep_momentum=True)
    for _ in range(3):
        for k, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
            net.fc1.load_state_dict(shared.fc1.state_dict())
            for part, epochs in ((net.head, 2), (net.fc1, 1)):
                for p in net.parameters():
                    p.requires_grad_(any(p is q for q in part.parameters()))
                    p.grad = None
                whole_batches(fed, k, net, optimizer, epochs)
        mean = [torch.stack(p).mean(0) for p in zip(*(net.fc1.parameters() for net in nets), strict=True)]
        for p, value in zip(shared.fc1.parameters(), mean, strict=True):
            p.data = value.detach()
    state = trained(algorithm, fed)
    body = slice(0, sum(p.numel() for p in shared.fc1.parameters()))
    torch.testing.assert_close(state.shared[body], flat(shared.fc1))
    for k, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
        torch.testing.assert_close(state.own[k], flat(net.head))
        buffers = torch.cat([optimizer.state[p]["momentum_buffer"].flatten() for p in net.parameters()])
        torch.testing.assert_close(state.velocity[k], buffers)


# ---- in every method that has it ------------------------------------------------------------------------------------


def test_methods_with_client_momentum():
    released = {"fedavg", "fedavg_ft", "local", "fedem"}
    assert {*KEEPERS} >= released | {"ditto", "fedrep", "lg_fedavg", "heterofl", "fedmask", "fedmd", "perfedavg"}


@pytest.mark.parametrize("name", REFUSED)
def test_methods_without_momentum_refuse_it(name):
    with pytest.raises(ValueError, match="leave keep_momentum out"):
        build(name, {"keep_momentum": True})


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", ONE_WAY)
def test_with_one_client_n_rounds_equal_n_epochs(name, stacked):
    """One batch holds all samples, so epochs differ only in the order of a sum."""
    training = {"momentum": 0.9, "batch_size": 16, "weight_decay": 0.01, "dtype": F64, "stacked": stacked}
    long = trained(made(name), federation(mlp(), (9,), epochs=3, **training), rounds=1, clients=(0,))
    for keep in (True, False):
        short = trained(made(name, keep_momentum=keep), federation(mlp(), (9,), **training), clients=(0,))
        assert closely(short, long) == keep


def closely(one, other):
    """Whether two states have close models (close mask scores for FedMask)."""
    for name in ("shared", "local", "own", "components", "scores"):
        mine, theirs = getattr(one, name, None), getattr(other, name, None)
        if mine is not None and len(mine):
            rows = [torch.stack(tuple(x)) for x in (mine, theirs)]
            if not torch.allclose(*rows, rtol=1e-6, atol=1e-9):
                return False
    return True


def test_ditto_without_a_pull_is_fedavg_and_local_side_by_side():
    fed = federation(mlp(), SIZES, momentum=0.9)
    both = trained(made("ditto", keep_momentum=True), fed)
    common, alone = (trained(made(name, keep_momentum=True), fed) for name in ("fedavg", "local"))
    assert same_bits(both.shared, common.shared) and same_bits(torch.stack(both.local), alone.local)
    assert same_bits([*both.velocity], [torch.cat(pair) for pair in zip(alone.velocity, common.velocity, strict=True)])


def test_lg_fedavgs_first_rounds_are_fedavgs():
    fed = federation(mlp(), SIZES, momentum=0.9)
    start = trained(made("lg_fedavg", warm_start_rounds=3, keep_momentum=True), fed)
    want = trained(made("fedavg", keep_momentum=True), fed)
    assert same_bits(start.shared, want.shared) and same_bits([*start.velocity], [*want.velocity])


@pytest.mark.parametrize("name", KEEPERS)
def test_it_changes_nothing_in_round_0_or_without_momentum(name):
    still, moving = federation(mlp(), SIZES), federation(mlp(), SIZES, momentum=0.9)
    keep, start_anew = made(name, keep_momentum=True), made(name)
    assert same_bits(trained(keep, still), trained(start_anew, still))
    for rounds, alike in ((1, True), (2, False)):
        one, other = (without_velocity(trained(a, moving, rounds)) for a in (keep, start_anew))
        assert same_bits(one, other) == alike


@pytest.mark.parametrize("name", KEEPERS)
def test_absent_clients_keep_their_momentum_and_the_state_is_unchanged(name):
    fed, algorithm = federation(mlp(), SIZES, momentum=0.9), made(name, keep_momentum=True)
    state = trained(algorithm, fed, rounds=2)
    before = [row.clone() for row in state.velocity]
    new, _ = algorithm.round(fed, state, torch.tensor([0, 2]), 2)
    assert torch.equal(new.velocity[1], before[1])
    for k in (0, 2):
        assert not torch.equal(new.velocity[k], before[k])
    assert same_bits(list(state.velocity), before)


@pytest.mark.parametrize("name", KEEPERS)
def test_a_round_in_chunks_gives_the_same_bits(name, monkeypatch):
    fed, algorithm = federation(mlp(), SIZES, momentum=0.9, dtype=F64), made(name, keep_momentum=True)
    whole = trained(algorithm, fed)
    monkeypatch.setattr(federations, "ROW_BUDGET", 1)
    apart = trained(algorithm, fed)
    assert len(list(fed.chunks(torch.arange(3)))) == 3
    torch.testing.assert_close([*apart.velocity], [*whole.velocity])

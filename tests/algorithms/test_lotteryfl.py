"""LotteryFL: a plain PyTorch reference, and what pruning and averaging must not change."""

from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from pfl_core import Federation, Schedule, Split, Training, run
from pfl_core.algorithms.lotteryfl import LotteryFL, cut_off, training_and_held_out
from pfl_core.ops import round_half_up
from tests.algorithms.two_nets import F64, NETS, every_net, named_fed, simplest_and_fullest
from tests.helpers import everyone, federation, module_of, same_bits, samples, steps


def fed_of(name, val=True, **options):
    fed = named_fed(name, **{"rounds": 6} | options)
    if val:
        held_out = Split.of([samples(10, NETS[name][1], key=50 + k) for k in range(fed.num_clients)])
        fed.splits["val"] = Split(held_out.x.to(fed.theta0), held_out.y, held_out.bounds)
    return fed


def weights_of(fed):
    return [slice(f.start, f.stop) for f in fed.layout.params if f.name.endswith("weight")]


# ---- when a client prunes -------------------------------------------------------------------------------------------


def linear(val):
    """Logits W x, W = (1, 1/2; -1/4, -2), rate 1. Client 0 trains on (1, 0), client 1 on (0, 1), both of class 0."""
    head = nn.Linear(2, 2, bias=False)
    head.weight.data = torch.tensor([[1, 0.5], [-0.25, -2]])
    train = Split.of([(torch.eye(2, dtype=F64)[k : k + 1], torch.tensor([0])) for k in range(2)])
    splits = {"train": train, "test": train, "val": Split.of([(x.to(F64), torch.tensor(y)) for x, y in val])}
    training = Training(lr=1.0, batch_size=9)
    return Federation(nn.Sequential(OrderedDict(head=head)), splits, seed=0, rounds=5, train=training, dtype=F64)


@pytest.mark.parametrize(("threshold", "prunes"), [(0.49, True), (0.5, False), (1.0, False)])
def test_the_accuracy_must_exceed_the_threshold(threshold, prunes):
    """One of two validation samples is right."""
    fed = linear([(torch.tensor([[1, 0], [1, 0]]), [0, 1])] * 2)
    ((_, state, _),) = steps(LotteryFL(acc_threshold=threshold), fed, [[0, 1]])
    assert bool((~state.active).any()) is prunes


# ---- a plain reference ----------------------------------------------------------------------------------------------


def plain_client(algorithm, fed, model, initial, shared, mask, density, k, t):
    """A client's round with plain modules and masks by name; returns (trained, mask, density)."""
    mask = {name: m.clone() for name, m in mask.items()}
    plain = module_of(fed, model, fed.layout.flatten({name: shared[name] * mask[name] for name in shared}))
    x, y = fed.splits["val"].client(k)
    accuracy = float((plain.eval()(x).argmax(1) == y).double().mean())
    if accuracy > algorithm.acc_threshold and density > algorithm.target_density + 1e-9:
        for name, p in plain.named_parameters():
            if name.endswith("weight") and (algorithm.prune_norms or "bn" not in name):
                alive = sorted(p.data[mask[name] == 1].abs().tolist())
                mask[name][p.data.abs() < alive[round_half_up(algorithm.prune_rate * len(alive))]] = 0
        density *= 1 - algorithm.prune_rate
        plain = module_of(fed, model, fed.layout.flatten({name: initial[name] * mask[name] for name in initial}))
    plain.train()
    for batch in fed.batches(torch.tensor([k]), t):
        gradients = torch.autograd.grad(cross_entropy(plain(batch.x[0]), batch.y[0]), list(plain.parameters()))
        for (name, p), g in zip(plain.named_parameters(), gradients, strict=True):
            p.data -= fed.lr(t) * g * mask[name]
    return {name: value.clone() for name, value in plain.state_dict().items() if name in mask}, mask, density


@every_net
@pytest.mark.parametrize(
    "algorithm",
    [LotteryFL(), LotteryFL(prune_rate=0.4, target_density=0.1, prune_norms=False, client_weighting="samples")],
    ids=["default", "options"],
)
def test_against_plain_pytorch(name, algorithm):
    """Six rounds, partly with some of the clients, from a model that some clients are right with."""
    fed, model = fed_of(name, dtype=F64), NETS[name][0]()
    initial = fed.layout.unflatten(fed.theta0)
    shared, masks, density = initial, [{n: torch.ones_like(v) for n, v in initial.items()} for _ in range(4)], [1.0] * 4
    taking_part = [[0, 1, 2, 3], [0, 2], [1, 2, 3], [0, 1, 2, 3], [3], [0, 1, 2]]
    pruned = set()
    for t, (clients, (_, state, notes)) in enumerate(zip(taking_part, steps(algorithm, fed, taking_part), strict=True)):
        trained, weight = [], fed.num_train[clients] if algorithm.client_weighting == "samples" else torch.ones(4)
        for s, k in enumerate(clients):
            theta, masks[k], after = plain_client(algorithm, fed, model, initial, shared, masks[k], density[k], k, t)
            pruned |= {(t, k)} if after < density[k] else set()
            density[k] = after
            trained.append(theta)
            torch.testing.assert_close(notes["trained"][s], fed.layout.flatten(theta))
        shared = {
            name: average(
                old, [(w, masks[k][name], theta[name]) for w, k, theta in zip(weight, clients, trained, strict=False)]
            )
            for name, old in shared.items()
        }
        torch.testing.assert_close(state.shared, fed.layout.flatten(shared))
        for k in range(4):
            mask = fed.layout.flatten(masks[k])
            assert torch.equal(state.active[k], mask.bool())
            torch.testing.assert_close(
                algorithm.evaluation_models(fed, state, torch.tensor([k]), t)[0], mask * state.shared
            )
        assert state.density.tolist() == pytest.approx(density)
        assert torch.equal(notes["density"], state.density[clients])
    assert 3 < len(pruned) < sum(map(len, taking_part))


def average(old, parts):
    """Entry by entry over those whose mask is 1; parts: (weight, mask, value)."""
    top, bottom = (sum(w * m * v for w, m, v in parts), sum(w * m for w, m, _ in parts))
    return torch.where(bottom > 0, top / bottom.clamp(min=1e-9), old)


# ---- pruning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "norms"), [("mlp, stacked", True), ("cnn with batch norm", True), ("cnn with batch norm", False)]
)
def test_masks_shrink_per_tensor_down_to_the_target_density(name, norms):
    """0.8³ is above 0.5, and 0.8⁴ is not; one correct sample is enough to exceed a threshold of 0."""
    fed, algorithm = fed_of(name), LotteryFL(acc_threshold=0.0, prune_norms=norms)
    statistics = torch.arange(fed.num_entries) >= fed.num_params
    for before, after, notes in steps(algorithm, fed, [[0, 1, 2, 3]] * 6):
        assert (after.active <= before.active).all()
        for k in range(4):
            pruned = after.density[k] < before.density[k]
            assert not (pruned and before.density[k] <= 0.5)
            for f in fed.layout.fields:
                old, new = (int(state.active[k, f.start : f.stop].sum()) for state in (before, after))
                falls = pruned and f.name.endswith("weight") and (norms or f.kind != "norm")
                first = before.density[k] == 1 and f.kind == "norm"  # its scales are all 1
                assert new == (old - round_half_up(0.2 * old) if falls and not first else old)
            changed = int((after.active[k] != before.active[k]).any())
            prunable = sum(f.stop - f.start for f in fed.layout.fields if algorithm.is_prunable(f))
            assert notes["upload_bits"][k] == changed * prunable
        assert after.active[:, statistics].all()
        assert not notes["trained"][~after.active].any()
        assert torch.equal(notes["upload"], after.active[:, ~statistics].sum(1))
    torch.testing.assert_close(after.density, torch.full((4,), 0.8**4, dtype=F64))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.floats(0, 1))
def test_the_cut_off_drops_the_share_or_fewer_with_ties(sizes, rate):
    """With integers there are many ties: the smallest are dropped, and of equal ones all or none."""
    size, count = torch.tensor(sizes, dtype=F64), round_half_up(rate * len(sizes))
    gone = size < cut_off(size, rate)
    assert gone.sum() <= count
    assert len(set(sizes)) < len(sizes) or gone.sum() == count
    assert not gone.any() or gone.all() or size[gone].max() < size[~gone].min()
    assert (size <= size[gone].max()).sum() == gone.sum() if gone.any() else True
    smallest = (size == size.min()).sum()
    assert gone.any() == (smallest <= count)


def test_nan_weights_are_not_pruned():
    fed, algorithm = fed_of("mlp"), LotteryFL(prune_rate=0.5)
    theta, place = fed.theta0.clone(), weights_of(fed)[0]
    theta[place.start : place.start + 3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    active = algorithm.prune(fed, theta, torch.ones(fed.num_entries, dtype=torch.bool))
    assert active[place.start : place.start + 3].all()
    assert active[place].sum() == 15


def test_the_density_rule_tolerates_rounding():
    """0.8 * 0.8 * 0.8 = 0.5120000000000001 in floats: not above 0.512."""
    state = steps(LotteryFL(acc_threshold=0.0, target_density=0.512), fed_of("mlp"), [[0, 1, 2, 3]] * 6)[-1][1]
    assert state.density.tolist() == pytest.approx([0.8**3] * 4)


# ---- what the accuracy is measured on -------------------------------------------------------------------------------


def test_a_tenth_of_the_training_data_is_held_out_once():
    sizes = (30, 25, 4, 2, 1)
    fed = federation(sizes=sizes)
    training, held_out = training_and_held_out(fed, torch.arange(5))
    assert [len(y) for _, y in held_out] == [3, 3, 1, 1, 0]
    for k in range(5):
        x, y = fed.splits["train"].client(k)
        both = torch.cat([torch.cat([part[k][0], part[k][1][:, None]], 1) for part in (training, held_out)])
        assert sorted(both.tolist()) == sorted(torch.cat([x, y[:, None]], 1).tolist())
    assert same_bits([training[3], held_out[3]], [part[0] for part in training_and_held_out(fed, torch.tensor([3]))])
    assert not same_bits(held_out[0], training_and_held_out(federation(sizes=sizes, seed=1), torch.tensor([0]))[1][0])


@simplest_and_fullest
def test_held_out_data_act_as_a_validation_split(name):
    """The same bits as with a federation that has nine tenths as training data and the rest as validation split."""
    fed, other = fed_of(name, val=False), fed_of(name, val=False)
    other.splits |= {
        split: Split.of(parts)
        for split, parts in zip(("train", "val"), training_and_held_out(fed, everyone(fed)), strict=True)
    }
    one, _ = run(LotteryFL(), fed, Schedule(4))
    two, _ = run(LotteryFL(), other, Schedule(4))
    assert same_bits(one, two)
    assert (one.density < 1).any()


def test_test_data_do_not_influence_training():
    fed, other = fed_of("mlp", val=False), fed_of("mlp", val=False)
    test = other.splits["test"]
    other.splits["test"] = Split(-test.x, (test.y + 1) % 3, test.bounds)
    states = [run(LotteryFL(), each, Schedule(4))[0] for each in (fed, other)]
    assert same_bits(*states)


def test_a_client_without_held_out_data_never_prunes():
    state, _ = run(LotteryFL(acc_threshold=0.0), federation(sizes=(20, 1), epochs=2), Schedule(3))
    assert state.density[0] < 1
    assert state.density[1] == 1

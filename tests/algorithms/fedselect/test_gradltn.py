"""FedSelect's workshop version: the search, rounds by hand, and invariants."""

from dataclasses import replace

import pytest
import torch

from pfl_core import LocalTraining, Schedule, run
from pfl_core.algorithms.fedselect.gradltn import FedSelectGradLTN
from pfl_core.ops import round_half_up
from tests.helpers import cnn, everyone, federation, linear_federation, some_rows

F64 = torch.float64
IMAGES = {"shape": (1, 4, 4)}


def test_a_search_and_a_round_by_hand():
    """Logits W x, W = (w0, w1; w2, w3) = 0, rate 1, one sample a client; p = 1/2, two iterations, so one entry is kept.

    Client 0: x = (2, 1), y = 0: the step from 0 is (1, .5; -1, -.5), so w0 and w2 stay; trained alone from 0, they
    change by the same 1 each, and w0 has the lower index. Client 1: x = (1, 3), y = 1: step (-.5, -1.5; .5, 1.5),
    then w1 and w3, then w1.

    LocalAlt of client 0: w0 += 1 (the margin is then 2, the wrong class has q = 1 / (1 + e^2)), then the shared ones:
    (1, q; -2 q, -q). Of client 1: w1 = -1.5, margin 4.5, r = 1 / (1 + e^4.5): (-r, -1.5; r, 3 r).
    Means: w0 of client 1 alone, w1 of client 0 alone, w2 and w3 of both.
    """
    fed = linear_federation([([[2, 1]], [0]), ([[1, 3]], [1])])
    rule = FedSelectGradLTN(keep_rate=0.5, num_search_iters=2)
    state, notes = rule.round(fed, rule.init(fed, fed.theta0), everyone(fed), 0)
    q, r = (1 / (1 + torch.tensor(z, dtype=F64).exp()) for z in (2.0, 4.5))
    one = torch.tensor([1, q, -2 * q, -q], dtype=F64)
    two = torch.tensor([-r, -1.5, r, 3 * r], dtype=F64)
    assert state.personal.int().tolist() == state.in_force.int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    torch.testing.assert_close(notes["trained"], torch.stack([one, two]))
    mean = (one + two) / 2
    torch.testing.assert_close(state.local[0], torch.stack([one[0], one[1], mean[2], mean[3]]))
    torch.testing.assert_close(state.local[1], torch.stack([two[0], two[1], mean[2], mean[3]]))
    torch.testing.assert_close(state.shared, torch.stack([two[0], one[1], mean[2], mean[3]]))
    assert notes["upload"].tolist() == [3, 3]
    assert notes["passes"].tolist() == [4, 4]
    assert notes["personal_share"].tolist() == [0.25, 0.25]


# ---- invariants: the search -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bn", [False, True], ids=["no norm", "batch norm"])
@pytest.mark.parametrize("keep", [0.25, 0.5, 0.75])
def test_masks_are_nested_and_have_the_papers_sizes(keep, bn):
    fed = federation(cnn(bn), **IMAGES)
    clients = torch.tensor([0, 2, 3])
    start = some_rows(fed, clients)
    given, size, outer = start.clone(), fed.num_params, None
    for iters in range(4):
        rule = FedSelectGradLTN(keep_rate=keep, num_search_iters=iters)
        masks, passes = rule.grad_ltn(fed, start, clients, 1)
        assert passes == iters
        assert masks.sum(1).tolist() == [size] * 3
        assert not masks[:, fed.num_params :].any()
        assert outer is None or not (masks & ~outer).any()
        outer, size = masks, round_half_up(keep * size)
    assert torch.equal(start, given)


def test_each_iteration_restarts_and_keeps_the_largest_changes():
    """Against direct calls: train the masked entries from the start, then keep the largest changes."""
    fed = federation(epochs=2)
    clients = everyone(fed)
    start = some_rows(fed, clients)
    rule = FedSelectGradLTN(keep_rate=0.6, num_search_iters=2, search_epochs=3)
    first, _ = replace(rule, num_search_iters=1).grad_ltn(fed, start, clients, 0)
    second, passes = rule.grad_ltn(fed, start, clients, 0)
    assert passes == 6
    for i, (before, after) in enumerate([(torch.ones_like(first), first), (first, second)]):
        trained = fed.sgd(start, clients, LocalTraining(epochs=3, trainable=before), key=(0, "search", i)).theta
        change = (trained - start).abs()
        for k in range(4):
            assert change[k][after[k]].min() >= change[k][before[k] & ~after[k]].max()


def test_keep_rates_0_and_1():
    fed = federation()
    start = some_rows(fed, everyone(fed))
    assert FedSelectGradLTN(keep_rate=1.0).grad_ltn(fed, start, everyone(fed), 0)[0].all()
    assert FedSelectGradLTN(num_search_iters=0).grad_ltn(fed, start, everyone(fed), 0)[0].all()
    assert not FedSelectGradLTN(keep_rate=0.0).grad_ltn(fed, start, everyone(fed), 0)[0].any()


def test_with_rate_basis_all_only_the_first_iteration_acts():
    """If the rate is a share of all entries, later iterations have nothing left to drop."""
    fed = federation()
    start = some_rows(fed, everyone(fed))
    sizes = [
        FedSelectGradLTN(keep_rate=0.5, num_search_iters=n, rate_basis="all").grad_ltn(fed, start, everyone(fed), 0)[0]
        for n in (1, 3)
    ]
    assert torch.equal(*sizes)
    assert sizes[0].sum(1).tolist() == [round_half_up(0.5 * fed.num_params)] * 4


@pytest.mark.parametrize("bn", [False, True], ids=["no norm", "batch norm"])
def test_only_the_mask_of_the_search_is_kept(bn):
    """A round equals LocalAlt and the mean with this mask set by hand; the search's values and statistics are gone."""
    fed = federation(cnn(bn), epochs=2, **IMAGES)
    rule = FedSelectGradLTN(keep_rate=0.5, num_search_iters=2)
    state = run(rule, fed, Schedule(3), until=1)[0]
    new, notes = rule.round(fed, state, everyone(fed), 1)
    trained, _ = rule.local_alt(fed, state.local, new.personal, everyone(fed), 1)
    assert torch.equal(notes["trained"], trained)
    assert torch.equal(rule.merge(fed, state, everyone(fed), trained, new.personal).local, new.local)


def test_the_search_uses_the_shared_entries_learning_rate():
    fed = federation()
    start, everything = fed.theta0.repeat(4, 1), torch.ones(4, fed.num_entries, dtype=torch.bool)
    for lr_shared, lr_personal in ((0.0, 0.5), (0.5, 0.0)):
        rule = FedSelectGradLTN(lr_shared=lr_shared, lr_personal=lr_personal)
        found = rule.search(fed, start, everything, everyone(fed), (0, "search", 0))
        assert torch.equal(found, start) is (lr_shared == 0)


def test_return_trained_starts_from_the_trained_subnetwork():
    fed = federation(epochs=2)
    rule = FedSelectGradLTN(keep_rate=0.5, num_search_iters=2, return_trained=True)
    state = rule.init(fed, fed.theta0)
    new, notes = rule.round(fed, state, everyone(fed), 0)
    active, _ = rule.grad_ltn(fed, state.local, everyone(fed), 0)
    start = fed.sgd(state.local, everyone(fed), LocalTraining(trainable=active), key=(0, "subnetwork")).theta
    assert torch.equal(torch.where(active, state.local, start), state.local)
    assert torch.equal(rule.local_alt(fed, start, new.personal, everyone(fed), 0)[0], notes["trained"])
    assert notes["passes"].tolist() == [2 * 2 + 2 + 2 * 2] * 4


# ---- invariants: rounds ---------------------------------------------------------------------------------------------


def test_absent_clients_keep_personal_entries_and_receive_shared_ones():
    fed = federation(rounds=6)
    rule = FedSelectGradLTN(keep_rate=0.6, num_search_iters=2)
    state = rule.init(fed, fed.theta0)
    for t, sampled in enumerate(([0, 1], [1, 2], [0, 2])):
        new, _ = rule.round(fed, state, torch.tensor(sampled), t)
        offered = (~new.personal[sampled]).any(0)
        for k in set(range(4)) - set(sampled):
            own = state.personal[k]
            assert torch.equal(new.personal[k], own)
            assert torch.equal(new.local[k][own | ~offered], state.local[k][own | ~offered])
            assert torch.equal(new.local[k][~own & offered], new.shared[~own & offered])
        assert not new.personal[3].any()  # never sampled: no mask, so all that is offered is taken
        assert torch.equal(new.local[3][offered], new.shared[offered])
        state = new


def test_masks_are_searched_again_in_every_round():
    """They may lose entries again, as those of the CVPR version cannot."""
    fed = federation(rounds=4, epochs=2)
    rule = FedSelectGradLTN(keep_rate=0.6, num_search_iters=2)
    first = run(rule, fed, Schedule(4), until=1)[0].personal
    last = run(rule, fed, Schedule(4))[0].personal
    assert first.sum() == last.sum()
    assert (first & ~last).any()


def test_statistics_stay_with_their_client():
    """With an empty mask, models differ only in their statistics; ``average`` makes these equal, too."""
    for policy in ("local", "average"):
        fed = federation(cnn(True), rounds=2, **IMAGES)
        state, _ = run(FedSelectGradLTN(keep_rate=0.0, buffer_policy=policy), fed, Schedule(2))
        params, statistics = state.local[:, : fed.num_params], state.local[:, fed.num_params :]
        assert (params == params[0]).all()
        assert bool((statistics == statistics[0]).all()) == (policy == "average")

"""FedSelect's ablations (Table 3): rules that rank entries, and masks fixed before the first round."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from pfl_core import Schedule
from pfl_core.algorithms.fedselect.ablation import chosen_layers, gradients, ranking_scores
from pfl_core.algorithms.fedselect.method import FedSelect, num_new
from pfl_core.engine import rounds
from tests.helpers import cnn, everyone, federation, linear_federation, mlp, module_of, same_bits, some_rows

F64 = torch.float64
IMAGES = {"shape": (1, 4, 4)}
RANKINGS = ["change", "least_change", "random", "magnitude", "gradient"]


def masks_of(algorithm, fed, num=4):
    """The masks [N, d] before round 0 and after each round."""
    states = [algorithm.init(fed, fed.theta0)]
    states += [snap.state for snap in rounds(algorithm, fed, Schedule(num), states[0])]
    return [state.personal[:, : fed.num_params] for state in states]


# ---- rankings -------------------------------------------------------------------------------------------------------


def test_the_first_update_by_hand():
    """Logits W x from W = 0, rate 1, x = (3, 1) of class 0: the step is (1.5, .5; -1.5, -.5); least: ties at random.

    A quarter of four entries is one. Most change: entry 0 (equal to entry 2, which comes later). Least: 1 or 3.
    Magnitude: |W| after a step from 0 is the change, so entry 0; the gradient is the step, too.
    """
    fed = linear_federation([([[3, 1]], [0]), ([[3, 1]], [0])])
    for ranking in ("change", "magnitude", "gradient"):
        picked = masks_of(FedSelect(p=0.25, alpha=0.5, ranking=ranking), fed, 1)[1]
        assert picked.int().tolist() == [[1, 0, 0, 0]] * 2, ranking
    least = masks_of(FedSelect(p=0.25, alpha=0.5, ranking="least_change"), fed, 1)[1]
    assert least.sum(1).tolist() == [1, 1]
    assert not least[:, [0, 2]].any()


@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("scope", ["global", "per_tensor"])
def test_every_ranking_adds_the_same_number_of_entries(ranking, scope):
    """At equal p and α all rankings have FedSelect's personal shares in every round."""
    fed, rule = federation(rounds=4), FedSelect(p=0.3, alpha=0.6, selection_scope=scope, ranking=ranking)
    before = None
    for now in masks_of(rule, fed):
        if before is not None:
            assert (now | before).equal(now)
            for unit in rule.units(fed.layout):
                size = len(before[0, unit])
                for old, new in zip(before[:, unit], now[:, unit], strict=True):
                    assert int(new.sum()) - int(old.sum()) == num_new(int(old.sum()), size, rule)
        before = now


@pytest.mark.parametrize("ranking", ["least_change", "magnitude"])
def test_the_entries_with_the_highest_scores_are_taken(ranking):
    """Score: minus the size of the change, or the size of the trained value."""
    fed, rule = federation(rounds=3), FedSelect(p=0.3, alpha=0.9, ranking=ranking)
    state, d = rule.init(fed, fed.theta0), fed.num_params
    for t in range(3):
        new, notes = rule.round(fed, state, everyone(fed), t)
        change, size = (notes["trained"] - state.local).abs(), notes["trained"].abs()
        score = (-change if ranking == "least_change" else size)[:, :d]
        for k in range(fed.num_clients):
            old, grown = state.personal[k, :d], new.personal[k, :d]
            assert score[k][grown & ~old].min() >= score[k][~grown].max()
        state = new


def test_unchanged_entries_are_taken_in_random_order():
    """With a rate of 0 all changes are equal; by index, every client would take the first entries."""
    fed = federation(rounds=2)
    _, first, second = masks_of(FedSelect(p=0.3, alpha=0.9, ranking="least_change", lr_shared=0.0), fed, 2)
    d = fed.num_params
    count = math.floor(0.3 * d + 0.5)
    assert first.sum(1).tolist() == [count] * 4
    assert not any(row[:count].all() for row in first)
    assert len({tuple(row.tolist()) for row in first}) == 4
    assert not torch.equal(second & ~first, first)


def test_nan_does_not_rank_as_least_change():
    fed, client = federation(), torch.tensor([0])
    start = fed.theta0[None]
    trained = start + 0.5
    trained[0, 7] = torch.nan
    (score,) = ranking_scores(fed, "least_change", start, start, trained, client, 0)
    assert score[7] == -torch.inf
    assert score.isinf().sum() == 1


def test_random_growth_depends_only_on_client_round_and_seed():
    fed, rule = federation(rounds=3), FedSelect(p=0.3, alpha=0.9, ranking="random")
    _, *grown = masks_of(rule, fed, 3)
    _, *again = masks_of(replace(rule, lr_personal=0.5, lr_shared=0.01), federation(rounds=3), 3)
    assert all(torch.equal(a, b) for a, b in zip(grown, again, strict=True))
    assert not torch.equal(grown[0][0], grown[0][1])
    later = masks_of(replace(rule, mask_update_start=1), federation(rounds=3), 2)[-1]  # the first choice, a round later
    assert not torch.equal(grown[0], later)
    assert not torch.equal(grown[0], masks_of(rule, federation(rounds=3, seed=1), 1)[1])


@pytest.mark.parametrize("net", ["dense", "conv"])
@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "one by one"])
def test_the_gradient_covers_all_data_of_the_client(net, stacked):
    model, shape = (mlp(), (6,)) if net == "dense" else (cnn(bn=False), (1, 4, 4))
    fed = federation(model, shape=shape, dtype=F64, stacked=stacked)
    clients = torch.tensor([0, 3, 1])
    theta = some_rows(fed, clients)
    for s, k in enumerate(clients.tolist()):
        plain, (x, y) = module_of(fed, model, theta[s]), fed.splits["train"].client(k)
        grads = torch.autograd.grad(cross_entropy(plain(x), y), list(plain.parameters()))
        want = torch.cat([g.flatten() for g in grads])
        torch.testing.assert_close(gradients(fed, theta, clients, 2)[s], want)


def test_with_one_full_batch_change_and_gradient_rank_alike():
    """One step of SGD: the change is the rate times the gradient, so both rank alike."""
    one, other = (
        masks_of(FedSelect(p=0.3, alpha=0.9, ranking=ranking), federation(dtype=F64, batch_size=100), 1)[1]
        for ranking in ("change", "gradient")
    )
    assert torch.equal(one, other)


# ---- fixed masks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masks", ["random", "common_random"])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_random_masks_have_their_share_from_the_start_and_never_change(masks, alpha):
    fed = federation(rounds=3)
    start, *later = masks_of(FedSelect(alpha=alpha, masks=masks), fed, 3)
    assert start.sum(1).tolist() == [math.floor(alpha * fed.num_params + 1e-9)] * 4
    assert all(torch.equal(start, mask) for mask in later)
    if alpha == 0.3:
        assert torch.equal(start[0], start[1]) == (masks == "common_random")
        assert not torch.equal(start, masks_of(FedSelect(alpha=alpha, masks=masks), federation(seed=1), 1)[0])


def test_random_masks_per_tensor_have_their_share_in_each():
    fed, rule = federation(), FedSelect(alpha=0.5, masks="random", selection_scope="per_tensor")
    start = masks_of(rule, fed, 1)[0]
    for unit in rule.units(fed.layout):
        assert start[:, unit].sum(1).tolist() == [len(start[0, unit]) // 2] * 4


@pytest.mark.parametrize("bn", [False, True], ids=["no norm", "batch norm"])
def test_the_head_as_layer_is_the_heads_mask(bn):
    """Equal to a run with p = 0 whose masks are set to the head."""
    fed = federation(cnn(bn), rounds=3, **IMAGES)
    fixed, none = FedSelect(masks="layers", layers=("head",)), FedSelect(p=0.0)
    by_hand = none.init(fed, fed.theta0)
    masks = by_hand.personal.clone()
    masks[:, : fed.num_params] = fed.layout.mask(fed.layout.in_head)[: fed.num_params]
    by_hand = replace(by_hand, personal=masks, in_force=masks)
    one, other = fixed.init(fed, fed.theta0), by_hand
    assert same_bits(one, other)
    for t in range(3):
        one, _ = fixed.round(fed, one, everyone(fed), t)
        other, _ = none.round(fed, other, everyone(fed), t)
    assert same_bits(one, other)


def test_a_layer_name_selects_all_tensors_inside_it():
    from pfl_core.models import build

    fed = federation(build("resnet18", (3, 32, 32), 10, 0, stem="no_pool"), shape=(3, 32, 32), sizes=(2,), test=2)
    sizes = {  # parameters
        ("layer1",): 147_968,
        ("layer2",): 525_568,
        ("layer3",): 2_099_712,
        ("layer4",): 8_393_728,
        ("conv1", "bn1"): 9_536,
        ("fc",): 5_130,
    }
    counts = {layers: int(chosen_layers(fed, layers)[: fed.num_params].sum()) for layers in sizes}
    assert counts == sizes
    assert int(chosen_layers(fed, ("layer1.1.conv2",)).sum()) == 64 * 64 * 9


def test_bad_settings_say_so_in_one_line():
    with pytest.raises(ValueError, match=r"no layer 'layer1'; choose from fc1, head"):
        FedSelect(masks="layers", layers=("layer1",)).init(fed := federation(), fed.theta0)
    with pytest.raises(ValueError, match="give both or none"):
        FedSelect(masks="layers")
    with pytest.raises(ValueError, match="give both or none"):
        FedSelect(layers=("head",))

"""FedSelect's counts, readings and options, its notes, and shared prefixes of runs."""

import dataclasses
import random
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from pfl_core import Schedule, run
from pfl_core.algorithm import build
from pfl_core.algorithms.fedselect.method import FedSelect, grow_mask, num_new
from pfl_core.layout import Layout
from pfl_core.models import build as build_model
from pfl_core.ops import masked_mean
from tests.helpers import (
    cnn,
    coin,
    everyone,
    federation,
    linear_federation,
    mlp,
    same_bits,
    some_rows,
    steps,
    without_times,
)

IMAGES = {"shape": (1, 4, 4)}
RESNET18 = 11_181_642


def growth(rule: FedSelect, size: int, updates: int = 2000) -> list[int]:
    """Personal entries after each update, until no more are added."""
    counts = [0]
    for _ in range(updates):
        more = num_new(counts[-1], size, rule)
        if more == 0:
            break
        counts.append(counts[-1] + more)
    return counts


# ---- counts ---------------------------------------------------------------------------------------------------------

REALISED = {  # p: final share (updates) for α = 0.05, 0.30, 0.50, 0.80
    0.01: [(0.059, 6), (0.304, 36), (0.500, 69), (0.802, 161)],
    0.05: [(0.050, 1), (0.302, 7), (0.512, 14), (0.806, 32)],
    0.10: [(0.100, 1), (0.344, 4), (0.522, 7), (0.815, 16)],
    0.25: [(0.250, 1), (0.438, 2), (0.578, 3), (0.822, 6)],
}


@pytest.mark.parametrize(
    ("p", "alpha", "share", "updates"),
    [(p, a, *cell) for p, cells in REALISED.items() for a, cell in zip((0.05, 0.30, 0.50, 0.80), cells, strict=True)],
)
def test_the_final_share_overshoots_the_limit(p, alpha, share, updates):
    counts = growth(FedSelect(p=p, alpha=alpha), RESNET18)
    assert (round(counts[-1] / RESNET18, 3), len(counts) - 1) == (share, updates)


@pytest.mark.parametrize("p", REALISED)
@pytest.mark.parametrize("alpha", [0.05, 0.30, 0.50, 0.80, 1.0])
def test_a_capped_limit_is_met_exactly(p, alpha):
    counts = growth(FedSelect(p=p, alpha=alpha, limit_policy="cap"), RESNET18)
    assert counts[-1] == int(alpha * RESNET18 + 1e-9)


INCLUSIVE, CAP = {"limit_comparison": "inclusive"}, {"limit_policy": "cap"}
COUNTS = [  # settings, size, personal entries after each update
    ({"p": 0.25, "alpha": 0.3}, 100, [0, 25, 44]),
    ({"p": 0.25, "alpha": 0.3} | CAP, 100, [0, 25, 30]),
    ({"p": 0.25, "alpha": 0.25}, 100, [0, 25]),
    ({"p": 0.25, "alpha": 0.25} | INCLUSIVE, 100, [0, 25, 44]),
    ({"p": 0.25, "alpha": 0.25} | INCLUSIVE | CAP, 100, [0, 25]),
    ({"p": 0.25, "alpha": 0.0}, 100, [0]),
    ({"p": 0.25, "alpha": 0.0} | INCLUSIVE, 100, [0, 25]),
    ({"p": 0.0, "alpha": 1.0} | INCLUSIVE, 100, [0]),
    ({"p": 0.25, "alpha": 0.5}, 100, [0, 25, 44, 58]),  # of the entries that are still shared
    ({"p": 0.25, "alpha": 1.0, "rate_basis": "all"}, 100, [0, 25, 50, 75, 100]),
    ({"p": 0.3, "alpha": 1.0, "rate_basis": "all"}, 100, [0, 30, 60, 90, 100]),
    ({"p": 0.5, "alpha": 1.0, "rate_basis": "all"} | INCLUSIVE, 20, [0, 10, 20]),  # never more than there are
    ({"p": 1.0, "alpha": 1.0} | INCLUSIVE, 20, [0, 20]),
    ({"p": 0.001, "alpha": 1.0}, 20, list(range(21))),  # at least one
    ({"p": 0.07, "alpha": 0.07}, 100, [0, 7]),  # in floating point 0.07 * 100 > 7: compare counts, not shares
    ({"p": 0.29, "alpha": 0.29}, 100, [0, 29]),  # and 0.29 * 100 < 29
    ({"p": 0.2, "alpha": 0.29} | CAP, 100, [0, 20, 29]),
]


@pytest.mark.parametrize(("settings", "size", "counts"), COUNTS)
def test_counts_of_personal_entries(settings, size, counts):
    assert growth(FedSelect(**settings), size) == counts


def test_option_count_rounding():
    """7.5 of 10 stay shared, rounded to even 8; 2.5 become personal, rounded up 3. At least one, as everywhere."""
    assert [num_new(0, size, FedSelect(p=0.5, alpha=1.0)) for size in (1, 3, 5, 7)] == [1, 2, 3, 4]
    text, code = (FedSelect(p=0.25, alpha=1.0, count_rounding=rule) for rule in ("half_up", "rest_half_even"))
    assert [num_new(0, size, text) for size in (2, 6, 10, 14)] == [1, 2, 3, 4]
    assert [num_new(0, size, code) for size in (2, 6, 10, 14)] == [1, 2, 2, 4]


def test_option_share_precision():
    """float32(0.05), (0.30) and (0.80) are larger than the numbers of double precision, float32(0.50) is the same."""
    for alpha, goes_on in ((0.05, False), (0.30, False), (0.50, True), (0.80, False)):
        rule = FedSelect(p=0.1, alpha=alpha, limit_comparison="inclusive")
        single = replace(rule, share_precision="float32")
        assert num_new(round(100 * alpha), 100, rule) > 0
        assert (num_new(round(100 * alpha), 100, single) > 0) == goes_on
        assert num_new(round(100 * alpha), 100, replace(single, limit_comparison="strict")) == 0
        assert num_new(round(100 * alpha) - 1, 100, single) > 0


def released_update(personal, change, p, alpha):
    """The released code's update of one tensor's mask, written out: 0 and 1 [n] int64, change [n].

    Raises IndexError where p is so small that nothing is left to take, as the code does.
    """
    ones, zeros = torch.count_nonzero(personal), torch.count_nonzero(1 - personal)
    if (ones / (ones + zeros)).item() > alpha:
        return personal
    ordered = np.sort(change[personal == 0].numpy())
    cut = ordered[np.round((1 - p) * ordered.size).astype(int)]
    return torch.where(change >= cut, 1, personal)


@cache
def released_sequences(num=600, updates=8):
    """(p, alpha, changes [updates, n], the released code's masks after each update); p, alpha and sizes at random."""
    draw, found = random.Random(1), []
    for i in range(num):
        n = draw.choice((draw.randint(1, 60), 10 * draw.randint(1, 10)))
        p, alpha = (draw.choice((0.05, 0.1, 0.25, 0.3, 0.5, 0.8, draw.random())) for _ in range(2))
        changes = torch.rand(updates, n, generator=torch.Generator().manual_seed(i))
        masks = [torch.zeros(n, dtype=torch.int64)]
        with suppress(IndexError):
            for change in changes:
                masks.append(released_update(masks[-1], change, p, alpha))
        found.append((p, alpha, changes, masks[1:]))
    return found


@pytest.mark.parametrize(
    ("changed", "as_released"),
    [({}, True), ({"share_precision": "exact"}, False), ({"count_rounding": "half_up"}, False)],
    ids=["the reading", "exact share", "p n rounded up"],
)
def test_masks_are_those_of_the_released_code(changed, as_released):
    """Over many random sequences of updates; without one of its two rules the masks differ."""
    parted = 0
    for p, alpha, changes, masks in released_sequences():
        rule = FedSelect.reading("authors_code", p=p, alpha=alpha, **changed)
        personal, same = torch.zeros(changes.shape[1], dtype=torch.bool), True
        for change, want in zip(changes, masks, strict=False):
            personal = grow_mask(personal, change, rule)
            same &= torch.equal(personal, want.bool())
        parted += not same
    assert sum(len(masks) for *_, masks in released_sequences()) > 2000
    assert (parted == 0) == as_released
    assert as_released or parted > 5


# ---- which entries --------------------------------------------------------------------------------------------------


def test_the_largest_changes_among_the_shared_are_chosen():
    personal = torch.tensor([True, False, False, False, False, False])
    change = torch.tensor([9.0, 1.0, 3.0, 2.0, 5.0, 4.0])
    got = grow_mask(personal, change, FedSelect(p=0.4, alpha=1.0))  # 0.4 * 5 = 2 of the shared
    assert got.int().tolist() == [1, 0, 0, 0, 1, 1]
    assert personal.int().tolist() == [1, 0, 0, 0, 0, 0]


def test_option_tie_rule():
    """Exactly the count, lower index first; or all entries that reach the cut-off."""
    change = torch.tensor([1.0, 2.0, 1.0, 1.0, 0.0])
    nothing = torch.zeros(5, dtype=torch.bool)
    rule = FedSelect(p=0.4, alpha=1.0)
    assert grow_mask(nothing, change, rule).int().tolist() == [1, 1, 0, 0, 0]
    assert grow_mask(nothing, change, replace(rule, tie_rule="threshold")).int().tolist() == [1, 1, 1, 1, 0]
    still = torch.zeros(5)
    assert grow_mask(nothing, still, rule).int().tolist() == [1, 1, 0, 0, 0]
    assert grow_mask(nothing, still, replace(rule, tie_rule="threshold")).all()


@pytest.mark.parametrize("tie_rule", ["index", "threshold"])
def test_extreme_settings_where_the_released_code_fails(tie_rule):
    """A p so small that it rounds to nothing; a full mask at α = 1; both comparisons."""
    change = torch.tensor([0.1, 0.2, 0.3])
    for comparison in ("strict", "inclusive"):
        rule = FedSelect(p=0.01, alpha=1.0, tie_rule=tie_rule, limit_comparison=comparison)
        assert grow_mask(torch.zeros(3, dtype=torch.bool), change, rule).int().tolist() == [0, 0, 1]
        assert grow_mask(torch.ones(3, dtype=torch.bool), change, rule).all()


@pytest.mark.parametrize("tie_rule", ["index", "threshold"])
def test_a_diverged_entry_does_not_stop_growth(tie_rule):
    change = torch.tensor([0.1, torch.nan, 0.3, 0.2])
    rule = FedSelect(p=0.5, alpha=1.0, tie_rule=tie_rule)
    assert grow_mask(torch.zeros(4, dtype=torch.bool), change, rule).int().tolist() == [0, 1, 1, 0]


def test_eligible_entries_of_resnet18():
    """41 weight tensors with 11,176,832 scalars; globally they are one unit, else 41; biases and statistics never."""
    layout = Layout.of(build_model("resnet18", (3, 32, 32), 10, 0))
    assert [len(range(RESNET18)[u]) for u in FedSelect().units(layout)] == [RESNET18]
    (weights,) = FedSelect(eligible_params="weights_only").units(layout)
    assert len(weights) == 11_176_832
    code = FedSelect.reading("authors_code").units(layout)
    assert len(code) == 41
    assert sum(u.stop - u.start for u in code) == 11_176_832
    assert len(FedSelect(selection_scope="per_tensor").units(layout)) == 62


# ---- readings -------------------------------------------------------------------------------------------------------


def test_the_authors_codes_reading():
    """The choices of the released code; the limit of 80 % is its default."""
    code = FedSelect.reading("authors_code")
    assert code == build("fedselect", {}, "authors_code")
    differs = {n: v for n, v in dataclasses.asdict(code).items() if v != getattr(FedSelect(), n)}
    assert differs == {
        "p": 0.25,
        "alpha": 0.80,
        "selection_scope": "per_tensor",
        "eligible_params": "weights_only",
        "limit_comparison": "inclusive",
        "share_precision": "float32",
        "count_rounding": "rest_half_even",
        "tie_rule": "threshold",
        "mask_update_every": 3,
        "mask_update_start": 3,
        "change_reference": "last_mask_update",
        "batch_order": "reshuffle_each_pass",
        "skip_empty_pass": False,
        "bn_mode": "eval_after_round_0",
        "aggregate_last_round": False,
        "eval_point": "after_local_update",
    }


def test_the_authors_codes_reading_runs():
    """Masks change in rounds 3 and 6 only, biases stay shared, the last round is not averaged."""
    fed = federation(cnn(bn=True), **IMAGES, rounds=8, lr=0.01)
    state, history = run(FedSelect.reading("authors_code"), fed, Schedule(8))
    share = [row[0] for row in history.series["personal_share"][1]]
    assert [t for t in range(8) if share[t] > (share[t - 1] if t else 0)] == [3, 6]
    biases = fed.layout.mask(lambda f: "weight" not in f.name)[: fed.num_params]
    assert not state.personal[:, : fed.num_params][:, biases].any()
    assert (
        history.series["correct"][1][-1] == history.series["correct_trained"][1][-1]
    )  # the last round is not averaged
    assert history.series["loss"][1][:-1] != history.series["loss_trained"][1][:-1]  # and both scores are noted
    assert history.series["passes"][1][-1] == [2.0] * 4 or history.series["passes"][1][-1] == 2.0


# ---- the other options, one by one ----------------------------------------------------------------------------------


def test_options_mask_update_every_and_start():
    for every, start, want in ((1, 0, [0, 1, 2, 3, 4, 5, 6]), (3, 3, [3, 6]), (2, 1, [1, 3, 5]), (1, 5, [5, 6])):
        algorithm = FedSelect(p=0.05, alpha=0.9, mask_update_every=every, mask_update_start=start)
        taken = steps(algorithm, federation(), 7)
        grew = [t for t, (before, after, _) in enumerate(taken) if not torch.equal(before.personal, after.personal)]
        assert grew == want


def test_option_change_reference():
    """Trained now minus trained at the last mask update; the initial model before the first."""
    fed = federation()
    algorithm = FedSelect(
        p=0.2, alpha=0.9, change_reference="last_mask_update", mask_update_every=2, mask_update_start=1
    )
    reference = fed.theta0.repeat(4, 1)
    chosen = {"last_mask_update": [], "round_start": []}
    for t, (before, after, notes) in enumerate(steps(algorithm, fed, 6)):
        if t % 2 == 0:
            assert torch.equal(before.personal, after.personal)
            continue
        for name, start in (("last_mask_update", reference), ("round_start", before.local)):
            change = (notes["trained"] - start).abs()
            want = torch.stack([grow_mask(m, c, algorithm) for m, c in zip(before.personal, change, strict=True)])
            chosen[name].append(torch.equal(after.personal, want))
        reference = notes["trained"]
    assert chosen["last_mask_update"] == [True] * 3
    assert not any(chosen["round_start"])
    assert steps(FedSelect(), fed, 1)[0][1].reference is None


def test_option_batch_order():
    """The same batches in both passes: a full mask then trains like an empty one; reshuffled, it does not."""
    fed = federation(epochs=2)
    clients = everyone(fed)
    theta = some_rows(fed, clients)
    ends = torch.zeros(4, fed.num_entries, dtype=torch.bool), torch.ones(4, fed.num_entries, dtype=torch.bool)
    same, other = FedSelect(), FedSelect(batch_order="reshuffle_each_pass")
    by_u, by_v = (same.local_alt(fed, theta, mask, clients, 0)[0] for mask in ends)
    assert torch.equal(by_u, by_v)
    by_u, by_v = (other.local_alt(fed, theta, mask, clients, 0)[0] for mask in ends)
    assert not torch.equal(by_u, by_v)
    whole = federation(dtype=torch.float64, batch_size=100)  # one batch: no order to tell apart
    mask, rows = coin(4, 53), some_rows(whole, clients)
    one, two = (a.local_alt(whole, rows, mask, clients, 0)[0] for a in (same, other))
    torch.testing.assert_close(one, two)


def test_option_skip_empty_pass():
    """An empty pass changes no parameter, but counts as a pass and updates statistics."""
    fed = federation(mlp(bn=True), epochs=2)
    d = fed.num_params
    ((_, lean, less),) = steps(FedSelect(), fed, 1)
    ((_, full, more),) = steps(FedSelect(skip_empty_pass=False), fed, 1)
    assert torch.equal(less["trained"][:, :d], more["trained"][:, :d])
    assert torch.equal(lean.local[:, :d], full.local[:, :d])
    assert (lean.local[:, d:] != full.local[:, d:]).any()
    assert (less["passes"].tolist(), more["passes"].tolist()) == ([2] * 4, [4] * 4)


def test_passes_are_counted_per_client():
    """One pass an epoch with an empty or a full mask, else two."""
    fed, fixed = federation(epochs=3), FedSelect(p=0.0)
    state = fixed.init(fed, fed.theta0)
    masks = torch.zeros(4, fed.num_entries, dtype=torch.bool)
    masks[1, 4], masks[2] = True, True
    _, notes = fixed.round(fed, replace(state, personal=masks), everyone(fed), 1)
    assert notes["passes"].tolist() == [3, 6, 3, 3]


def test_option_bn_mode():
    fed = federation(mlp(bn=True))
    d = fed.num_params
    usual = steps(FedSelect(p=0.2), fed, 3)
    frozen = steps(FedSelect(p=0.2, bn_mode="eval_after_round_0"), fed, 3)
    assert same_bits(usual[0][1], frozen[0][1])
    tails = [after.local[:, d:] for _, after, _ in frozen]
    assert not torch.equal(tails[0], fed.theta0[d:].expand(4, -1))
    assert torch.equal(tails[0], tails[1])
    assert torch.equal(tails[1], tails[2])
    assert not torch.equal(usual[0][1].local[:, d:], usual[1][1].local[:, d:])
    assert not torch.equal(usual[1][1].local[:, :d], frozen[1][1].local[:, :d])


def test_option_buffer_policy():
    """Averaged statistics have the plain mean."""
    fed = federation(mlp(bn=True))
    d = fed.num_params
    averaged = FedSelect(p=0.2, buffer_policy="average")
    for _, after, notes in steps(averaged, fed, 3):
        mean = notes["trained"][:, d:].mean(0)
        torch.testing.assert_close(after.local[:, d:], mean.expand(4, -1), rtol=1e-5, atol=1e-6)
        assert torch.equal(after.local[0, d:], after.local[3, d:])
        assert torch.equal(after.shared[d:], after.local[0, d:])
        assert not after.personal[:, d:].any()


def test_option_client_weighting():
    fed = federation(sizes=(12, 9, 30, 10))
    for before, after, notes in steps(FedSelect(p=0.3, alpha=0.9, client_weighting="samples"), fed, 3):
        want = masked_mean(notes["trained"], ~before.personal, torch.tensor([12.0, 9.0, 30.0, 10.0]), before.shared)
        assert torch.equal(after.shared, want)
        torch.testing.assert_close(
            after.shared[0], _mean(notes["trained"], before.personal, fed.num_train, before.shared)
        )


def _mean(trained, personal, weight, otherwise):
    """The weighted mean of entry 0 over the clients that share it."""
    pairs = [(w, row[0]) for row, mask, w in zip(trained, personal, weight, strict=True) if not mask[0]]
    return sum(w * x for w, x in pairs) / sum(w for w, _ in pairs) if pairs else otherwise[0]


def test_option_aggregate_last_round():
    fed = federation(rounds=3)
    usual = steps(FedSelect(p=0.2), fed, 3)
    last = steps(FedSelect(p=0.2, aggregate_last_round=False), fed, 3)
    for t in range(2):
        assert same_bits(usual[t][1], last[t][1])
    before, after, notes = last[2]
    assert torch.equal(after.local, notes["trained"])
    assert torch.equal(after.shared, before.shared)
    assert torch.equal(after.personal, usual[2][1].personal)
    assert not torch.equal(usual[2][1].local, notes["trained"])


def test_option_eval_point():
    """The option says which of the two scores is reported; both are noted, and the training is the same."""
    merged, history = run(FedSelect(p=0.2), federation(rounds=3), Schedule(3))
    trained, other = run(FedSelect(p=0.2, eval_point="after_local_update"), federation(rounds=3), Schedule(3))
    assert (FedSelect().reported, FedSelect(eval_point="after_local_update").reported) == (
        "after_merge",
        "after_local_update",
    )
    assert torch.equal(merged.local, trained.local)
    assert without_times(history) == without_times(other)
    assert history.series["loss"] != history.series["loss_trained"]


def test_both_learning_rates_follow_the_schedule():
    late = federation(rounds=2, milestones=(0.5,), decay=0.0)
    algorithm = FedSelect(lr_personal=0.3, lr_shared=0.2)
    clients, mask = everyone(late), coin(4, late.num_entries)
    theta = some_rows(late, clients)
    assert torch.equal(algorithm.local_alt(late, theta, mask, clients, 1)[0], theta)
    assert not torch.equal(algorithm.local_alt(late, theta, mask, clients, 0)[0], theta)


# ---- absent clients -------------------------------------------------------------------------------------------------


def test_absent_clients_keep_model_and_mask_and_receive_shared_entries():
    fed, fixed = federation(), FedSelect(p=0.3, alpha=0.9)
    d = fed.num_params
    state = replace(
        fixed.init(fed, fed.theta0), personal=coin(4, d), local=some_rows(fed, everyone(fed)), shared=2 * fed.theta0
    )
    present = torch.tensor([0, 3])
    new, notes = fixed.round(fed, state, present, 1)
    somebody = (~state.personal[present]).any(0)
    for k in (1, 2):
        receives = ~state.personal[k] & somebody
        assert 0 < receives.sum() < (~state.personal[k]).sum()
        assert torch.equal(new.local[k][receives], new.shared[receives])
        assert torch.equal(new.local[k][~receives], state.local[k][~receives])
        assert torch.equal(new.personal[k], state.personal[k])
    assert torch.equal(new.shared[~somebody], state.shared[~somebody])
    assert (new.personal[present] != state.personal[present]).any(1).all()
    assert torch.equal(new.in_force, state.personal)
    assert notes["upload"].shape == (2,)


def test_absent_clients_keep_their_statistics():
    fed = federation(mlp(bn=True))
    algorithm = FedSelect()
    state = replace(algorithm.init(fed, fed.theta0), local=some_rows(fed, everyone(fed)))
    new, _ = algorithm.round(fed, state, torch.tensor([0, 3]), 0)
    d = fed.num_params
    assert torch.equal(new.local[[1, 2], d:], state.local[[1, 2], d:])
    assert torch.equal(new.local[1, :d], new.shared[:d])


def test_clients_that_are_never_sampled_get_no_mask():
    fed = federation(sizes=(12, 9, 14, 10))
    clients = Schedule(3, 0.5, "once").clients(4, 0, 0)
    state, history = run(FedSelect(p=0.2), fed, Schedule(3, 0.5, "once"))
    absent = [k for k in range(4) if k not in clients.tolist()]
    assert not state.personal[absent].any()
    assert all(row[k] != row[k] for row in history.series["personal_share"][1] for k in absent)


# ---- notes ----------------------------------------------------------------------------------------------------------


def test_movable_entries_are_those_that_have_changed_on_some_client():
    """The second input is 0 at every client: half of the entries never move. p = 1/2 then takes all movable ones."""
    fed = linear_federation([([[2, 0]], [0]), ([[1, 0]], [1])])
    taken = steps(FedSelect(p=0.5, alpha=0.9), fed, 2)
    assert taken[0][1].movable.tolist() == [True, False, True, False]
    assert taken[0][1].personal.tolist() == [[True, False, True, False]] * 2
    assert taken[0][2]["personal_share"].tolist() == [0.5, 0.5]
    assert taken[0][2]["movable_share"].tolist() == [1.0, 1.0]
    quarter = steps(FedSelect(p=0.25, alpha=0.9), fed, 1)[0][2]
    assert (quarter["personal_share"].tolist(), quarter["movable_share"].tolist()) == ([0.25] * 2, [0.5] * 2)


def test_an_entry_that_changed_once_stays_movable():
    """Round 0 moves the first input's weights, at client 0; round 1 the second's, at client 1."""
    fed = linear_federation([([[2, 0]], [0]), ([[0, 3]], [1])])
    algorithm = FedSelect(p=0.0)
    first, _ = algorithm.round(fed, algorithm.init(fed, fed.theta0), torch.tensor([0]), 0)
    second, _ = algorithm.round(fed, first, torch.tensor([1]), 1)
    assert first.movable.tolist() == [True, False, True, False]
    assert second.movable.all()


def test_overlaps_are_computed_from_the_masks_of_the_last_round():
    fed = federation(cnn(bn=True), **IMAGES)
    algorithm = FedSelect(p=0.2, alpha=0.9)
    before, after, _ = steps(algorithm, fed, 3)[-1]
    kept = algorithm.artifacts(fed, after)
    assert set(kept) == {f"{what}/{f.name}" for what in ("overlap", "size") for f in fed.layout.params}
    for f in fed.layout.params:
        masks = before.personal[:, f.start : f.stop]
        want = [[int((a & b).sum()) for b in masks] for a in masks]
        assert kept[f"overlap/{f.name}"].tolist() == want
        assert kept[f"size/{f.name}"] == f.stop - f.start
    assert any(kept[f"overlap/{f.name}"].any() for f in fed.layout.params)


# ---- runs that share their start ------------------------------------------------------------------------------------

STARTS = [  # settings, rounds that are the same as without a limit (of 8; D = 53)
    ({"p": 0.25, "alpha": 0.3}, 2),
    ({"p": 0.25, "alpha": 0.05}, 1),
    ({"p": 0.25, "alpha": 0.0}, 0),
    ({"p": 0.1, "alpha": 0.3}, 4),
    ({"p": 0.25, "alpha": 0.3, "limit_policy": "cap"}, 1),
    ({"p": 0.25, "alpha": 0.3, "mask_update_every": 2, "mask_update_start": 1}, 5),
    ({"p": 0.25, "alpha": 0.3, "mask_update_start": 5}, 7),
    ({"p": 0.25, "alpha": 0.3, "rate_basis": "all"}, 2),
    ({"p": 0.25, "alpha": 0.5, "selection_scope": "per_tensor"}, 1),  # the head's 3 biases: 1 = floor(1.5) of 3
    ({"p": 0.25, "alpha": 0.7, "selection_scope": "per_tensor"}, 2),  # 1, 2 = floor(2.1) of 3
    ({"p": 0.25, "alpha": 0.0, "limit_comparison": "inclusive"}, 1),
    ({"p": 0.25, "alpha": 0.3, "eval_point": "after_local_update", "change_reference": "last_mask_update"}, 2),
    *(({"p": 0.3, "alpha": 0.6, "ranking": r}, 3) for r in ("least_change", "random", "magnitude", "gradient")),
    ({"p": 0.05, "alpha": 0.9}, 8),
    ({"p": 0.0, "alpha": 0.3}, 8),
    ({"p": 0.05, "alpha": 0.9, "aggregate_last_round": False}, 7),
]


@pytest.mark.parametrize(("settings", "same"), STARTS)
def test_prefix(settings, same):
    """States are bitwise equal for this number of rounds; in the next round the masks differ."""
    algorithm, fed = FedSelect(**settings), federation(rounds=8)
    free, rounds = algorithm.shared_prefix(fed)
    assert (free.alpha, free.limit_policy) == (1.0, "check_before")
    assert replace(free, alpha=algorithm.alpha, limit_policy=algorithm.limit_policy) == algorithm
    assert rounds == same
    schedule = Schedule(8, eval_every=8)
    one, other = (run(a, federation(rounds=8), schedule, until=same + 1) for a in (algorithm, free))
    if same:
        ends = [run(a, federation(rounds=8), schedule, until=same)[0] for a in (algorithm, free)]
        assert same_bits(*ends)
    if same < 7:
        assert not torch.equal(one[0].personal, other[0].personal)


def test_prefix_holds_with_partial_participation():
    algorithm, schedule = FedSelect(p=0.25, alpha=0.3), Schedule(8, 0.5)
    free, same = algorithm.shared_prefix(federation(rounds=8))
    ends = [run(a, federation(rounds=8), schedule, until=same)[0] for a in (algorithm, free)]
    assert same_bits(*ends)


def test_prefix_is_the_same_for_all_limits_and_empty_if_counts_depend_on_data_or_masks_are_fixed():
    fed = federation(rounds=8)
    shared = {FedSelect(p=0.1, alpha=a).shared_prefix(fed)[0] for a in (0.05, 0.3, 0.5, 0.8)}
    assert shared == {FedSelect(p=0.1, alpha=1.0)}
    free = FedSelect(p=0.1, alpha=1.0)
    assert free.shared_prefix(fed) == (free, 0)
    ties = FedSelect(tie_rule="threshold")
    assert ties.shared_prefix(fed) == (ties, 0)
    fixed = FedSelect(p=0.3, alpha=0.6, masks="random")  # α decides about round 0
    assert fixed.shared_prefix(fed)[1] == 0

"""Star-PFL's state machine: a worked example cell by cell, and invariants, without training."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfl_core.algorithms.star_pfl.masks import (
    Entries,
    StabilityRule,
    Window,
    average_,
    average_stability,
    check,
    measure,
    push_,
    quantile,
    stability,
)
from pfl_core.seeding import generator
from tests.algorithms.star_pfl.worked_example import KEEP, TABLE
from tests.helpers import same_bits


def window_of(*updates, length=None):
    """A window with these updates [d] in it, all entries active."""
    rows = [torch.as_tensor(u, dtype=torch.float64).reshape(-1) for u in updates]
    window = Window.empty(torch.zeros_like(rows[0]), length or len(rows))
    for row in rows:
        push_(window, row, torch.ones(len(row), dtype=torch.bool))
    return window


def score_of(*updates, length=None):
    return stability(window_of(*updates, length=length)).tolist()[0]


def step(entries, window, update, rule, **options):
    """One round of a server-like state [d]: returns (M in the round, entries, window). Does not change its inputs."""
    active, window = measure(entries, rule), window.clone()
    push_(window, update, active)
    score = torch.where(active, stability(window), entries.score)
    return active, check(replace(entries, score=score, count=window.count), active, rule, **options), window


def machine(updates, rule=None, length=4, start=None, **options):
    """Round after round of ``updates`` [t, d]: (entries before, M, entries after, window after) of each."""
    rule, entries = rule or StabilityRule(0.1), start or Entries.start(torch.zeros_like(updates[0]))
    window, out = Window.empty(updates[0], length), []
    for update in updates:
        active, new, after = step(entries, window, update, rule, **options)
        out.append((entries, active, new, after))
        entries, window = new, after
    return out


# ---- worked example -------------------------------------------------------------------------------------------------


def recorded(window, j):
    """The records of entry j, old to new."""
    ring, slot, count = window.values[:, j].tolist(), int(window.slot[j]), int(window.count[j])
    return (ring[slot:] + ring[:slot])[-count:] if count == len(ring) else ring[:count]


def test_worked_example():
    """All four entries at once. An inactive entry is given an update of 100, which must have no effect."""
    offered = [[100.0 if row[2] == KEEP else row[2] for row in TABLE[name]] for name in TABLE]
    total = torch.zeros(4)
    for t, (before, active, after, window) in enumerate(machine(torch.tensor(offered).T)):
        for j, name in enumerate(TABLE):
            score, m, update, value, history, new_score, waited, interval, probe, m_after = TABLE[name][t]
            at = f"entry {name}, round {t + 1}"
            measured = before.active[j] and not before.probe[j] and before.count[j] > 0
            assert bool(measured) == (score is not None), at
            if score is not None:
                assert before.score[j].item() == pytest.approx(score, abs=1e-7), at
            assert active[j] == m, at
            total[j] += offered[j][t] * m
            assert total[j] == value, at
            assert recorded(window, j) == history, at
            assert after.score[j].item() == pytest.approx(new_score, abs=1e-7), at
            state = (after.frozen[j], after.interval[j], after.probe[j], after.active[j])
            assert tuple(map(int, state)) == (waited, interval, probe, m_after), at
            assert after.trained[j] == m, at


# ---- the score ------------------------------------------------------------------------------------------------------

whole = st.lists(st.integers(-50, 50), min_size=1, max_size=10)


@given(updates=whole, factor=st.sampled_from([-8.0, -1.0, 0.25, 3.0]), seed=st.integers(0, 99))
def test_the_score_lies_in_0_and_1_and_is_1_for_one_sign_only(updates, factor, seed):
    score, path = score_of(*updates), sum(map(abs, updates))
    assert score == pytest.approx(abs(sum(updates)) / path if path else 0.0)
    assert 0 <= score <= 1
    assert (score == 1) == (path > 0 and abs(sum(updates)) == path)
    order = torch.randperm(len(updates), generator=generator(seed, "order")).tolist()
    assert score_of(*[factor * updates[i] for i in order]) == pytest.approx(score)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=10))
def test_rounding_does_not_leave_the_interval(updates):
    window = window_of(*updates)
    assert 0 <= stability(replace(window, values=window.values.float())).item() <= 1


# ---- the state machine ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [StabilityRule(1.0), StabilityRule(1.01, inclusive=True)])
def test_a_threshold_of_one_gives_the_triangular_rounds(rule):
    history = machine(torch.ones(120, 1), rule, length=3)
    active = [bool(m) for _, m, _, _ in history]
    triangular = {k * (k + 1) // 2 for k in range(1, 20)}
    assert [t for t, m in enumerate(active, start=1) if m] == sorted(n for n in triangular if n <= 120)
    for t in range(1, 121):
        assert sum(active[:t]) == math.floor((math.sqrt(8 * t + 1) - 1) / 2)
    probes = [int(after.interval) for before, _, after, _ in history if before.probe]
    assert probes == list(range(2, len(probes) + 2))


@pytest.mark.parametrize(
    ("halving", "expected"), [("ceil", [2, 3, 4, 2, 3, 2, 1, 2]), ("floor", [2, 3, 4, 2, 3, 1, 1, 2])]
)
def test_additive_increase_and_multiplicative_decrease(halving, expected):
    entries, on = Entries.start(torch.zeros(1)), torch.tensor([True])
    got = []
    for result in "sssusuus":
        score = torch.tensor([0.0 if result == "s" else 1.0])
        entries = check(
            replace(entries, probe=on, score=score, count=on.to(torch.uint8)), on, StabilityRule(0.1), halving
        )
        got.append(int(entries.interval))
    assert got == expected


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_halving_with_ceil_waits_as_long_as_real_division(results):
    """An entry waits until the integer L reaches F, so only F rounded up matters."""
    real, entries, on = 1.0, Entries.start(torch.zeros(1)), torch.tensor([True])
    for stable in results:
        score = torch.tensor([0.0 if stable else 1.0])
        entries = check(replace(entries, probe=on, score=score, count=on.to(torch.uint8)), on, StabilityRule(0.1))
        real = real + 1 if stable else real / 2
        assert int(entries.interval) == max(1, math.ceil(real))


def noise(seed, rounds=60, d=40):
    """Updates [t, d] of several kinds: noise, drift, oscillation, zeros."""
    x = torch.randn(rounds, d, generator=generator(seed, "updates"))
    x[:, :5] += 1
    x[:, 5:10] = (-1.0) ** torch.arange(rounds)[:, None]
    x[:, 10:15] = 0
    return x


@pytest.mark.parametrize("halving", ["ceil", "floor"])
@pytest.mark.parametrize("seed", range(3))
def test_an_entry_is_frozen_for_F_rounds_then_probed_for_one(seed, halving):
    history = machine(noise(seed), StabilityRule(0.3), halving=halving)
    window, waits = Window.empty(torch.zeros(40), 4), {}
    for before, active, after, new in history:
        frozen = ~active
        assert not (after.frozen[after.active] != 0).any()
        assert not (after.probe & ~after.active).any()
        assert (after.interval >= 1).all() and after.interval.dtype == torch.int16
        assert active[before.probe].all()
        assert not (after.probe & active).any()  # a probe lasts one round
        assert torch.equal(after.trained, active)
        for old, now in ((window.values.T, new.values.T), (window.slot, new.slot), (window.count, new.count)):
            assert torch.equal(old[frozen], now[frozen])
        assert torch.equal(before.score[frozen], after.score[frozen])
        for j in range(40):
            if frozen[j]:
                waits[j] = waits.get(j, 0) + 1
                assert before.interval[j] == after.interval[j]
            elif j in waits:
                assert waits.pop(j) == before.interval[j]
        window = new
    assert sum(int((~active).sum()) for _, active, _, _ in history) > 300


def test_a_start_from_zeros_differs_less_the_longer_training_runs():
    """A1 of the method page, in its numbers: mask entries that differ, and the difference of the frozen shares."""
    x = torch.randn(174, 20_000, generator=generator(0, "updates"))
    ones = Entries.start(x[0])
    runs = [machine(x, length=10, start=start) for start in (ones, replace(ones, active=torch.zeros_like(ones.active)))]
    active, literal = (torch.stack([active for _, active, _, _ in run]) for run in runs)  # [t, d]
    assert not literal[0].any() and literal[1].all()  # frozen in round 1, probed in round 2
    for rounds, differing, frozen in ((60, 16, 1.2), (174, 9, 0.4)):
        some, other = active[:rounds], literal[:rounds]
        assert 100 * (some != other).double().mean() == pytest.approx(differing, abs=0.6)
        assert 100 * (some.double().mean() - other.double().mean()) == pytest.approx(frozen, abs=0.15)


def test_without_thaw_frozen_entries_stay_frozen():
    history = machine(noise(0), StabilityRule(0.3), thaw=False)
    for (_, active, after, _), (_, later, _, _) in zip(history, history[1:], strict=False):
        assert not (later & ~active).any()
        assert not after.probe.any()
    assert not history[-1][1].all()


def test_the_operations_on_rows_equal_those_on_each_row():
    """Operations on [N, d] equal those on each row."""
    x = torch.stack([noise(seed) for seed in range(3)], 1)  # [t, N, d]
    together = machine(x, StabilityRule(0.3))
    for k in range(3):
        for (_, active, after, window), (_, own, alone, ring) in zip(
            together, machine(x[:, k], StabilityRule(0.3)), strict=True
        ):
            assert torch.equal(active[k], own)
            assert same_bits([getattr(after, n)[k] for n in vars(after)], [getattr(alone, n) for n in vars(alone)])
            assert torch.equal(window.values[k], ring.values)


# ---- rules: A2 to A5, A16 -------------------------------------------------------------------------------------------

ALL = torch.ones(4, dtype=torch.bool)
SCORE, COUNT = torch.tensor([0.0, 0.0, 0.05, 1.0]), torch.tensor([0, 1, 2, 3], dtype=torch.uint8)


@pytest.mark.parametrize(
    ("rule", "stable"),
    [
        (StabilityRule(0.1), [0, 1, 1, 0]),  # A4: nothing recorded is not stable; A2: recorded zeros (0 / 0) are
        (StabilityRule(0.1, min_history=2), [0, 0, 1, 0]),
        (StabilityRule(2.0, min_history=3), [0, 0, 0, 1]),
        (StabilityRule(None), [0, 0, 0, 0]),
        (StabilityRule(-1.0), [0, 0, 0, 0]),
        (StabilityRule(0.0), [0, 1, 0, 0]),
        (StabilityRule(0.0, inclusive=True), [0, 0, 0, 0]),
        (StabilityRule(0.1, empty_is_stable=True, tensors=(slice(0, 4),)), [1, 1, 1, 0]),
        (StabilityRule(0.1, empty_is_stable=True, tensors=(slice(0, 1), slice(1, 4))), [0, 1, 1, 0]),
    ],
)
def test_which_entries_are_stable(rule, stable):
    assert rule(SCORE, COUNT, ALL).int().tolist() == stable


def test_an_entry_with_score_nan_is_not_stable():
    for inclusive in (False, True):
        nan = torch.tensor([math.nan])
        assert not StabilityRule(2.0, inclusive)(nan, torch.tensor([9]), torch.tensor([True]))
    assert math.isnan(score_of(1.0, math.inf)) and math.isnan(score_of(1.0, math.nan))


def test_a16_the_lowest_scores_of_every_tensor_are_stable_even_with_threshold_0():
    """Two tensors of 200 and 100 entries; 0.7 % of 199 gaps is 1.393, of 99 it is 0.693: two entries, and one."""
    score = torch.cat([torch.arange(1, 201) / 400, torch.arange(1, 101) / 200])
    rule = StabilityRule(0.0, True, floor=0.007, tensors=(slice(0, 200), slice(200, 300)))
    count, measured = torch.ones(300), torch.ones(300, dtype=torch.bool)
    assert rule(score, count, measured).nonzero().squeeze(1).tolist() == [0, 1, 200]
    measured[:60] = False  # a fifth of the model is frozen: 0.5 % of 139 gaps, 0.695
    assert (rule(score, count, measured) & measured).nonzero().squeeze(1).tolist() == [60, 200]
    measured[:] = torch.arange(300) >= 150
    rule = replace(rule, floor=0.004)  # half of the model is frozen, more than 0.4: the threshold is not raised
    assert (rule(score, count, measured) & measured).nonzero().squeeze(1).tolist() == [200]
    assert (StabilityRule(0.05, True, floor=0.007, tensors=rule.tensors)(score, count, count > 0)).sum() == 19 + 9


@pytest.mark.parametrize(("cap", "num_stable"), [("frozen", 4), ("unmeasured", 1)])
def test_a16_probing_entries_lower_the_quantile_unless_only_frozen_ones_count(cap, num_stable):
    """500 of 1000 are probing, none is frozen: the quantile is 0.7 % of 500 scores, or 0.7 - 0.5 = 0.2 % of them."""
    score, count = torch.arange(1000) / 1000, torch.ones(1000, dtype=torch.uint8)
    measured, rule = (
        torch.arange(1000) < 500,
        StabilityRule(0.0, True, floor=0.007, floor_cap=cap, tensors=(slice(0, 1000),)),
    )
    assert (rule(score, count, measured, torch.zeros_like(measured)) & measured).sum() == num_stable


@given(st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=30), st.floats(0, 1))
def test_quantile_equals_that_of_torch(values, q):
    x = torch.tensor(values, dtype=torch.float64)
    assert quantile(x, q) == pytest.approx(torch.quantile(x, q).item(), abs=1e-9)


def test_a_cap_keeps_the_entries_with_the_highest_scores_active():
    entries = replace(Entries.start(torch.zeros(6)), score=torch.tensor([0.05, 0.01, 0.03, 0.9, 0.0, 0.07]))
    entries = replace(entries, count=torch.ones(6), active=torch.tensor([1, 1, 1, 1, 0, 1]).bool())
    rule = StabilityRule(0.1)
    assert measure(entries, rule).int().tolist() == [0, 0, 0, 1, 0, 0]
    for most, active in (
        (9, [0, 0, 0, 1, 0, 0]),
        (3, [1, 0, 0, 1, 0, 1]),
        (1, [1, 1, 1, 1, 0, 1]),
        (0, [1, 1, 1, 1, 0, 1]),
    ):
        assert measure(entries, rule, most).int().tolist() == active


def test_moving_averages_by_hand():
    """u = 1, then -1, a = 1/2: E = 1/2, -1/4; A = 1/2, 3/4. The second entry is inactive the second time."""
    window = Window.empty(torch.zeros(2), 2)
    average_(window, torch.tensor([1.0, 1.0]), torch.tensor([True, True]), 0.5)
    average_(window, torch.tensor([-1.0, -1.0]), torch.tensor([True, False]), 0.5)
    assert window.values.tolist() == [[-0.25, 0.5], [0.75, 0.5]]
    assert average_stability(window).tolist() == [pytest.approx(1 / 3), 1.0]
    assert window.count.tolist() == [2, 1]
    assert window.values.tolist() == [[-0.25, 0.5], [0.75, 0.5]]  # scoring writes nothing

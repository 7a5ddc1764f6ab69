"""Claims as inequalities: laws of the outcomes, and the values, runs and printed numbers behind them."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from pfl_core import papers
from pfl_core.study import claims, pictures
from pfl_core.study.claims import (
    NOT_FOUND,
    NOT_RUN,
    OPEN,
    OUTCOMES,
    REPRODUCED,
    REVERSED,
    SHOWN,
    Claims,
    Found,
    Values,
    best,
    count,
    judge,
    matches,
    mean,
    outcome,
    rank,
    same,
    share,
    slope,
    within,
)
from pfl_core.study.frame import frame
from pfl_core.study.published import ANY

DECIDED = (REPRODUCED, NOT_FOUND, REVERSED)
NOISE = (0.0, 0.3, -0.3, 0.2, -0.2, 0.1)
USUAL = {"alpha": 0.5, "whole": True}  # the fields of every method here


# ---- a paper with invented runs and printed numbers -----------------------------------------------------------------


def paper(
    effects=None, printed=(), *, tables=(1,), stands_for=None, searched=None, removed=lambda row: False, **options
):
    """A paper with one claim, and with the printed numbers (setting, method, value, fields) in its table 1.

    The claim: the paper's own method is more accurate than ``rival``.
    """
    known = Claims()
    known(1, "text", **{"on": ("set",), "printed": tables} | options)(effects or lead)
    cells = {}
    for setting, method, value, *fields in printed:
        cell = {"value": value, "metrics": ("acc_mean",), "fields": dict(*fields)}
        cells.setdefault(("table1", setting, method), []).append(cell)
    return SimpleNamespace(
        **{"name": "own", "score": "acc_mean", "claims": known, "printed_cells": cells, "removed": removed},
        **{"stands_for": stands_for or {}, "searched_first": (", searched", "")},
        usual_fields=lambda method: USUAL,
        settings=SimpleNamespace(searched=searched or {}),
        check_names=lambda method, fields, columns: None,
        label=lambda method, fields: ", ".join([method, *(f"{n} = {v}" for n, v in fields.items())]),
    )


def lead(r):
    """It leads."""
    yield r() - r("rival") > 0


def rows(method, scores, setting="set", preset="paper", fields=None, seeds=None, **columns):
    """A run for each seed. ``scores``: one for each seed, or about their mean, with a noise of its own."""
    if isinstance(scores, int | float):
        first = (len(method) + len(fields or {})) % 3
        scores = [scores + noise for noise in NOISE[first : first + 4]]
    known = {"method": method, "setting": setting, "preset": preset, "rounds": 100, "partial": False, "stale": False}
    known |= {"data": setting, "failed": 0.0, "inert": 0.0, "late_change": 0.0} | USUAL | (fields or {})
    changed = [name for name, value in (fields or {}).items() if USUAL.get(name) != value]
    made = []
    for seed, score in zip(seeds or range(len(scores)), scores, strict=False):
        key = f"{method} {setting} {preset} {fields or ''} {columns.get('rounds', '')} {seed}"
        made.append(known | {"seed": seed, "key": key, "changed": changed, "acc_mean": score} | columns)
    return made


def judged(of, *runs):
    return judge(of, frame(row for group in runs for row in group))[0]


def only(of, *runs):
    """The one effect of a claim."""
    (effect,) = judged(of, *runs).effects
    return effect


def leads(*differences, **columns):
    """Runs in which the own method leads by this much, seed by seed."""
    return [
        rows("own", [50.0 + d for d in differences], **columns),
        rows("rival", [50.0] * len(differences), **columns),
    ]


# ---- laws of an effect ----------------------------------------------------------------------------------------------

whole = st.integers(-40, 40)
NUMBERS = st.lists(whole.map(lambda n: n / 4), min_size=3, max_size=6)
SIDES = st.sampled_from((1, -1))
BOUNDS = whole.map(lambda n: n / 4)
PRINTED_LEADS = st.lists(st.integers(1, 40).map(lambda n: n / 4), max_size=3)  # above the bound, on the claimed side
MARGINS = st.sampled_from((None, 0.5, 1.0, 5.0))


@given(NUMBERS, SIDES, BOUNDS, PRINTED_LEADS, MARGINS)
def test_mirrored_numbers_have_the_same_outcome_on_the_other_side(numbers, side, bound, above, margin):
    printed = [bound + side * a for a in above]
    mirrored = [-n for n in numbers], -side, -bound, [-p for p in printed], margin
    assert outcome(numbers, side, bound, printed, margin) == outcome(*mirrored)


@given(NUMBERS, SIDES, BOUNDS, PRINTED_LEADS, MARGINS)
def test_the_opposite_effect_is_reversed_where_this_one_is_reproduced(numbers, side, bound, above, margin):
    ours = outcome(numbers, side, bound, [bound + side * a for a in above], margin)[0]
    opposite = outcome(numbers, -side, bound, [bound - side * a for a in above], margin)[0]
    assert (ours == REPRODUCED) == (opposite == REVERSED)
    assert (ours == REVERSED) == (opposite == REPRODUCED)


@given(NUMBERS, SIDES, BOUNDS, PRINTED_LEADS, MARGINS, st.floats(1, 10))
def test_a_wider_interval_never_turns_open_into_a_decision(numbers, side, bound, above, margin, wider):
    printed, center = [bound + side * a for a in above], sum(numbers) / len(numbers)
    before = outcome(numbers, side, bound, printed, margin)[0]
    after = outcome([center + wider * (n - center) for n in numbers], side, bound, printed, margin)[0]
    assert after == OPEN if before == OPEN else {before, after} != {REPRODUCED, REVERSED}


@given(NUMBERS, BOUNDS, PRINTED_LEADS)
def test_not_found_contains_the_bound_and_falls_short_of_every_printed_effect(numbers, bound, above):
    found = only(bounded(bound, [bound + a for a in above]), rows("own", numbers))
    if above and found.outcome == NOT_FOUND:
        assert found.low <= bound <= found.high < min(found.printed)
    if found.outcome == REPRODUCED:
        assert found.low > bound
        assert (found.size == "smaller") == bool(above and min(found.printed) > found.high)
        assert (found.size == "larger") == bool(above and max(found.printed) < found.low)
    assert found.outcome == REPRODUCED or found.size == ""


def bounded(bound, printed):
    """A claim about a level, on a stand-in for data sets with these printed numbers."""

    def effects(r):
        yield r() > bound

    names = tuple(f"set {i}" for i in range(len(printed)))
    cells = [(name, "own", number) for name, number in zip(names, printed, strict=True)]
    return paper(effects, cells, stands_for={"set": names})


PRESENT = st.lists(st.sampled_from(range(6)), unique=True)


@given(PRESENT, PRESENT)
def test_fewer_than_three_common_seeds_decide_nothing(own, rival):
    """Only seeds that both methods have count, and the others change nothing."""
    runs = rows("own", [80.0 + NOISE[s] for s in own], seeds=own), rows("rival", [70.0] * len(rival), seeds=rival)
    common = [seed for seed in own if seed in rival]
    found = only(paper(), *runs)
    expected = {0: NOT_RUN, 1: OPEN, 2: OPEN}.get(len(common), REPRODUCED)
    assert (found.outcome, found.seeds) == (expected, len(common))
    assert found.reason == {1: "one seed", 2: "two seeds"}.get(len(common), "")
    assert {int(key[-1]) for key in found.keys} == set(common)


def all_forms(r):
    """An effect of every form."""
    own, a, b, c = r(), r("a"), r("b"), r("c")
    yield own - a > 0
    yield own - best([a, b]) > 0
    yield own - mean([b, c]) > 0
    yield rank(own, [a, b, c]) < 2.5
    yield share([own - a, own - b], "share") > 0.5
    yield count([own - b, own - c], "count") > 1.5
    yield slope({1.0: a, 2.0: b, 3.0: c}, "x") > 0
    yield 2 * own - a * 1.0 + b / c > 0


NEEDED = ("own a", "own a b", "own b c", "own a b c", "own a b", "own b c", "a b c", "own a b c")
SCORES = {"own": 75.0, "a": 70.0, "b": 72.0, "c": 71.0}


@given(st.sets(st.sampled_from(sorted(SCORES))), st.permutations(NOISE[:4]))
def test_a_missing_method_leaves_its_effects_without_runs_and_the_others_as_they_are(missing, noise):
    runs = {name: rows(name, [score + n for n in noise]) for name, score in SCORES.items()}
    every = judged(paper(all_forms), *runs.values()).effects
    some = judged(paper(all_forms), *(group for name, group in runs.items() if name not in missing))
    for needed, before, after in zip(NEEDED, every, some.effects, strict=True):
        if missing & set(needed.split()):
            assert (after.outcome, after.seeds, after.keys) == (NOT_RUN, 0, ())
        else:
            assert (after.outcome, after.mean, after.keys) == (before.outcome, before.mean, before.keys)
    assert some.word == claims._word(effect for effect in some.effects if effect.outcome != NOT_RUN)


@given(st.lists(st.sampled_from(OUTCOMES), max_size=6), st.integers(0, 3))
def test_effects_that_are_not_run_do_not_enter_the_word(outcomes, more):
    def word(names):
        return claims._word(blank(outcome=name) for name in names)

    assert word([*outcomes, *[NOT_RUN] * more]) == word(outcomes)
    run = set(outcomes) - {NOT_RUN}
    assert (word(outcomes) == REPRODUCED) == (run == {REPRODUCED})
    assert (word(outcomes) == REVERSED) == (REVERSED in run)
    assert (word(outcomes) == NOT_FOUND) == (NOT_FOUND in run and REVERSED not in run)
    assert (word(outcomes) == NOT_RUN) == (not run)


def blank(**fields):
    known = {"effect": "", "setting": "", "option": None, "side": 1, "bound": 0.0, "exact": False, "seeds": 3}
    return Found(**known | fields)


@pytest.mark.parametrize(
    ("differences", "printed", "margin", "expected"),
    [
        ((2.0, 2.1, 1.9), 2.0, 1.0, (REPRODUCED, "", "")),
        ((2.0, 2.1, 1.9), 4.0, 1.0, (REPRODUCED, "smaller", "")),
        ((2.0, 2.1, 1.9), 0.5, 1.0, (REPRODUCED, "larger", "")),
        ((2.0, 2.1, 1.9), -4.0, 1.0, (REPRODUCED, "", "")),  # the paper's own number misses the bound
        ((0.0, 0.1, -0.1), 2.0, None, (NOT_FOUND, "", "")),
        ((0.0, 0.1, -0.1), 0.2, 1.0, (OPEN, "", "too wide: about 4 seeds")),  # no margin beside a printed number
        ((0.0, 0.1, -0.1), None, 1.0, (NOT_FOUND, "", "")),
        ((0.0, 0.1, -0.1), -2.0, 1.0, (NOT_FOUND, "", "")),
        ((0.0, 0.1, -0.1), None, None, (OPEN, "", "too wide: over 100 seeds")),
        ((0.0, 0.1, -0.1), None, 0.2, (OPEN, "", "too wide: about 4 seeds")),
        ((0.5, 1.5, -0.5), None, 1.0, (OPEN, "", "too wide: about 18 seeds")),
        ((-0.5, -0.26, -0.74), None, 1.0, (OPEN, "", "too wide: about 4 seeds")),  # within 1 above, not below
        ((-2.0, -2.1, -1.9), 2.0, 1.0, (REVERSED, "", "")),
        ((2.0, 2.1), 2.0, 1.0, (OPEN, "", "two seeds")),
        ((2.0, 2.0), 2.0, 1.0, (OPEN, "", "two seeds")),  # equal
        ((2.0, 2.0, 2.0), 2.0, 1.0, (REPRODUCED, "", "")),  # an interval of width 0
        ((2.0,), 2.0, 1.0, (OPEN, "", "one seed")),
        ((), 2.0, 1.0, (NOT_RUN, "", "")),
    ],
)
def test_outcomes(differences, printed, margin, expected):
    cells = [] if printed is None else [("set", "own", 60.0 + printed), ("set", "rival", 60.0)]
    found = only(paper(None, cells, margin=margin), *leads(*differences))
    assert (found.outcome, found.size, found.reason) == expected
    assert found.misses == (printed is not None and printed < 0)


@given(NUMBERS, PRINTED_LEADS, MARGINS)
def test_too_wide_names_the_least_number_of_seeds_whose_interval_decides(numbers, printed, margin):
    """Numbers with the same mean and standard deviation, as far as their number allows."""
    found, _, reason = outcome(numbers, 1, 0.0, printed, margin)
    if found == OPEN and "about" in reason:
        center, deviation = pd.Series(numbers).mean(), pd.Series(numbers).std()
        needed = int(reason.split()[-2])
        halves = [stdtrit(n - 1, 0.975) * deviation / math.sqrt(n) for n in range(len(numbers), needed + 1)]
        ends = [(center - half, center + half) for half in halves]
        decides = [low > 0 or high < 0 or short(low, high, printed, margin) for low, high in ends]
        assert decides == [False] * (needed - len(numbers)) + [True]


def short(low, high, printed, margin):
    return high < min(printed) if printed else margin is not None and -margin < low and high < margin


# ---- Holm's method --------------------------------------------------------------------------------------------------

P_VALUES = st.lists(st.integers(0, 24).map(lambda n: n / 400), min_size=1, max_size=6)  # 0 to 0.06


def kept(p_values, **fields):
    """Which of the reversed effects with these p-values stay reversed."""
    effects = [blank(**{"outcome": REVERSED, "low": -2.0, "high": -1.0, "p": p} | fields) for p in p_values]
    after = claims._after_holm(effects)
    assert all(f.outcome == REVERSED or (f.outcome, f.reason) == (OPEN, "after Holm") for f in after)
    return [found.outcome == REVERSED for found in after]


@given(P_VALUES)
def test_kept_are_those_whose_adjusted_p_value_is_at_most_the_level(p_values):
    """Adjusted: (m - k) p in ascending order, and no smaller than any before."""
    ordered, least, adjusted = sorted(p_values), 0.0, {}
    for k, p in enumerate(ordered):
        least = max(least, (len(ordered) - k) * p)
        adjusted.setdefault(p, least)
    assert kept(p_values) == [adjusted[p] <= 0.05 for p in p_values]


NOT_TESTED = [
    {"outcome": SHOWN},
    {"low": math.nan},
    {"outcome": NOT_RUN, "low": math.nan},
    {"outcome": OPEN, "seeds": 2},
]


@given(P_VALUES, st.sampled_from(NOT_TESTED))
def test_shown_effects_and_those_without_an_interval_over_three_seeds_are_not_counted(p_values, fields):
    reversed_ = [blank(outcome=REVERSED, low=-2.0, high=-1.0, p=p) for p in p_values]
    others = [blank(**{"low": -9.0, "p": 0.9} | fields)] * 3
    assert claims._after_holm([*others, *reversed_])[3:] == claims._after_holm(reversed_)


def test_only_reversed_effects_with_an_interval_can_be_lost():
    wide = {"low": -2.0, "high": -1.0, "p": 0.04}
    effects = [blank(outcome=name, **wide) for name in (REVERSED, REPRODUCED, NOT_FOUND, OPEN)]
    effects.append(blank(outcome=REVERSED, exact=True))
    assert [f.outcome for f in claims._after_holm(effects)] == [OPEN, REPRODUCED, NOT_FOUND, OPEN, REVERSED]


@pytest.mark.parametrize(
    ("printed", "word"), [((), OPEN), ((3.0,), NOT_FOUND), ((-3.0,), OPEN), ((-3.0, 3.0), NOT_FOUND)]
)
def test_a_lost_effect_is_not_found_if_a_printed_number_meets_the_bound(printed, word):
    (lost,) = claims._after_holm([blank(outcome=REVERSED, low=-2.0, high=-1.0, p=0.06, printed=printed)])
    assert lost.outcome == word


@pytest.mark.parametrize(
    ("dataset", "data", "shown"),
    [
        ("cifar_mnist", "cifar10: CIFAR-10 (JPEG copy)", "CIFAR-MNIST"),
        ("cifar10", "CIFAR-10 (JPEG copy)", "CIFAR-10"),
        ("synthetic_32k", "generated here: the paper does not publish it", "data generated here"),
    ],
)
def test_the_data_of_an_effect_are_named_as_a_whole(dataset, data, shown):
    found = only(paper(), *leads(2, 2.1, 1.9, dataset=dataset, data=data))
    assert pictures.data_of([found]) == shown


def test_a_quick_effect_takes_nothing_from_a_reversed_one():
    """Alone its p of 0.03 is enough; of two tests it would have to be 0.025."""

    def effects(r):
        yield r() - r("rival") > 0
        yield r() - r("other") > 0

    runs = leads(-1.0, -0.45, -1.3, -0.45)
    assert judged(paper(effects), *runs).effects[0].p == pytest.approx(0.032, abs=0.001)
    quick = rows("own", 50.0, preset="quick"), rows("other", [50.0, 52.0, 48.0], preset="quick")
    found = judged(paper(effects), *runs, *quick)
    assert [f.outcome for f in found.effects] == [REVERSED, SHOWN] and found.word == REVERSED
    beside = judged(paper(effects), *runs, rows("other", [50.0, 52.0, 48.0, 50.0]))
    assert [f.reason for f in beside.effects][0] == "after Holm" and beside.word == OPEN


# ---- numbers by seed ------------------------------------------------------------------------------------------------


def values(*numbers, seeds=None, **fields):
    return Values(dict(zip(seeds or range(len(numbers)), numbers, strict=True)), **fields)


A, B = values(1.0, 2.0, 4.0), values(3.0, 5.0, seeds=(1, 2))


def test_arithmetic_is_by_seed_over_the_common_seeds():
    assert (A - B).by_seed == {1: -1.0, 2: -1.0}
    assert (A + B).by_seed == {1: 5.0, 2: 9.0} and (A * B).by_seed == {1: 6.0, 2: 20.0}
    assert (A / B).by_seed == {1: 2 / 3, 2: 0.8} and abs(A - B).by_seed == {1: 1.0, 2: 1.0}
    assert (1 - A).by_seed == {0: 0.0, 1: -1.0, 2: -3.0} and (2 * A).by_seed == (A * 2).by_seed == (A + A).by_seed
    assert (A - 1).by_seed == {0: 0.0, 1: 1.0, 2: 3.0} and (A / 2).by_seed == {0: 0.5, 1: 1.0, 2: 2.0}


NOTHING = Values({})


@pytest.mark.parametrize(
    "made",
    [
        A - NOTHING,
        NOTHING + A,
        A - values(1.0, seeds=(7,)),
        abs(NOTHING),
        1 - NOTHING,
        mean([A, NOTHING]),
        best([A, NOTHING]),
        best([NOTHING, A], lowest=True),
        best([A, values(1.0, seeds=(7,))]),
        rank(A, [B, NOTHING]),
        rank(NOTHING, [A, B]),
        share([A, NOTHING], "share"),
        count([A, NOTHING], "count"),
        slope({1.0: A, 2.0: NOTHING}, "x"),
    ],
)
def test_a_missing_part_leaves_nothing(made):
    assert not made and made.by_seed == {} and math.isnan(made.mean) and not made.runs


def test_values_of_which_runs_are_missing_give_way_to_others():
    assert (NOTHING or A) is A and (A or NOTHING) is A


def test_mean_best_rank_share_count_and_slope():
    c = values(9.0, 0.0, 4.0)
    assert mean([A, B]).by_seed == {1: 2.5, 2: 4.5}
    assert best([A, c]).by_seed == c.by_seed and best([A, c], lowest=True).by_seed == A.by_seed  # means 2.33 and 4.33
    fewer = values(2.0, 2.5)  # 2.25, where A has 2.33 over its three seeds, and 1.5 over these two
    assert best([A, fewer]).by_seed == fewer.by_seed and best([A, fewer], lowest=True).by_seed == A.by_seed
    assert rank(A, [c, B]).by_seed == {1: 2.0, 2: 2.0} and rank(A, [c]).by_seed == {0: 2.0, 1: 1.0, 2: 1.0}
    signs = [A - 1, c - 1, c - 3]
    assert share(signs, "share").by_seed == {0: pytest.approx(2 / 3), 1: pytest.approx(1 / 3), 2: 1.0}
    assert count(signs, "count").by_seed == {0: 2.0, 1: 1.0, 2: 3.0}
    assert slope({0.0: A, 1.0: A + 2, 3.0: A + 6}, "x").by_seed == pytest.approx(dict.fromkeys(range(3), 2.0))


def test_values_keep_the_runs_of_the_seeds_that_they_have():
    def with_runs(name, seeds):
        return values(*[1.0] * len(seeds), seeds=seeds, runs={f"{name}{s}": {"seed": s} for s in seeds})

    a, b, c = with_runs("a", (0, 1)), with_runs("b", (1, 2)), with_runs("c", (1, 2, 3)) + 1
    assert set((a - b).runs) == {"a1", "b1"}
    assert set(mean([b, c]).runs) == {"b1", "b2", "c1", "c2"} and set(best([b, c]).runs) == {"c1", "c2", "c3"}


def test_counts_and_names_stay_with_what_is_made_of_them():
    assert (A.exact - B).counted and not (A - B).counted and mean([A, A.exact]).counted
    assert A.named("x").text == "x" and (A.named("x") - 1).text == "x − 1"


def test_within_is_two_effects():
    low, high = within(A, 2.0)
    assert (low.side, low.bound, high.side, high.bound) == (1, -2.0, -1, 2.0)

    def effects(r):
        yield from within(r() - r("rival"), 1.0)

    for differences, word in [((0.1, 0.2, 0.0), REPRODUCED), ((3.0, 3.1, 2.9), REVERSED), ((0.0, 2.0, -2.0), OPEN)]:
        assert judged(paper(effects), *leads(*differences)).word == word


def test_an_effect_is_no_condition():
    with pytest.raises(TypeError, match="yield from within"):
        assert -1 < A < 1


def test_effects_are_named_by_what_they_compare():
    def effects(r):
        yield r(alpha=0.3) - r("rival") > 0
        yield r("rival") - (r() - r(alpha=0.3)) < 2.5
        yield r(metric="rounds_to_95") - r("rival", "rounds_to_95") > 0
        yield r(metric="rounds_to_95").named("rounds") > 0
        yield 1 - r("rival") > 0
        yield best([r(), r("rival")]) > 0

    assert [found.effect for found in judged(paper(effects)).effects] == [
        "own, alpha = 0.3 − rival > 0",
        "rival − (own − own, alpha = 0.3) < 2.5",
        "rounds to 95 %: own − rival > 0",
        "rounds > 0",
        "1 − rival > 0",
        "best of own, rival > 0",
    ]


# ---- which runs a claim picks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "changed", "named", "picked"),
    [
        ({}, [], {}, True),
        ({"alpha": 0.3}, ["alpha"], {}, False),  # not the default
        ({"alpha": 0.3}, ["alpha"], {"alpha": 0.3}, True),
        ({"alpha": 0.1 + 0.2}, ["alpha"], {"alpha": 0.3}, True),
        ({"alpha": 0.3}, ["alpha"], {"alpha": 0.5}, False),
        ({}, [], {"alpha": 0.5}, True),  # the default, named
        ({"alpha": 0.3, "beta": 1}, ["alpha", "beta"], {"alpha": 0.3}, False),  # another field is changed, too
        ({"alpha": 1}, ["alpha"], {"alpha": 1.0}, True),
        ({"alpha": 1}, ["alpha"], {"alpha": True}, False),
        ({"whole": False}, ["whole"], {"whole": 0}, False),
        ({"whole": False}, ["whole"], {"whole": False}, True),
        ({"layers": ("a", "b")}, ["layers"], {"layers": ("a", "b")}, True),
        ({}, [], {"layers": ("a", "b")}, False),  # a field that the run does not have
        ({"alpha": math.nan}, [], {"alpha": None}, True),  # None in a column of numbers
        ({"alpha": 0.5}, [], {"alpha": None}, False),
        ({"partition_alpha": 0.1}, [], {"partition_alpha": 0.1}, True),
        ({"partition_alpha": 0.1}, [], {"partition_alpha": 0.5}, False),
    ],
)
def test_matches(fields, changed, named, picked):
    assert matches(USUAL | fields | {"changed": changed}, named) is picked


def test_same():
    assert same(0.3, 0.1 + 0.2) and same(1, 1.0) and same("a", "a") and same(("a",), ("a",)) and same(None, math.nan)
    assert not (same(1, True) or same(True, 1.0) or same(0.3, 0.31) or same("1", 1) or same(None, 0.0))


def picked(runs, pick, **options):
    """The keys behind the first effect of a claim that asks this."""
    return set(only(paper(lambda r: [pick(r) > 0], **options), *runs).keys)


def keys(group):
    return {row["key"] for row in group}


def test_a_claim_picks_by_method_field_setting_and_metric():
    own, small, rival = rows("own", 80.0), rows("own", 81.0, fields={"alpha": 0.3}), rows("rival", 70.0)
    few, less = rows("own", 60.0, "set, few"), rows("rival", 50.0, time=2.0)
    runs = own, small, rival, few
    assert picked(runs, lambda r: r()) == picked(runs, lambda r: r(alpha=0.5)) == keys(own)
    assert picked(runs, lambda r: r(alpha=0.3)) == keys(small) and picked(runs, lambda r: r(alpha=0.1)) == set()
    assert picked(runs, lambda r: r("rival")) == keys(rival)
    assert picked(runs, lambda r: r.at("set, few")()) == keys(few)
    assert picked(runs, lambda r: r() - r.at("set, few")()) == keys(own) | keys(few)
    assert picked((own, less), lambda r: r("rival", "time")) == keys(less)
    assert picked((own, less), lambda r: r("own", "time")) == set()


def test_two_runs_for_one_seed_are_an_error():
    """Here of two data partitions that the claim does not tell apart."""
    runs = [rows("own", 80.0, key=str(i), partition_alpha=alpha) for i, alpha in enumerate((0.1, 0.5))]
    with pytest.raises(ValueError, match="two runs of own with .* and seed 0: 0 and 1; name what differs"):
        picked(runs, lambda r: r())
    assert picked(runs, lambda r: r(partition_alpha=0.5)) == {"1"}


def test_a_target_that_is_not_reached_counts_as_a_round_after_the_last():
    reached, never = rows("own", 80.0, rounds_to_95=40.0), rows("rival", 80.0, rounds_to_95=math.nan)

    def mean_of(metric, *runs):
        return only(paper(lambda r: [r("rival", metric) - r("own", metric) > 0]), *runs).mean

    assert mean_of("rounds_to_95", reached, never) == 101.0 - 40.0
    assert math.isnan(mean_of("rounds_to_99", reached, never)), "a metric that no run has"
    assert math.isnan(mean_of("time", rows("own", 1.0, time=1.0), rows("rival", 1.0)))


@given(st.integers(-2, 2), st.integers(-2, 2))
def test_the_true_numbers_lie_where_a_later_target_would_move_them(a, b):
    late = values(101.0, 90.0, censored=frozenset([1]))
    early = values(40.0, 50.0)
    assert (a * late + b * early).censored == {(a > 0) - (a < 0)} - {0}
    both = (a * late - b * replace(late, by_seed={0: 60.0, 1: 101.0})).censored
    assert both == {(n > 0) - (n < 0) for n in (a, -b)} - {0}


@pytest.mark.parametrize(
    ("made", "sides"),
    [
        (lambda late, other: late / other, {1}),
        (lambda late, other: other / late, {-1}),
        (lambda late, other: late / late, set()),
        (lambda late, other: mean([other, late]), {1}),
        (lambda late, other: rank(late, [other]), set()),  # the first already, whatever the number
        (lambda late, other: rank(other, [late]), set()),
        (lambda late, other: slope({0.0: late, 1.0: other}, "x"), {-1}),
        (lambda late, other: best([other, late], lowest=True), set()),
    ],
)
def test_what_is_made_of_a_target_that_was_not_reached(made, sides):
    assert made(values(101.0, 90.0, censored=frozenset([1])), values(40.0, 50.0)).censored == sides


@pytest.mark.parametrize(
    ("side", "bound", "expected"),
    [
        (1, 50, (REPRODUCED, "")),
        (1, 150, (OPEN, "not reached")),
        (-1, 150, (OPEN, "not reached")),
        (-1, 50, (REVERSED, "")),
        (1, 96, (OPEN, "not reached")),  # not found, were it not for the longer run
    ],
)
def test_a_target_that_is_not_reached_decides_only_what_a_later_one_would_not_change(side, bound, expected):
    def effects(r):
        rounds = r(metric="rounds_to_target")
        yield rounds > bound if side > 0 else rounds < bound

    runs = [
        row | {"rounds_to_target": n} for row, n in zip(rows("own", 80.0), (90.0, 95.0, 97.0, math.nan), strict=True)
    ]
    found = only(paper(effects, margin=30.0), runs)
    assert (found.outcome, found.reason, found.mean) == (*expected, 95.75)


def test_a_division_by_zero_is_a_missing_value():
    assert (A / values(0.0, 4.0, 0.0)).by_seed == {1: 0.5} and not A / 0 and not (1 * A / values(0.0, 0.0, 0.0)).runs


def test_a_metric_that_no_run_has_is_named():
    found = only(paper(lambda r: [r(metric="acc_meen") > 0]), rows("own", 80.0))
    assert (found.outcome, found.reason) == (NOT_RUN, "no run has acc_meen")
    assert only(paper(lambda r: [r("rival") > 0]), rows("own", 80.0)).reason == ""


@pytest.mark.parametrize(
    ("pick", "message"),
    [
        (lambda r: r("fedavgg"), "unknown method 'fedavgg' .did you mean 'fedavg'"),
        (lambda r: r(alpa=0.3), "fedselect has no field 'alpa' .did you mean 'alpha'"),
    ],
)
def test_a_misspelled_method_or_field_is_an_error(pick, message):
    own = papers.paper("fedselect")
    with pytest.raises(ValueError, match=message):
        pick(claims.Pick(own, claims.printed(own, ()), "cifar10"))


def test_a_metric_with_another_unit_has_its_own_margin():
    about = paper(lambda r: [r(metric="ratio") - 1 < 0], margins={"ratio": 0.1})
    ratios = [row | {"ratio": n} for row, n in zip(rows("own", 80.0), (0.8, 1.0, 1.2, 1.1), strict=True)]
    assert (
        only(about, ratios).outcome == OPEN
        and only(paper(lambda r: [r(metric="ratio") - 1 < 0]), ratios).outcome == NOT_FOUND
    )


def test_every_run_of_any_setting():
    runs = rows("own", 80.0, bytes=1.0), rows("own", 80.0, "set, few", bytes=3.0), rows("rival", 80.0, bytes=9.0)
    runs = (*runs, rows("rival", 80.0, "other"))  # without the metric

    def about(bound):
        return only(paper(lambda r: [r.every("bytes") <= bound]), *runs)

    assert (about(3).outcome, about(3).seeds) == (REVERSED, 12)
    found = about(9)
    assert (found.outcome, found.exact, found.effect) == (REPRODUCED, True, "bytes ≤ 9") and math.isnan(found.low)
    assert set(found.keys) == keys(runs[0]) | keys(runs[1]) | keys(runs[2])


# ---- which runs decide ----------------------------------------------------------------------------------------------


def test_the_papers_setting_counts_where_it_has_three_seeds():
    three, two, real = leads(1, 1.1, 0.9), leads(1, 1), leads(-2, -2.1, -1.9, preset="real", setting="set")
    of = paper(searched=ALL_SEARCHED)
    assert (only(of, *three, *real).preset, only(of, *three, *real).outcome) == ("paper", REPRODUCED)
    assert (only(of, *two, *real).preset, only(of, *two, *real).outcome) == ("real", REVERSED)
    assert (only(of, *two).preset, only(of, *two).outcome) == ("paper", OPEN)
    one = leads(1, preset="real", setting="set")
    assert (only(of, *one).preset, only(of, *one).reason) == ("real", "one seed")
    assert only(of, *two, *one).preset == "paper" and only(of, *leads(1), *leads(1, 1, preset="real")).preset == "real"
    searched = leads(3, 3.1, 2.9, preset="real", setting="set, searched")
    assert only(of, *real, *searched).outcome == REPRODUCED, "where rates were searched"


def test_presets_are_chosen_by_effect():
    def effects(r):
        yield r() > 0
        yield r() - r("rival") > 0

    real = leads(1, 1.1, 0.9, preset="real")
    assert [f.preset for f in judged(paper(effects), rows("own", 80.0), *real).effects] == ["paper", "real"]


@pytest.mark.parametrize("preset", ["quick", "ci", "paper, changed", "real, changed", ""])
def test_other_runs_are_only_shown(preset):
    runs = leads(-5, -5.1, -4.9, preset=preset)
    found = judged(paper(), *runs)
    assert (found.word, found.effects[0].outcome, found.effects[0].size) == (SHOWN, SHOWN, "") and not found.decided
    assert found.effects[0].mean == pytest.approx(-5) and found.effects[0].preset == preset
    assert only(paper(), *runs, *leads(2, 2.1, 1.9, preset="real")).preset == "real"


def test_shown_effects_leave_the_word_to_those_that_decide():
    assert claims._word([blank(outcome=SHOWN), blank(outcome=REPRODUCED)]) == SHOWN
    assert claims._word([blank(outcome=SHOWN), blank(outcome=REVERSED)]) == REVERSED
    assert claims._word([blank(outcome=SHOWN), blank(outcome=OPEN)]) == OPEN


def test_of_a_setting_only_the_longest_runs_count():
    short, long = leads(-2, -2.1, -1.9, preset="real", rounds=40), leads(2, 2.1, 1.9, preset="real", rounds=80)
    assert only(paper(searched=ALL_SEARCHED), *short, *long).outcome == REPRODUCED


def test_stale_runs_make_way_for_fresh_ones():
    old = rows("own", 40.0, stale=True, key="old")
    assert only(paper(), *[old[:1], *leads(2, 2.1, 1.9)]).mean == pytest.approx(2)
    assert only(paper(), rows("own", 40.0, stale=True), rows("rival", 41.0)).outcome == REVERSED


# ---- conditions -----------------------------------------------------------------------------------------------------

ALL_SEARCHED = {(preset, "set"): {"own": {"lr": 0.1}, "rival": {"lr": 0.1}} for preset in ("real", "paper")}
SEARCHED = paper(searched=ALL_SEARCHED)
MECHANISM = paper(searched=ALL_SEARCHED, mechanism=True)
REMOVED = paper(searched=ALL_SEARCHED, mechanism=True, removed=lambda row: row["method"] == "rival")
HALF_SEARCHED = paper(searched={("real", "set"): {"own": {"lr": 0.1}}})
FAILED, INERT, RISING = {"failed": 1.0}, {"inert": 1.0}, {"late_change": 0.6}


@pytest.mark.parametrize(
    ("about", "changed", "at_real", "at_paper"),
    [
        (SEARCHED, {}, REPRODUCED, REPRODUCED),
        (SEARCHED, {"rival": FAILED}, "training failed", "training failed"),
        (SEARCHED, {"own": FAILED}, "training failed", "training failed"),
        (SEARCHED, {"failed": math.nan}, REPRODUCED, REPRODUCED),
        (MECHANISM, {"own": INERT}, "mechanism inert", "mechanism inert"),
        (SEARCHED, {"own": INERT}, REPRODUCED, REPRODUCED),  # the claim is about something else
        (MECHANISM, {"inert": math.nan}, REPRODUCED, REPRODUCED),  # no checks
        (REMOVED, {"rival": INERT}, REPRODUCED, REPRODUCED),  # what its fields remove need not act
        (REMOVED, {"own": INERT}, "mechanism inert", "mechanism inert"),
        (HALF_SEARCHED, {}, "rates not searched", REPRODUCED),
        (paper(), {}, "rates not searched", REPRODUCED),
        (SEARCHED, {"setting": "set, searched"}, REPRODUCED, None),
        (paper(), {"partial": True}, None, "rates not searched"),  # a stopped run counts as real
        (SEARCHED, {"partial": True}, None, REPRODUCED),
        (SEARCHED, {"partial": True} | RISING, None, "still improving"),
        (SEARCHED, {"own": RISING}, "still improving", REPRODUCED),
        (SEARCHED, {"rival": RISING}, "still improving", REPRODUCED),
        (SEARCHED, {"late_change": 0.49}, REPRODUCED, REPRODUCED),
        (SEARCHED, {"late_change": -3.0}, REPRODUCED, REPRODUCED),
        (SEARCHED, {"late_change": math.nan}, "too few scored rounds", REPRODUCED),
    ],
)
def test_conditions(about, changed, at_real, at_paper):
    """Reason or outcome of a clear lead in runs with these columns: of one method, or of both."""
    both = {name: value for name, value in changed.items() if name not in ("own", "rival", "setting")}
    for preset, expected in {"real": at_real, "paper": at_paper}.items():
        if expected is None:  # there are no such runs
            continue
        runs = [
            rows(name, score, changed.get("setting", "set"), preset, **both | changed.get(name, {}))
            for name, score in (("own", 80.0), ("rival", 70.0))
        ]
        found = only(about, *runs)
        assert found.preset and not math.isnan(found.mean)
        assert (found.reason or found.outcome) == expected, preset


def test_rates_of_one_method_need_no_search():
    one_method = paper(lambda r: [r() - r(alpha=0.3) > 0])
    runs = rows("own", 80.0, preset="real"), rows("own", 70.0, preset="real", fields={"alpha": 0.3})
    assert only(one_method, *runs).outcome == REPRODUCED


def test_a_change_within_two_standard_errors_is_none():
    def found(changes):
        own = rows("own", 80.0, preset="real")
        own = [row | {"late_change": change} for row, change in zip(own, changes, strict=True)]
        return only(paper(searched=ALL_SEARCHED), own, rows("rival", 70.0, preset="real")).reason

    assert found([0.9, 0.3, 1.2, 0.4]) == "still improving"
    assert found([4.0, -2.5, 1.5, 0.0]) == ""


def test_each_configuration_is_judged_for_itself():
    about = paper(lambda r: [r() - r(alpha=0.3) > 0])
    rises, falls = ({"late_change": change} for change in (1.0, -1.0))
    runs = rows("own", 80.0, preset="real", **rises), rows("own", 70.0, preset="real", fields={"alpha": 0.3}, **falls)
    assert only(about, *runs).reason == "still improving"


def test_only_numbers_that_depend_on_the_end_of_training_must_have_settled():
    def reason(metric):
        about = paper(lambda r: [r(metric=metric) - r("rival", metric) > 0], searched=ALL_SEARCHED)
        columns = [{metric: number} for number in (80.0, 80.3, 79.7, 80.2, 70.0, 70.0, 70.1, 70.2)]
        runs = rows("own", 80.0, preset="real", **RISING) + rows("rival", 70.0, preset="real", **RISING)
        return only(about, [row | column for row, column in zip(runs, columns, strict=True)]).reason

    late = ("acc_mean", "acc_pooled", "acc_mean_merged", "rounds_to_95", "roughness")
    differences = ("client_spread", "local_gain", "order_range", "sorted_change")
    assert {reason(name) for name in (*late, *differences)} == {"still improving"}
    assert reason("iou_raw") == reason("upload") == ""


def test_stopped_runs_at_the_papers_setting_count_as_real():
    stopped, whole = leads(2, 2.1, 1.9, partial=True, rounds=60), leads(-2, -2.1, -1.9)
    found = only(paper(searched=ALL_SEARCHED), *stopped)
    assert (found.preset, found.outcome) == ("paper, stopped", REPRODUCED)
    assert only(paper(), *stopped, *whole).outcome == REVERSED
    assert only(paper(), stopped[0], whole[1]).outcome == NOT_RUN, "one of them went on"


def test_of_runs_that_count_as_real_those_at_searched_rates_come_first():
    stopped, real = leads(2, 2.1, 1.9, partial=True, rounds=60), leads(-2, -2.1, -1.9, preset="real")
    of = paper(searched={("real", "set"): ALL_SEARCHED["real", "set"]})
    assert (only(of, *stopped, *real).preset, only(of, *stopped, *real).outcome) == ("real", REVERSED)
    two = leads(-2, -2.1, preset="real")
    assert only(of, *stopped, *two).preset == "paper, stopped", "fewer seeds"
    one_method = paper(lambda r: [r() - r(alpha=0.3) > 0], searched=of.settings.searched)
    standings = {"partial": True}, {"preset": "real"}
    runs = [[rows("own", 80.0, **of_run), rows("own", 70.0, fields={"alpha": 0.3}, **of_run)] for of_run in standings]
    assert only(one_method, *runs[0], *runs[1]).preset == "paper, stopped", "a comparison that needs no search"


def test_an_obstacle_does_not_hide_that_an_interval_is_too_wide():
    found = only(paper(), *leads(9, -9, 3, preset="real"))
    assert found.reason.startswith("too wide") and found.blocked == "rates not searched"


def test_runs_of_different_lengths_are_not_compared():
    """Longer runs of one method hide neither shorter ones of others, nor runs that decide."""
    longer, shorter = rows("own", 80.0, rounds=200), [rows(name, 70.0) for name in ("rival", "other")]
    found = only(paper(), longer, *shorter)
    assert (found.outcome, found.reason, found.blocked) == (OPEN, "unequal rounds", "unequal rounds")
    others = paper(lambda r: [r("rival") - r("other", alpha=0.3) < 5])
    assert only(others, longer, shorter[0], rows("other", 72.0, fields={"alpha": 0.3})).outcome == REPRODUCED
    real = leads(-2, -2.1, -1.9, preset="real")
    assert only(paper(searched=ALL_SEARCHED), longer, *shorter, *real).outcome == REVERSED
    across = paper(lambda r: [r() - r.at("few")() > 0])
    assert only(across, longer, rows("own", [70.0, 71.0, 70.5], setting="few")).outcome == REPRODUCED


# ---- counts and identities ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "bound", "at_least", "above"),
    [
        ([3.0], 2, REPRODUCED, REPRODUCED),
        ([2.0], 2, REPRODUCED, REVERSED),  # on the bound
        ([2.0 - 1e-12], 2, REPRODUCED, REVERSED),
        ([2.0 + 1e-12], 2, REPRODUCED, REVERSED),
        ([1.9], 2, REVERSED, REVERSED),
        ([3.0, 3.0, 1.9, 3.0], 2, REVERSED, REVERSED),  # each seed must be there
    ],
)
def test_exact_effects_need_one_seed_and_no_interval(numbers, bound, at_least, above):
    about = paper(lambda r: [r().exact >= bound, r().exact > bound, -1 * r().exact <= -bound, -1 * r().exact < -bound])
    found = judged(about, rows("own", numbers, preset="real", inert=1.0, **RISING)).effects
    assert [f.outcome for f in found] == [at_least, above] * 2
    assert {(f.seeds, f.reason, f.p) for f in found} == {(len(numbers), "", 1.0)}
    assert all(math.isnan(f.low) and math.isnan(f.high) for f in found)


def test_exact_effects_need_training_that_did_not_fail():
    found = only(paper(lambda r: [r().exact >= 2]), rows("own", [3.0], failed=1.0))
    assert (found.outcome, found.reason) == (OPEN, "training failed")


def test_an_exact_effect_uses_the_papers_setting_with_one_seed():
    about = paper(lambda r: [r().exact >= 70])
    assert only(about, rows("own", [80.0]), rows("own", 60.0, preset="real")).preset == "paper"


# ---- printed numbers ------------------------------------------------------------------------------------------------


def printed(pick, *cells, **options):
    """The printed number of the one effect of a claim."""
    (effect,) = judged(paper(lambda r: [pick(r) > 0], cells, **options)).effects
    return effect.printed


def test_printed_effects_are_made_by_the_same_function():
    cells = [("set", "own", 80.0), ("set", "own", 82.0, {"alpha": 0.3}), ("set", "rival", 70.0)]
    assert printed(lambda r: r() - r("rival"), *cells) == (10.0,)
    assert printed(lambda r: best([r(), r(alpha=0.3)]) - r("rival"), *cells) == (12.0,)
    assert printed(lambda r: mean([r(), r("rival")]), *cells) == (75.0,)
    assert printed(lambda r: rank(r("rival"), [r(), r(alpha=0.3)]), *cells) == (3.0,)
    assert printed(lambda r: r.at("set, few")(), *cells, ("set, few", "own", 60.0)) == (60.0,)
    assert printed(lambda r: r() - r("other"), *cells) == printed(lambda r: r(alpha=0.1), *cells) == ()
    assert printed(lambda r: r(metric="time"), *cells) == printed(lambda r: r.every("time"), *cells) == ()


def test_fields_of_printed_numbers():
    cells = [("set", "own", 80.0, {"alpha": 0.5}), ("set", "own", 82.0, {"alpha": 0.3})]
    cells += [("set", "any", 70.0, {"alpha": ANY, "masks": "random"}), ("set", "yes", 60.0, {"whole": True})]
    assert printed(lambda r: r(), *cells) == printed(lambda r: r(alpha=0.5), *cells) == (80.0,)
    assert printed(lambda r: r("any", alpha=0.1, masks="random"), *cells) == (70.0,)
    assert printed(lambda r: r("any", masks="random"), *cells) == (70.0,), "a field that the table does not print"
    assert printed(lambda r: r("any", alpha=0.1), *cells) == ()
    assert printed(lambda r: r("yes"), *cells) == (60.0,) and printed(lambda r: r("yes", whole=1), *cells) == ()


def test_the_first_table_with_the_number_counts():
    def found(*tables):
        about = paper(lambda r: [r() > 0, r("rival") > 0], [("set", "own", 80.0)], tables=tables)
        about.printed_cells["table2", "set", "own"] = [{"value": 81.0, "metrics": ("acc_mean",), "fields": {}}]
        about.printed_cells["table2", "set", "rival"] = [{"value": 71.0, "metrics": ("acc_mean",), "fields": {}}]
        return [effect.printed for effect in judged(about).effects]

    assert found(1, 2) == [(80.0,), (71.0,)] and found(2, 1) == [(81.0,), (71.0,)]
    assert found(1) == [(80.0,), ()] and found() == found(3) == [(), ()]


def test_two_printed_numbers_for_one_effect_are_an_error_and_missing_ones_are_none():
    two = [("set", "own", 80.0), ("set", "own", 81.0, {"alpha": ANY})]
    with pytest.raises(ValueError, match="two runs of own with {} and seed printed: table1: 80.0 and table1: 81.0"):
        printed(lambda r: r(), *two)
    assert printed(lambda r: r(), two[0], ("set", "own", 80.0, {"alpha": ANY})) == (80.0,)
    assert printed(lambda r: r(), two[0], ("set", "own", math.nan, {"alpha": ANY})) == (80.0,)
    assert printed(lambda r: r(), ("set", "own", math.nan)) == ()


def test_a_printed_number_that_misses_the_bound_is_dropped_and_marked():
    """A printed lead of -5 (or 0) is none: the margin counts in its place."""
    for theirs in (-5.0, 0.0):
        about = paper(None, [("set", "own", 70.0 + theirs), ("set", "rival", 70.0)])
        found = only(about, *leads(0.1, -0.1, 0.0))
        assert (found.outcome, found.misses, found.printed) == (NOT_FOUND, True, (theirs,))
        assert only(about, *leads(2, 2.1, 1.9)).size == ""
        assert only(about).misses, "also without runs"


@pytest.mark.parametrize(
    ("theirs", "differences", "expected", "size"),
    [
        ((5.0, 10.0), (0.1, -0.1, 0.0), NOT_FOUND, ""),
        ((0.125, 10.0), (0.1, -0.1, 0.0), OPEN, ""),  # one of them is in the interval
        ((-3.0, 10.0), (0.1, -0.1, 0.0), NOT_FOUND, ""),  # one of them misses the bound
        ((5.0, 10.0), (2.0, 2.1, 1.9), REPRODUCED, "smaller"),
        ((2.0, 10.0), (2.0, 2.1, 1.9), REPRODUCED, ""),
        ((0.5, 1.0), (2.0, 2.1, 1.9), REPRODUCED, "larger"),
        ((0.5, 2.0), (2.0, 2.1, 1.9), REPRODUCED, ""),
        ((0.5, 10.0), (2.0, 2.1, 1.9), REPRODUCED, ""),  # on two sides
        ((5.0, 10.0), (-2.0, -2.1, -1.9), REVERSED, ""),
    ],
)
def test_a_stand_in_is_beside_the_printed_effects_of_all_its_data_sets(theirs, differences, expected, size):
    cells = [
        (name, *cell) for name, t in zip("xy", theirs, strict=True) for cell in [("own", 50.0 + t), ("rival", 50.0)]
    ]
    found = only(paper(None, cells, stands_for={"set": ("x", "y")}), *leads(*differences))
    assert (found.outcome, found.size, found.printed) == (expected, size, theirs)
    assert found.misses == (min(theirs) <= 0)


def test_variants_of_a_stand_in_have_the_numbers_of_the_same_variant():
    cells = [("x, few", "own", 60.0), ("x", "own", 80.0), ("set", "own", 1.0)]
    assert printed(lambda r: r(), *cells, stands_for={"set": ("x",)}) == (80.0,)
    assert printed(lambda r: r.at("set, few")(), *cells, stands_for={"set": ("x",)}) == (60.0,)
    elsewhere = [*cells, ("other", "own", 55.0)]
    assert printed(lambda r: r.at("other")(), *elsewhere, stands_for={"set": ("x",)}) == (55.0,)


# ---- whole claims ---------------------------------------------------------------------------------------------------


def by_option(**words):
    """A claim with two effects in each option; the runs by option and effect have these words."""
    differences = {REPRODUCED: (2, 2.1, 1.9), NOT_FOUND: (0, 0.1, -0.1), REVERSED: (-2, -2.1, -1.9), OPEN: (9, -9, 3)}

    def effects(r, alpha):
        for rival in ("first", "second"):
            yield r(alpha=alpha) - r(rival, alpha=alpha) > 0

    runs = []
    for alpha, both in zip((0.1, 0.2), words.values(), strict=True):
        runs.append(rows("own", [70.0] * 3, fields={"alpha": alpha}))
        for rival, word in zip(("first", "second"), both, strict=True):
            if word != NOT_RUN:
                runs.append(rows(rival, [70.0 - d for d in differences[word]], fields={"alpha": alpha}))
    return judged(paper(effects, option=(0.1, 0.2)), *runs)


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ((REPRODUCED, REPRODUCED), (REVERSED, REVERSED), REPRODUCED),  # one whole option suffices
        ((REVERSED, NOT_FOUND), (REPRODUCED, REPRODUCED), REPRODUCED),
        ((REPRODUCED, REVERSED), (REVERSED, REPRODUCED), REVERSED),  # half of each does not
        ((REPRODUCED, NOT_FOUND), (REVERSED, REPRODUCED), NOT_FOUND),
        ((REPRODUCED, OPEN), (REVERSED, REVERSED), OPEN),  # it may still be met
        ((REPRODUCED, OPEN), (NOT_FOUND, NOT_FOUND), OPEN),
        ((NOT_RUN, NOT_RUN), (REVERSED, NOT_FOUND), NOT_RUN),  # the other option may be met
        ((NOT_RUN, NOT_RUN), (NOT_RUN, NOT_RUN), NOT_RUN),
        ((REPRODUCED, NOT_RUN), (REVERSED, REVERSED), REPRODUCED),
    ],
)
def test_the_word_is_that_of_the_best_option(first, second, word):
    found = by_option(first=first, second=second)
    assert tuple(f.outcome for f in found.effects) == (*first, *second)
    assert [f.option for f in found.effects] == [0.1, 0.1, 0.2, 0.2] and found.word == word
    assert found.decided == (word in DECIDED)


def test_options_have_separate_families_of_tests():
    """p is 0.03 in each option: alone enough, beside another test not."""

    def effects(r, name):
        yield r() - r(name) > 0

    rivals = [rows(name, [50.0] * 4) for name in ("a", "b")]
    runs = rows("own", [49.0, 49.55, 48.7, 49.55]), *rivals
    assert judged(paper(effects, option=("a", "b")), *runs).word == REVERSED
    assert judged(paper(lambda r: [r() - r("a") > 0, r() - r("b") > 0]), *runs).word == OPEN


def test_effects_are_asked_in_each_setting():
    runs = *leads(2, 2.1, 1.9), *leads(-2, -2.1, -1.9, setting="other")
    found = judged(paper(on=("set", "other", "third")), *runs)
    assert [(f.setting, f.outcome) for f in found.effects] == [
        ("set", REPRODUCED),
        ("other", REVERSED),
        ("third", NOT_RUN),
    ]
    assert (found.word, found.counts) == (REVERSED, "reproduced 1, reversed 1, not run 1")


def test_a_claim_whose_number_of_effects_depends_on_the_runs_is_an_error():
    def effects(r):
        yield r() - r("rival") > 0
        if r("other"):
            yield r() - r("other") > 0

    with pytest.raises(ValueError, match="own, claim 1: the number of effects depends on the runs"):
        judged(paper(effects), *leads(1, 1.1, 0.9), rows("other", 70.0))


def test_numbers_of_claims_are_unique_and_texts_are_docstrings():
    known = Claims()

    @known(3, "Table 1", margin=2.0, follows=True)
    def effects(r):
        """It leads
        everywhere."""
        yield r() > 0

    assert (known[3].text, known[3].source, known[3].on) == ("It leads everywhere.", "Table 1", ("",))
    assert (known[3].margin, known[3].follows, known[3].mechanism) == (2.0, True, False)
    known(3, "Table 2")(effects)  # a cell is executed again
    assert known[3].source == "Table 2"
    with pytest.raises(ValueError, match="two claims with number 3"):
        known(3, "Table 2")(lead)
    with pytest.raises(ValueError, match="no claim 2"):
        claims.judge(paper(), pd.DataFrame(leads(1)[0]), [2])


def test_no_runs_at_all():
    found = judged(paper(None, [("set", "own", 80.0), ("set", "rival", 70.0)]))
    assert (found.word, found.effects[0].printed, found.effects[0].keys) == (NOT_RUN, (10.0,), ())
    assert claims.table([found])["outcome"].tolist() == [NOT_RUN]


def test_a_table_has_the_effects_that_were_run():
    cells = [("set", "own", 60.0), ("set", "rival", 50.0)]
    table = claims.table([judged(paper(None, cells, on=("set", "other")), *leads(2, 2.1, 1.9))]).reset_index()
    assert table[["claim", "word", "on"]].values.tolist() == [[1, REPRODUCED, "set"]]
    assert table.loc[0, ["paper", "outcome", "seeds"]].tolist() == ["10", "smaller", 3]


def test_judged_claims_as_data():
    found = judged(paper(on=("set", "other")), *leads(2, 2.1, 1.9))
    content = found.to_json()
    assert json.loads(json.dumps(content, allow_nan=False))["effects"][1]["mean"] is None
    asked = {"effect", "printed", "mean", "low", "high", "seeds", "preset", "setting", "outcome"}
    assert {"paper", "claim", "text", "follows", "word", "effects"} <= content.keys()
    assert asked <= content["effects"][0].keys() and content["word"] == REPRODUCED


def test_outcomes_from_best_to_none_are_each_the_closest_of_those_after_it():
    for better, worse in pairwise(claims.CLOSEST):
        first, second = blank(outcome=better, option=1), blank(outcome=worse, option=2)
        assert claims.Judged("own", paper().claims[1], (second, first)).word == better

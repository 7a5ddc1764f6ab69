"""Intervals over seeds, Holm's method, paired leads, agreement of clients."""

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_core.study.statistics import ALIKE, LEVEL, Interval, agreement, holm, interval, paired


def test_interval_by_hand():
    """1, 2, 3: mean 2, standard error 1/sqrt(3), t(0.975, 2) = 4.3027, half width 2.4841."""
    found = Interval.of([1.0, 2.0, 3.0])
    assert (found.mean, found.seeds) == (2.0, 3)
    assert (found.low, found.high) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-4)
    assert str(found) == "+2.00 [-0.48, +4.48]"
    assert interval(pd.Series([1.0, 2.0])).seeds == 2


def test_one_seed_and_two_equal_ones_have_no_interval():
    assert math.isnan(Interval.of([1.0]).low) and "1 seed" in str(Interval.of([1.0]))
    assert math.isnan(Interval.of([1.0, 1.0]).low) and "2 equal seeds" in str(Interval.of([1.0, 1.0 + ALIKE / 2]))
    assert Interval.of([1.0, 1.0, 1.0]).low == 1.0


@given(st.lists(st.floats(-50, 50), min_size=3, max_size=8), st.floats(-5, 5))
def test_the_p_value_is_below_the_level_exactly_if_the_bound_is_outside(numbers, bound):
    found = Interval.of(numbers, bound)
    if not math.isclose(found.low, bound, abs_tol=1e-6) and not math.isclose(found.high, bound, abs_tol=1e-6):
        assert (found.p < LEVEL) == (not found.low < bound < found.high)


def test_holm_by_hand():
    """Of four: 0.01 against 0.0125, 0.02 against 0.0167: not significant, and so none after it."""
    assert holm([0.02, 0.01, 0.021, 0.9]) == [False, True, False, False]
    assert holm([]) == []


def test_agreement_with_local_client_by_client():
    """Two seeds of two clients: scores that are Local's and one more everywhere, and scores in the opposite order."""
    local = [60.0, 70.0, 80.0, 90.0]
    scores = {"Local": local, "more": [value + 1 for value in local], "reversed": local[::-1]}
    table = pd.DataFrame(
        [
            {"label": label, "seed": i // 2, "client": i % 2, "accuracy": value}
            for label, values in scores.items()
            for i, value in enumerate(values)
        ]
    )
    found = agreement(table, "Local")
    assert found.loc["more"].tolist() == pytest.approx([1.0, 1.0, 1.0, 4])
    assert found.loc["reversed"].tolist() == pytest.approx([-1.0, 0.0, 20.0, 4])
    assert agreement(table[table["label"] != "Local"], "Local").empty


ROWS = pd.DataFrame(
    [("a", "own", 0, 80.0, 0), ("a", "own", 1, 84.0, 0), ("a", "rival", 0, 78.0, 0), ("a", "rival", 1, 80.0, 0),
     ("b", "own", 0, 70.0, 0), ("b", "rival", 0, 71.0, 0), ("b", "late", 1, 71.0, 0)],
    columns=["where", "label", "seed", "acc_mean", "failed"],
)  # fmt: skip


def test_leads_are_paired_by_seed_within_each_group():
    found = paired(ROWS, "own", by=["where"])
    assert found[["where", "label", "lead", "seeds"]].values.tolist() == [
        ["a", "rival", 3.0, 2],
        ["b", "rival", -1.0, 1],
    ]
    low, high = found.loc[0, ["low", "high"]]
    assert 3 - low == pytest.approx(high - 3) and low == pytest.approx(3 - 12.706, abs=0.01)
    assert found.loc[1, ["low", "high"]].isna().all()
    assert paired(ROWS, "nobody", by=["where"]).empty
    assert pd.concat([paired(ROWS[:0], "own"), found])["lead"].dtype == float, "plots need numbers"


def test_a_run_whose_training_failed_has_no_lead():
    failed = ROWS.assign(failed=ROWS["label"].eq("rival") & ROWS["seed"].eq(1))
    assert paired(failed, "own", by=["where"])[["lead", "seeds"]].values.tolist() == [[2.0, 1], [-1.0, 1]]


def test_printed_leads_come_from_the_same_function():
    printed = ROWS[ROWS["seed"] == 0].drop(columns=["seed", "failed"])
    assert paired(ROWS, "own", by=["where"], paper=printed)["paper"].tolist() == [2.0, -1.0]


def test_two_scores_of_one_label_and_seed_are_refused():
    with pytest.raises(ValueError, match="several rows for .*group by one more column"):
        paired(ROWS, "own")

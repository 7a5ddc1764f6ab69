"""Comparison of intervals with bounds, verdicts on several parts, and the choice of the lead that is shown."""

import math

import pytest

from pfl_core.study.statistics import Interval
from pfl_core.study.verdicts import above, all_of, any_of, below, telling


@pytest.mark.parametrize(
    ("leads", "shown"),
    [
        ({"a": (3.0, 1.0, 5.0), "b": (1.0, 0.5, 1.5)}, ("b", "least lead")),
        ({"a": (-4.0, -9.0, 1.0), "b": (-1.7, -1.9, -1.6)}, ("b", "clearest loss")),  # a's mean is lower, b decides
        ({"a": (-4.0, math.nan, math.nan), "b": (1.0, 0.5, 1.5)}, ("a", "least lead")),  # one seed decides nothing
    ],
)
def test_a_clear_loss_is_shown_before_the_smallest_mean(leads, shown):
    assert telling({name: Interval(*numbers, seeds=3) for name, numbers in leads.items()}) == shown


def test_a_bound_other_than_zero():
    leads = {"a": Interval(5.8, 1.4, 10.2, seeds=3), "b": Interval(7.3, 4.8, 9.9, seeds=3)}
    assert telling(leads, bound=10) == ("b", "clearest loss") and telling(leads) == ("a", "least lead")


@pytest.mark.parametrize(
    ("low", "high", "up", "down"),
    [(3.1, 5, "holds", "does not hold"), (1, 2.9, "does not hold", "holds"), (2, 4, "undecided", "undecided")],
)
def test_an_interval_against_a_bound(low, high, up, down):
    lead = Interval((low + high) / 2, low, high, 3)
    assert (above(lead, 3.0), below(lead, 3.0)) == (up, down)


def test_all_of_and_any_of():
    yes, no, open_ = "holds", "does not hold", "undecided"
    assert [all_of(s) for s in ([yes, yes], [yes, no], [yes, open_], [no, open_], [])] == [yes, no, open_, no, open_]
    assert [any_of(s) for s in ([yes, no], [no, no], [no, open_], [])] == [yes, no, open_, open_]

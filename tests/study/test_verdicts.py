"""Which of several leads a verdict shows."""

import math

import pytest

from pfl_core.study.statistics import Interval
from pfl_core.study.verdicts import telling


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

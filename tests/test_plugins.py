"""Names and options that come from a user."""

from collections.abc import Sequence

import pytest

from pfl_core.plugins import check_options, find


def rule(data, size: int, *, share: float = 0.5, order: Sequence[int] = (), name: str | None = None, free=None):
    return data


def test_find_prefers_the_table_and_takes_functions_from_modules():
    assert find("rule", "mine", {"mine": rule}) is rule
    assert find("rule", "math:floor", {}).__name__ == "floor"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("yours", "unknown rule 'yours': use one of mine, or package.module:function"),
        ("math:pi", "module math has no function 'pi'"),
        ("math:", "module math has no function ''"),
        ("no_such_module:f", "no_such_module cannot be imported"),
    ],
)
def test_unknown_names_are_one_clear_line(name, message):
    with pytest.raises(ValueError, match=message) as caught:
        find("rule", name, {"mine": rule})
    assert "\n" not in str(caught.value)


def test_options_that_fit_pass():
    check_options("rule 'mine'", rule, {"share": 1, "order": [1, 2], "name": None, "free": object()}, reserved=2)
    check_options("rule 'any'", lambda data, **options: data, {"whatever": 1}, reserved=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 3}, "rule 'mine' has no option 'size': it takes share, order, name, free"),
        ({"share": "half"}, "rule 'mine': share='half' is not of type float"),
        ({"name": 3}, "rule 'mine': name=3 is not of type str | None"),
    ],
)
def test_options_that_do_not_fit_are_named(options, message):
    with pytest.raises(ValueError) as caught:
        check_options("rule 'mine'", rule, options, reserved=2)
    assert str(caught.value) == message

"""Lookup by name, and checks of a user's options."""

from collections.abc import Sequence

import pytest

from pfl_core.options import NonNegativeInt, check_options
from pfl_core.plugins import find, text_of
from tests.helpers import one_line


def rule(
    data,
    size: int,
    *,
    share: float = 0.5,
    order: Sequence[int] = (),
    epochs: NonNegativeInt = 1,
    name: str | None = None,
    free=None,
):
    return data


def test_find_prefers_the_table_and_takes_functions_from_modules():
    assert find("rule", "mine", {"mine": rule}) is rule
    assert find("rule", "math:floor", {}).__name__ == "floor"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("yours", "unknown rule 'yours'; choose from mine, or package.module:function"),
        ("math:pi", "module math has no class or function 'pi'"),
        ("math:", "module math has no class or function ''"),
        ("fractions:Fracton", r"no class or function 'Fracton' \(did you mean 'Fraction'\?\)"),
        ("no_such_module:f", r"no_such_module cannot be imported .* start in the folder that has no_such_module"),
    ],
)
def test_unknown_names_are_one_clear_line(name, message):
    with one_line(message):
        find("rule", name, {"mine": rule})


def test_a_module_that_exits_is_one_clear_line(monkeypatch, tmp_path):
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(3)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"rule 'exits:f': exits cannot be imported \(SystemExit: 3\); correct"):
        find("rule", "exits:f", {})


def test_options_that_fit_pass():
    check_options("rule 'mine'", rule, {"share": 1, "order": [1, 2], "name": None, "free": object()}, reserved=2)
    check_options("rule 'any'", lambda data, **options: data, {"whatever": 1}, reserved=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": "0.5"}, "rule 'mine': share='0.5': input should be a valid number"),
        ({"share": True}, "rule 'mine': share=True: input should be a valid number"),
        ({"order": [1, "b"]}, "rule 'mine': order=[1, 'b']: item 1: input should be a valid integer"),
        ({"epochs": -1}, "rule 'mine': epochs=-1: input should be greater than or equal to 0"),
        ({"size": 3}, "rule 'mine' has no option 'size'; choose from share, order, epochs, name, free"),
        ({"name": 3}, "rule 'mine': name=3: input should be a valid string"),
    ],
)
def test_options_that_do_not_fit_are_named(options, message):
    with pytest.raises(ValueError) as caught:
        check_options("rule 'mine'", rule, options, reserved=2)
    assert str(caught.value) == message


def later(data: "NotImported", *, share: float = 0.5, other: "NotImported" = None):  # noqa: F821
    return data


class Holder:
    """A type that pydantic does not know."""


def strange(*, holder: Holder | None = None, shape: tuple[int, ...] = ()):
    return holder, shape


def test_types_that_cannot_be_checked_take_anything_and_the_others_are_checked():
    check_options("rule 'later'", later, {"other": object()}, reserved=1)
    check_options("rule 'strange'", strange, {"holder": 3, "shape": [1, 2]}, reserved=0)
    with pytest.raises(ValueError, match="share='x': input should be a valid number"):
        check_options("rule 'later'", later, {"share": "x"}, reserved=1)


@pytest.mark.parametrize("raised", [KeyError, SystemExit, GeneratorExit, BaseException])
def test_an_error_that_fails_to_give_its_message_has_none(raised):
    class Silent(Exception):
        def __str__(self):
            raise raised

    assert text_of(Silent()) == ""

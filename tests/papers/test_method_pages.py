"""The method pages: every option of the method in the code, with its values."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from pfl_core.algorithm import method

ROOT = Path(__file__).parents[2]
METHODS = {
    "fedselect": ("fedselect", "fedselect_gradltn"),
    "fedpews": ("fedpews", "fedpews_fixed"),
    "star_pfl": ("star_pfl",),
    "pfedgate": ("pfedgate",),
}


def page(paper: str) -> str:
    return (ROOT / "notebooks" / paper / "README.md").read_text(encoding="utf-8")


def choices(hint: object) -> set[str]:
    """The strings of all Literal types in a type hint."""
    if get_origin(hint) is Literal:
        return {value for value in get_args(hint) if isinstance(value, str)}
    return set().union(*map(choices, get_args(hint)))


@pytest.mark.parametrize(("paper", "name"), [(paper, name) for paper, names in METHODS.items() for name in names])
def test_every_option_and_each_of_its_values_is_on_the_page(paper, name):
    options = page(paper).split("\n## Options\n")[1].split("\n## ")[0]
    shown, hints = set(re.findall(r"`([^`]+)`", options)), get_type_hints(method(name))
    for field in fields(method(name)):
        assert {field.name} | choices(hints[field.name]) <= shown, field.name

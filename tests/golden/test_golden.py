"""Small runs whose numbers are kept in files: a change of results is noticed, and names the version to raise."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from tests.golden.cases import KINDS
from tests.golden.methods import build, parsed, table

GOLDEN = {name: kind.golden() for name, kind in KINDS.items()}


@pytest.mark.parametrize(
    ("kind", "case"), [pytest.param(kind, case, id=f"{kind}-{case}") for kind in KINDS for case in GOLDEN[kind]]
)
def test_results_are_as_they_were(kind, case):
    complaint = KINDS[kind].complaint(case, KINDS[kind].numbers(case))
    assert not complaint, complaint


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_lacks_a_case(kind):
    """Every registered method, reading, variant, partition and network, and whatever a stored record uses."""
    missing = set(KINDS[kind].wanted()) - GOLDEN[kind].keys()
    assert not missing, f"no golden numbers for {sorted(missing)}: run `make golden`"


METHODS = {case: parsed(case)[1] for case in GOLDEN["methods"]}


def test_every_choice_of_every_method_is_among_the_cases():
    """Yes or no, or one of several words. The instrument is left out: its options are Star-PFL's."""
    made = [build(config) for config in METHODS.values()]
    missing = []
    for name, cls in table().items():
        hints = get_type_hints(cls)
        for f in dataclasses.fields(cls):
            choices = (True, False) if hints[f.name] is bool else get_args(hints[f.name])
            if (hints[f.name] is bool or get_origin(hints[f.name]) is Literal) and name != "star_pfl_likeness":
                seen = {getattr(one, f.name) for one in made if type(one) is cls}
                missing += [f"{name}: {f.name}={choice!r}" for choice in choices if choice not in seen]
    refused = {f"{name}: keep_momentum=True" for name in ("fedpac", "pfedme", "scaffold")}
    assert set(missing) == refused

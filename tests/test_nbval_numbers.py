"""Comparison of notebook outputs: equal text, and numbers that differ only as they may between processors."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from nbformat.v4 import new_output
from nbval.plugin import IPyNbCell

from tests.nbval_numbers import Alike


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("acc  95.21 of 6745", "acc 95.24 of 6748"),  # spaces of a table's columns count once
        ("0.65", "0.63"),
        ("7 % of them", "8 % of them"),
        ("-34.22 [−0.01]", "-34.27 [+0.00]"),
        ("1.5e-04", "1.4e-04"),
    ],
)
def test_what_another_processor_makes_is_alike(one, other):
    assert Alike(one) == Alike(other) and not Alike(one) != Alike(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3 seeds", "2 seeds"),
        ("99.0", "89.0"),
        ("holds 0.5", "undecided 0.5"),
        ("0.5", "0.5 0.5"),
        ("+2.10", "-2.10"),
        ("0.25", "nan"),
        ("6 clients", "5 clients"),
    ],
)
def test_what_is_another_result_is_not(one, other):
    assert Alike(one) != Alike(other) and not Alike(one) == Alike(other)


@pytest.mark.parametrize(("folder", "value", "same"), [
    ("fedselect", 88.9, True), ("fedselect", 98.9, False), ("star_pfl", 88.9, True), ("star_pfl", 98.9, False),
])  # fmt: skip
def test_nbval_compares_so(folder, value, same):
    cell = SimpleNamespace(parent=SimpleNamespace(sanitize_patterns={}, skip_compare=()), colors=None)
    cell.path = Path(folder, "notebook.ipynb")
    cell.sanitize, cell.format_output_compare = partial(IPyNbCell.sanitize, cell), lambda *_: None
    one, other = (new_output("stream", text=f"accuracy {number}") for number in (88.5, value))
    assert IPyNbCell.compare_outputs(cell, [one], [other]) == same
    small, larger = (new_output("stream", text=f"frozen {number}") for number in (0.67, 0.74))  # 0.07 apart
    assert IPyNbCell.compare_outputs(cell, [small], [larger]) == (folder == "star_pfl")

"""Comparison of notebook outputs: equal text, and numbers that differ only as they may between processors."""

from functools import partial
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


def test_nbval_compares_so():
    cell = SimpleNamespace(parent=SimpleNamespace(sanitize_patterns={}, skip_compare=()), colors=None)
    cell.sanitize, cell.format_output_compare = partial(IPyNbCell.sanitize, cell), lambda *_: None
    one, near, far = (new_output("stream", text=f"accuracy {value}") for value in (88.5, 88.9, 98.9))
    assert IPyNbCell.compare_outputs(cell, [one], [near]) and not IPyNbCell.compare_outputs(cell, [one], [far])

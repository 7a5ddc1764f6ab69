"""Notebooks pass their parameters on to what reads all the forms that papermill gives them: text, numbers, lists."""

import ast
import re

import nbformat
import pytest

from pfl_core import notebooks

GIVEN = {"SEEDS", "OVERRIDES", "TRAIN"}
READERS = {"runs", "specs"}  # methods of a study; besides them, all functions of ``study.parameters``


def other_uses(code: str) -> list[str]:
    """The parameters that the code uses, but not as an argument of a call that reads them."""
    tree = ast.parse(code)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    reading = [call for call in calls if call.func.attr in READERS or ast.unparse(call.func.value) == "parameters"]
    read = {id(argument) for call in reading for argument in (*call.args, *(given.value for given in call.keywords))}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in GIVEN]
    return [node.id for node in names if id(node) not in read and isinstance(node.ctx, ast.Load)]


@pytest.mark.parametrize("name", notebooks.names())
def test_parameters_are_only_passed_on(name):
    cells = nbformat.read(notebooks.path_of(name), as_version=4).cells
    sources = [re.sub(r"^[%!].*$", "", cell.source, flags=re.MULTILINE) for cell in cells if cell.cell_type == "code"]
    assert not [used for source in sources for used in other_uses(source)], (
        "pass SEEDS, OVERRIDES and TRAIN to runs(...) or specs(...), or to seeds_of, overrides_of and truth_of of "
        "pfl_core.study.parameters: papermill gives them as text"
    )


def test_other_uses_are_found():
    assert not other_uses("SEEDS = [0]\nruns = PAPER.runs('a', PRESET, SEEDS, OVERRIDES, train=TRAIN)")
    assert not other_uses("seed = (parameters.seeds_of(SEEDS) or [0])[0]")
    assert sorted(other_uses("seed = (SEEDS or [0])[0]\nreplace(rule, **OVERRIDES)")) == ["OVERRIDES", "SEEDS"]
    assert sorted(other_uses("PAPER.runs('a', PRESET, SEEDS[0])\nif TRAIN: pass")) == ["SEEDS", "TRAIN"]

"""Notebooks hold their analysis: no function of the studies' package serves one cell alone, unless it is science."""

import ast
import re
from pathlib import Path

import nbformat

from pfl_core import notebooks
from pfl_core.runs.provenance import ROOT

SCIENCE = {  # function that one cell calls and nothing else -> why it is no cell
    "ablation_name": "names the runs of the experiment in its module",
    "analytic": "counts multiply-adds and bytes of the methods' steps",
    "epoch_by_epoch": "reads what the probe recorded within the rounds",
    "gate_scheme": "the drawing of the gate's network",
    "kept_macs": "multiply-adds that masks keep",
    "kept_shares": "masks of two readings on the paper's networks",
    "layer_contrasts": "permutation tests of every layer's masks",
    "likeness_by_layer": "likeness of stable sets beyond chance",
    "masks_possible": "the number of masks that a budget allows",
    "neighbours": "nearest clients by similarity",
    "overlap_counts": "adds up the recorded overlaps of the tensors' stable sets",
    "peak_memory": "measures memory in processes of their own",
    "sampled_tensors": "which entries the probe samples",
    "table5": "the formulas of the paper's Table 5",
    "worked_example": "the state machine, step by step",
}
FOLDERS = ("papers", "study")


def public_functions() -> dict[str, Path]:
    """Name -> file of the public functions at the top of the studies' modules."""
    found = {}
    for folder in FOLDERS:
        for path in (ROOT / "pfl_core" / folder).rglob("*.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                    found[node.name] = path
    return found


def names_in(code: str) -> list[str]:
    """The names and attributes that the code uses, once each time; imports and definitions do not count."""
    tree = ast.parse(code)
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return names + [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]


def cells() -> list[str]:
    """The code of all cells of all notebooks, without IPython's magics."""
    read = (nbformat.read(notebooks.path_of(name), as_version=4) for name in notebooks.names())
    code = [cell.source for notebook in read for cell in notebook.cells if cell.cell_type == "code"]
    return [re.sub(r"^[%!].*$", "", source, flags=re.MULTILINE) for source in code]


def test_no_function_serves_one_cell_alone():
    used = [set(names_in(source)) for source in cells()]
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "pfl_core").rglob("*.py")]
    elsewhere = {name for source in sources for name in names_in(source)}
    alone = {name for name in public_functions() if sum(name in cell for cell in used) == 1 and name not in elsewhere}
    assert alone - SCIENCE.keys() == set(), "move them into the cell, or name them in SCIENCE with the reason"
    assert SCIENCE.keys() - alone == set(), "these are no longer called by one cell alone"


def test_names_are_found_as_they_are_used():
    assert set(names_in("import a\nfrom b import c\nd.e(f)\ndef g(): pass")) == {"d", "e", "f"}

"""Notebooks hold their analysis: no function of the studies' package serves one cell alone, unless it is science."""

import ast
import re
import symtable
from collections import Counter
from collections.abc import Mapping

import nbformat

from pfl_core import notebooks
from pfl_core.runs.provenance import ROOT

SCIENCE = {  # function that one cell calls and nothing else, without pfl_core and papers -> why it is no cell
    "pfedgate.benchmark.analytic": "counts multiply-adds and bytes of the methods' steps",
    "pfedgate.benchmark.by_layer": "counts parameters and multiply-adds of the paper's networks",
    "pfedgate.benchmark.kept_shares": "masks of two readings on the paper's networks",
    "pfedgate.benchmark.peak_memory": "measures memory in processes of their own",
    "pfedgate.benchmark.timed": "measures the time of the methods' steps in turn",
    "pfedgate.costs.table5": "the formulas of the paper's Table 5",
    "pfedgate.gates.kept_macs": "multiply-adds that masks keep",
    "pfedgate.mask_counts.masks_possible": "the number of masks that a budget allows",
    "pfedgate.scheme.gate_scheme": "the drawing of the gate's network",
    "star_pfl.costs.progress": "the cumulative traffic of a run, counted message by message",
    "star_pfl.experiments.ablation_name": "names the runs of the experiment in its module",
    "star_pfl.likeness.likeness": "permutation tests of the clients' similarity, round by round",
    "star_pfl.likeness.likeness_by_layer": "likeness of stable sets beyond chance",
    "star_pfl.likeness.overlap_counts": "adds up the recorded overlaps of the tensors' stable sets",
    "star_pfl.likeness.sampled_tensors": "which entries the probe samples",
    "star_pfl.state_machine.worked_example": "the state machine, step by step",
    "star_pfl.traces.epoch_by_epoch": "reads what the probe recorded within the rounds",
    "star_pfl.traces.frozen": "shares of entries that the probe recorded as frozen, by reason",
    "star_pfl.traces.sampled": "reads the entries that the probe sampled",
    "study.mask_overlap.layer_contrasts": "permutation tests of every layer's masks",
    "study.similarity.neighbours": "nearest clients by similarity",
}
FOLDERS = ("papers", "study")
FILES = {
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"): path
    for path in (ROOT / "pfl_core").rglob("*.py")
}
SOURCES = {module: path.read_text(encoding="utf-8") for module, path in FILES.items()}


def imports_of(code: str) -> dict[str, str]:
    """Name in the code -> what it is imported as, such as ``pfl_core.study.plots`` or ``pfl_core.study.plots.save``."""
    found = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
    return found


IMPORTS = {module: imports_of(source) for module, source in SOURCES.items()}


def origin(name: str) -> str:
    """The full name in the module that defines it, for a name that a package passes on."""
    module, _, last = name.rpartition(".")
    source = IMPORTS.get(module, {}).get(last)
    return origin(source) if source not in (None, name) else name


def names_read(table: symtable.SymbolTable) -> set[str]:
    """The names that the code reads, without the variables and parameters of functions."""
    top = table.get_type() == "module"
    read = [symbol for symbol in table.get_symbols() if symbol.is_referenced()]
    names = {symbol.get_name() for symbol in read if top or symbol.is_global() or symbol.is_imported()}
    return names.union(*map(names_read, table.get_children()))


def uses(code: str, imports: Mapping[str, str], module: str = "") -> set[str]:
    """What the code reads, by full name: what it imports, attributes of that, and what its own module defines."""
    names = names_read(symtable.symtable(code, "", "exec"))
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Attribute)]
    of_names = [(node.value.id, node.attr) for node in nodes if isinstance(node.value, ast.Name)]
    attributes = {f"{imports[name]}.{attribute}" for name, attribute in of_names if name in imports}
    own = {f"{module}.{name}" for name in names - imports.keys()}
    return own | {origin(name) for name in attributes | {imports[name] for name in names & imports.keys()}}


def public_functions() -> set[str]:
    """The public functions at the top of the studies' modules, by full name."""
    return {
        f"{module}.{node.name}"
        for module, source in SOURCES.items()
        if module.startswith(tuple(f"pfl_core.{folder}" for folder in FOLDERS))
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


def cells() -> list[set[str]]:
    """What each code cell of all notebooks uses, without IPython's magics. An import holds for its whole notebook."""
    found = []
    for name in notebooks.names():
        read = nbformat.read(notebooks.path_of(name), as_version=4)
        code = [re.sub(r"^[%!].*$", "", cell.source, flags=re.M) for cell in read.cells if cell.cell_type == "code"]
        imports = imports_of("\n".join(code))
        found += [uses(source, imports) for source in code]
    return found


def test_no_function_serves_one_cell_alone():
    times = Counter(name for cell in cells() for name in cell)
    elsewhere = set().union(*(uses(source, IMPORTS[module], module) for module, source in SOURCES.items()))
    alone = {
        name.removeprefix("pfl_core.").removeprefix("papers.")
        for name in public_functions() - elsewhere
        if times[name] == 1
    }
    assert alone - SCIENCE.keys() == set(), "move them into the cell, or name them in SCIENCE with the reason"
    assert SCIENCE.keys() - alone == set(), "these are no longer called by one cell alone"


def test_uses_are_told_apart_by_module():
    code = "from a import b\nfrom a.c import d as e\ndef g(h): return b.f(e, h.i, k)\ndef m(): from n import o; o()"
    used = uses(code, imports_of(code), "here")
    assert used >= {"a.b.f", "a.c.d", "n.o", "here.k"}
    assert not used & {"here.f", "here.h", "here.i", "here.g", "here.b", "here.e"}

"""Allowed imports between the parts of the package; no other part imports a paper."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from pfl_core import notebooks, papers
from pfl_core.papers import PAPERS, STUDIES
from pfl_core.runs.provenance import ROOT

CODE = ROOT / "pfl_core"

# Part of the package (a folder or a module in it) -> the others that it imports: at the top of a module, in a function
# or for its types alone. The upper parts import the lower ones; "" is `import pfl_core` itself.
IMPORTS = {
    "cli": "algorithm data deadline files notebooks options papers plugins registry runs study",
    "notebooks": "deadline files options papers runs",
    "papers": "algorithm algorithms costs federation layout models options registry runs seeding study training",
    "study": "costs data federation files layout models options ranks registry runs seeding training",
    "runs": (
        "algorithm costs data deadline engine exports federation files metrics models options partition plugins "
        "registry seeding training"
    ),
    "": "algorithm engine exports federation layout training",
    "exports": "algorithm data federation files models",
    "engine": "algorithm federation layout options plugins seeding",
    "metrics": "vision",
    "algorithms": "algorithm costs data federation layout ops options ranks seeding training",
    "algorithm": "federation ops options plugins registry training",
    "costs": "federation layout seeding",
    "federation": "layout ops plugins pooling seeding training",
    "partition": "data options plugins seeding",
    "data": "files options plugins seeding vision",
    "models": "layout options plugins pooling seeding vision",
    "training": "options",
    "layout": "ops plugins",
    "ops": "",
    "plugins": "files loaded options seeding",
    "loaded": "",
    "options": "",
    "files": "",
    "deadline": "",
    "registry": "",
    "pooling": "",
    "ranks": "",
    "seeding": "",
    "vision": "",
}
# Modules whose functions take a study as argument, which imports them: a circle for types alone.
FOR_TYPES = {"claims", "compare", "frame"}
NEEDED = ("claims", "tables", "paper")  # of each paper's folder


def modules() -> dict[str, Path]:
    paths = {path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."): path for path in CODE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in paths.items()}


def imports(text: str) -> Iterator[str]:
    """All names of the package that a module imports anywhere in its text, e.g. "pfl_core.runs.Record"."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "pfl_core")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import hides from these tests"
            if node.module.partition(".")[0] == "pfl_core":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def all_imports() -> list[tuple[str, str]]:
    """(module, name that it imports)."""
    return [(name, found) for name, path in modules().items() for found in imports(path.read_text(encoding="utf-8"))]


def part(name: str) -> str:
    """ "pfl_core.runs.store" -> "runs"; "" for the package itself."""
    return (name + ".").split(".")[1]


def test_parts_import_what_the_table_says():
    found: dict[str, dict[str, str]] = {part(name): {} for name in modules()}
    for name, imported in all_imports():
        if part(imported) not in ("", part(name)):
            found[part(name)][part(imported)] = f"{name} imports {imported}"
    assert found.keys() == IMPORTS.keys()
    for name, others in found.items():
        allowed = set(IMPORTS[name].split())
        assert others.keys() <= allowed, [others[other] for other in others.keys() - allowed]
        assert allowed <= others.keys(), f"{name} imports {allowed - others.keys()} no longer: strike it from the table"


def test_no_circular_imports_between_parts():
    """The rows of the table are ordered so that imports go one way."""
    order = list(IMPORTS)
    for name, others in IMPORTS.items():
        for other in others.split():
            assert order.index(name) < order.index(other), f"{name} imports {other}, which stands above it"


def graph() -> dict[str, set[str]]:
    """Module -> the other modules that it imports."""
    found: dict[str, set[str]] = {name: set() for name in modules()}
    for name, imported in all_imports():
        found[name].add(imported if imported in found else imported.rpartition(".")[0])
    return {name: others - {name} for name, others in found.items()}


def circle(modules: dict[str, set[str]]) -> list[str]:
    """The modules of a circle; [] if there is none."""
    try:
        TopologicalSorter(modules).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_circular_imports_between_modules():
    """Also not inside a folder or a function; for types alone only where FOR_TYPES says so."""
    found = graph()
    for name in FOR_TYPES:
        text = modules()[f"pfl_core.study.{name}"].read_text(encoding="utf-8")
        at_run_time = text.replace("    from pfl_core.study.paper import", "    from typing import")
        assert at_run_time != text, f"{name} imports no study any more: strike it from FOR_TYPES"
        assert "pfl_core.study.paper" not in {module.rpartition(".")[0] for module in imports(at_run_time)}
        found[f"pfl_core.study.{name}"].discard("pfl_core.study.paper")
    assert not circle(found)


def test_a_circle_is_found():
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == {"b", "c"}
    assert not circle({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_a_paper_is_imported_by_its_own_folder_alone():
    """Other code gets a paper by name from ``pfl_core.papers``."""
    for name, imported in all_imports():
        for paper in STUDIES:
            inside = f"pfl_core.papers.{paper}"
            if f"{imported}.".startswith(f"{inside}."):
                assert f"{name}.".startswith(f"{inside}."), f"{name} imports {imported}"


def test_imports_are_found_wherever_they_stand():
    text = "import torch, pfl_core.ops\ndef f():\n    from pfl_core.papers.x import y\nif types:\n    import pfl_core"
    assert sorted(imports(text)) == ["pfl_core", "pfl_core.ops", "pfl_core.papers.x.y"]
    assert [part(name) for name in ("pfl_core", "pfl_core.ops", "pfl_core.papers.x.y")] == ["", "ops", "papers"]


def test_every_paper_has_a_folder_with_all_that_belongs_to_it():
    folders = {path.parent.name for path in (CODE / "papers").glob("*/__init__.py")}
    assert folders == set(STUDIES)
    for name in STUDIES:
        for needed in ("settings", "experiments", "searches"):
            assert f"pfl_core.papers.{name}.{needed}" in modules(), f"{name} has no {needed}"
    for name in PAPERS:
        assert PAPERS[name] == f"pfl_core.papers.{name}.paper"
        for needed in NEEDED:
            assert f"pfl_core.papers.{name}.{needed}" in modules(), f"{name} has no {needed}"
        paper = papers.paper(name)
        assert paper.name == name and paper.claims and (CODE / "papers" / name / "answer.md").is_file()


def test_every_notebook_with_runs_is_one_of_its_papers():
    """Except walkthroughs and the notebooks of the top folder."""
    names = [name for name in notebooks.names() if "/" in name]
    assert {name.partition("/")[0] for name in names} == set(STUDIES)
    assert not any(papers.has_runs(name) for name in notebooks.names() if "/" not in name)
    asked = [name for name in names if papers.has_runs(name)]
    assert sorted(asked) == sorted(f"{name}/{own}" for name in STUDIES for own in papers.study(name).experiments)
    for name in set(names) - set(asked):
        assert "specs(" not in notebooks.path_of(name).read_text(encoding="utf-8"), f"{name} asks for runs of its own"

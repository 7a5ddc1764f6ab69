"""Committed notebooks and their references: same sources, outputs present, each at its preset.

Strict nbval compares only what a reference holds: one without outputs would pass whatever its numbers.
"""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output

from pfl_core import notebooks
from pfl_core.notebooks import manifest
from pfl_core.notebooks.catalogue import NOTEBOOKS
from pfl_core.runs import RESULTS

REFERENCES = Path(__file__).parents[1] / "notebooks"
NAMES = [path.relative_to(NOTEBOOKS).with_suffix("").as_posix() for path in sorted(NOTEBOOKS.glob("**/[!.]*.ipynb"))]
EVIDENCE = {entry.notebook: (entry.preset, entry.seeds) for entry in manifest.read(RESULTS)}
SECTIONS = [name for name in NAMES if "/" in name and not name.endswith("walkthrough")]
TEXT = ("text/plain", "text/html", "text/markdown")


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def problems_with_outputs(notebook: NotebookNode, preset: str, seeds: list[int] | None = None) -> list[str]:
    """What is wrong with a notebook as a record of a complete run at ``preset``."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    counts = [cell.execution_count for cell in code]
    outputs = [output for cell in code for output in cell.outputs]
    texts = [o for o in outputs if o.get("name") == "stdout" or any(kind in o.get("data", {}) for kind in TEXT)]
    found = [] if counts == list(range(1, len(code) + 1)) else [f"not run from top to bottom: {counts}"]
    found += [] if texts else ["no text output to compare"]
    found += ["an error is stored"] if any(output.output_type == "error" for output in outputs) else []
    found += ["stderr is stored"] if any(output.get("name") == "stderr" for output in outputs) else []
    lines = [line.partition("  #")[0] for line in notebooks.parameters_cell(notebook).source.splitlines()]
    wanted = [f'PRESET = "{preset}"', f"SEEDS = {seeds}"]
    return found + [f"{line} is not in its parameters cell" for line in wanted if line not in lines]


def differences(notebook: NotebookNode, reference: NotebookNode) -> list[str]:
    """Cells whose kind, id or source differs; the notebook's PRESET is set to ci first."""
    mine, theirs = notebooks.with_preset(notebook, "ci").cells, reference.cells
    if len(mine) != len(theirs):
        return [f"{len(mine)} cells in the notebook, {len(theirs)} in the reference"]
    keys = ("cell_type", "id", "source")
    pairs = enumerate(zip(mine, theirs, strict=True))
    return [f"cell {i}: {a.source[:60]!r}" for i, (a, b) in pairs if any(a[key] != b[key] for key in keys)]


def test_there_are_notebooks_and_no_reference_is_left_over():
    stored = {path.relative_to(REFERENCES).with_suffix("").as_posix() for path in REFERENCES.glob("**/[!.]*.ipynb")}
    assert NAMES and stored == set(NAMES), "run `make references`"


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_holds_this_notebook_at_preset_ci(name):
    reference = read(REFERENCES / f"{name}.ipynb")
    assert not differences(read(notebooks.path_of(name)), reference), "run `make references`"
    assert not problems_with_outputs(reference, "ci"), "run `make references`"


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_notebook_shows_the_best_evidence(name):
    """Without stored evidence, preset quick."""
    shown = EVIDENCE[name] if name in EVIDENCE else ("quick", None)
    assert not problems_with_outputs(read(notebooks.path_of(name)), *shown), "run `make notebooks`"


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_has_no_path_of_the_machine_that_ran_it(name):
    for path in (notebooks.path_of(name), REFERENCES / f"{name}.ipynb"):
        assert "written to /" not in path.read_text(encoding="utf-8")
        assert str(NOTEBOOKS.parent) not in path.read_text(encoding="utf-8")


def sample(preset: str = "quick", output: NotebookNode | None = None) -> NotebookNode:
    output = output or new_output("stream", name="stdout", text="1")
    parameters = f'PRESET = "{preset}"  # or another\nSEEDS = None'
    cells = [new_code_cell(parameters, id="a", execution_count=1, metadata={"tags": ["parameters"]})]
    return new_notebook(cells=[*cells, new_code_cell("print(1)", id="b", execution_count=2, outputs=[output])])


def test_a_good_pair_passes():
    assert problems_with_outputs(sample(), "quick") == problems_with_outputs(sample("ci"), "ci") == []
    assert differences(sample(), sample("ci")) == []


def test_what_these_checks_find():
    stripped, twice, longer = sample(), sample(), sample("ci")
    stripped.cells[1].update(outputs=[], execution_count=None)
    twice.cells[1].execution_count = 7
    longer.cells[1].source = "print(2)"
    assert problems_with_outputs(stripped, "quick") == [
        "not run from top to bottom: [1, None]",
        "no text output to compare",
    ]
    assert problems_with_outputs(twice, "quick") == ["not run from top to bottom: [1, 7]"]
    assert problems_with_outputs(sample("paper"), "quick") == ['PRESET = "quick" is not in its parameters cell']
    noisy = sample(output=new_output("stream", name="stderr", text="bar"))
    assert problems_with_outputs(noisy, "quick") == ["no text output to compare", "stderr is stored"]
    assert differences(sample(), longer) == ["cell 1: 'print(1)'"]
    assert differences(sample(), new_notebook()) == ["2 cells in the notebook, 0 in the reference"]


WITHOUT_CLAIMS = ("across/", "fedselect/07", "star_pfl/03")


@pytest.mark.parametrize("name", SECTIONS)
def test_the_first_screen_has_question_answer_and_figure(name):
    """Parameters and set-up are folded on the site. The answer has outcomes, which another processor may turn round."""
    question, parameters, answer, *cells = read(NOTEBOOKS / f"{name}.ipynb").cells
    assert "**Question:**" in question.source and "parameters" in parameters.metadata["tags"]
    assert ".judge(" in answer.source or name.startswith(WITHOUT_CLAIMS)
    assert "nbval-ignore-output" in answer.metadata["tags"]
    assert all("hide-input" in cell.metadata["tags"] for cell in (parameters, answer))
    before_figure = [cell for cell in cells[:5] if re.search(r"plots\.(save|show)\(", cell.source)]
    assert before_figure, "a figure is among the first five cells after the answer"

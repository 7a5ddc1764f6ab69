"""Executed copies that are committed: the notebooks' own quick outputs, and the ci references that nbval compares."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from pfl_core.notebooks.catalogue import path_of
from pfl_core.notebooks.runner import NotebookError, Outcome, execute

if TYPE_CHECKING:
    from nbformat import NotebookNode

NOISE = [  # differs from machine to machine or from time to time; keys as nbstripout takes them
    "metadata.papermill",
    "metadata.widgets",
    "metadata.language_info.version",
    "cell.metadata.papermill",
    "cell.metadata.execution",
]
_PRESET = re.compile(r'^PRESET = "\w*"', re.MULTILINE)


def rewrite(name: str, preset: str, target: Path, scratch: Path, env: Mapping[str, str] | None = None) -> Outcome:
    """Run a notebook with ``preset`` written into it, below ``scratch``, and put its cleaned copy at ``target``.

    ``env`` is added to the kernel's environment. "quick" is what the notebook itself shows, with pictures and with
    a bar on stderr; a "ci" reference has neither.
    """
    import nbformat

    began, is_reference, copy = perf_counter(), preset == "ci", scratch / f"{name}.ipynb"
    source = with_preset(nbformat.read(path_of(name), as_version=4), preset)
    try:
        execute(source, copy, env={**(env or {}), **({"TQDM_DISABLE": "1"} if is_reference else {})})
    except NotebookError as error:
        return Outcome(perf_counter() - began, str(error))
    clean = cleaned(nbformat.read(copy, as_version=4), pictures=not is_reference)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".partial.ipynb")
    nbformat.write(clean, part)
    os.replace(part, target)
    return Outcome(perf_counter() - began)


def with_preset(notebook: NotebookNode, preset: str) -> NotebookNode:
    """The notebook with another PRESET in its parameters cell. Raises ValueError if it has no such line."""
    cell = parameters_cell(notebook)
    cell.source, count = _PRESET.subn(f'PRESET = "{preset}"', cell.source)
    if count != 1:
        raise ValueError('the cell tagged "parameters" must have one line PRESET = "quick"')
    return notebook


def parameters_cell(notebook: NotebookNode) -> NotebookNode:
    """The cell tagged `parameters`. Raises ValueError if there is none."""
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", []):
            return cell
    raise ValueError('the notebook has no cell tagged "parameters"')


def cleaned(notebook: NotebookNode, pictures: bool = True) -> NotebookNode:
    """Without times, progress bars and machine details, but with outputs and counts, which nbval needs.

    ``pictures`` False drops PNGs, which nbval does not compare. Needs nbstripout (the extra ``test``).
    """
    from nbstripout import strip_output

    strip_output(
        notebook,
        keep_output=True,
        keep_count=True,
        keep_id=True,
        extra_keys=NOISE,
        drop_output_types={"stream:stderr"},
    )
    for cell in notebook.cells:
        if cell.metadata.get("tags") == []:
            del cell.metadata["tags"]
        for output in cell.get("outputs", []) if not pictures else []:
            output.get("data", {}).pop("image/png", None)
    return notebook

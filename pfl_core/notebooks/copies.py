"""Executed notebooks that are committed: those in notebooks/, and the ci references that nbval compares."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pfl_core.notebooks.catalogue import path_of
from pfl_core.notebooks.runner import run_notebook

if TYPE_CHECKING:
    from nbformat import NotebookNode

NOISE = [  # metadata that differ between machines or runs; keys in nbstripout's format
    "metadata.papermill",
    "metadata.widgets",
    "metadata.language_info.version",
    "cell.metadata.papermill",
    "cell.metadata.execution",
]


def rewrite(
    name: str,
    preset: str,
    target: Path,
    scratch: Path,
    env: Mapping[str, str] | None = None,
    seeds: list[int] | None = None,
) -> None:
    """Run a notebook with this preset in the folder ``scratch``, and write the cleaned copy to ``target``.

    ``seeds``: default those of the preset. ``env`` is added to the kernel's environment. Copies at preset "ci" are
    references: without pictures and progress bars. Raises as ``run_notebook``; ``target`` is not changed then.
    """
    import nbformat

    is_reference, copy = preset == "ci", scratch / f"{name}.ipynb"
    source = with_preset(nbformat.read(path_of(name), as_version=4), preset, seeds)
    run_notebook(source, copy, env={**(env or {}), **({"TQDM_DISABLE": "1"} if is_reference else {})})
    clean = cleaned(nbformat.read(copy, as_version=4), pictures=not is_reference)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial.ipynb")
    with partial.open("w", encoding="utf-8", newline="\n") as file:  # the same bytes on every system
        nbformat.write(clean, file)
    os.replace(partial, target)


def with_preset(notebook: NotebookNode, preset: str, seeds: list[int] | None = None) -> NotebookNode:
    """Set PRESET and SEEDS in the notebook's parameters cell. Raises ValueError if the cell has no such lines."""
    cell = parameters_cell(notebook)
    for line in (f'PRESET = "{preset}"', f"SEEDS = {seeds}"):
        name = line.partition(" ")[0]
        cell.source, count = re.subn(rf"^{name} = [^#\n]*?(?=  #|$)", line, cell.source, flags=re.MULTILINE)
        if count != 1:
            raise ValueError(f'the cell tagged "parameters" must have one line {name} = ...')
    return notebook


def parameters_cell(notebook: NotebookNode) -> NotebookNode:
    """The cell tagged `parameters`. Raises ValueError if there is none."""
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", []):
            return cell
    raise ValueError('the notebook has no cell tagged "parameters"')


def cleaned(notebook: NotebookNode, pictures: bool = True) -> NotebookNode:
    """Remove times, progress bars and machine details. Outputs and execution counts stay, because nbval needs them.

    ``pictures=False`` removes PNGs and their alternative text, which nbval does not compare. Requires nbstripout (the
    extra ``test``).
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
            for part in ("data", "metadata"):
                output.get(part, {}).pop("image/png", None)
    return notebook

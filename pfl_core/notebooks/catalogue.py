"""The notebooks of the project: names, titles, parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pfl_core.options import choices, did_you_mean

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def names() -> list[str]:
    """All notebooks as relative paths without suffix ("fedselect/00_walkthrough"), those of the top folder first.

    Raises FileNotFoundError if there are none, i.e. outside a checkout of the repository.
    """
    paths = [path.relative_to(NOTEBOOKS) for path in NOTEBOOKS.glob("**/*.ipynb")]
    paths = [path for path in paths if not any(part.startswith(".") for part in path.parts)]
    if not paths:
        raise FileNotFoundError(f"no notebooks in {NOTEBOOKS}; work in a checkout of the repository (pip install -e .)")
    return [path.with_suffix("").as_posix() for path in sorted(paths, key=lambda path: (len(path.parts), path.parts))]


def select(selection: Sequence[str]) -> list[str]:
    """The notebooks given by papers, names or paths; all if none is given.

    "fedselect", "02_personalization_limit" and the beginning of a name, such as "fedselect/02", are names, too. Raises
    ValueError for an unknown one, and for a beginning that several notebooks have.
    """
    listed = names()
    found: set[str] = set()
    for text in selection:
        path = Path(text).resolve()
        is_path = path.is_relative_to(NOTEBOOKS) and path.exists()
        name = path.relative_to(NOTEBOOKS).as_posix() if is_path else text.removeprefix("notebooks/").strip("/")
        found.update(_matches(name.removesuffix(".ipynb"), text, listed))
    return [name for name in listed if name in found] if selection else listed


def _matches(name: str, text: str, listed: Sequence[str]) -> list[str]:
    """The notebooks that are meant by ``text``, of which ``name`` is the plain form."""
    if exact := [n for n in listed if name in (n, n.split("/")[0], n.split("/")[-1])]:
        return exact
    begun = [n for n in listed if name and (n.startswith(name) or n.split("/")[-1].startswith(name))]
    if len(begun) == 1:
        return begun
    if begun:
        raise ValueError(f"{text!r} is the beginning of several notebooks: {', '.join(begun)}; give more of the name")
    known = dict.fromkeys([*(n.split("/")[0] for n in listed), *listed])
    raise ValueError(f"no notebook or paper {text!r}{did_you_mean(name, known)}; `pfl figures --list` lists all")


def path_of(name: str) -> Path:
    """The file of a notebook."""
    return NOTEBOOKS / f"{name}.ipynb"


def title(name: str) -> str:
    """The first heading, or '' if there is none. Raises ValueError if the file is not a notebook."""
    import nbformat

    cells = nbformat.read(path_of(name), as_version=4).cells
    lines = (line for cell in cells if cell.cell_type == "markdown" for line in cell.source.splitlines())
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")


def check_parameters(name: str, parameters: Mapping[str, Any]) -> None:
    """Raise ValueError for a parameter that the notebook does not have, or a value that papermill would change."""
    import papermill

    known = papermill.inspect_notebook(path_of(name))
    for parameter, value in parameters.items():
        if parameter not in known:
            raise ValueError(f"{name} has no parameter {parameter!r}{choices(parameter, known)}")
        if not _is_plain(value):
            raise ValueError(f"{name}: {parameter}={value!r} is not plain JSON; use numbers, strings, lists, objects")


def _is_plain(value: Any) -> bool:
    """Whether the value is unchanged by JSON, unlike tuples, paths and NumPy scalars."""
    try:
        decoded = json.loads(json.dumps(value))
    except TypeError:
        return False
    return repr(decoded) == repr(value)

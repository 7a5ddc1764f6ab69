"""Which notebooks there are, what they are called, and which parameters they take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pfl_core.options import did_you_mean

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def names() -> list[str]:
    """All notebooks by path without suffix ("fedselect/00_walkthrough"), those of the top folder first.

    Raises FileNotFoundError where there are none: outside a checkout.
    """
    paths = [path.relative_to(NOTEBOOKS) for path in NOTEBOOKS.glob("**/*.ipynb")]
    paths = [path for path in paths if not any(part.startswith(".") for part in path.parts)]
    if not paths:
        raise FileNotFoundError(f"no notebooks in {NOTEBOOKS}; work in a checkout of the repository (pip install -e .)")
    return [path.with_suffix("").as_posix() for path in sorted(paths, key=lambda path: (len(path.parts), path.parts))]


def chosen(wanted: Sequence[str]) -> list[str]:
    """The notebooks that are meant by papers, names or paths ("fedselect", "02_personalization_limit"); all for none.

    Raises ValueError for one that does not exist.
    """
    known = names()
    found: list[str] = []
    for text in wanted:
        path = Path(text).resolve()
        inside = path.is_relative_to(NOTEBOOKS) and path.exists()
        name = path.relative_to(NOTEBOOKS).as_posix() if inside else text.removeprefix("notebooks/").strip("/")
        name = name.removesuffix(".ipynb")
        meant = [n for n in known if name in (n, n.split("/")[0], n.split("/")[-1])]
        if not meant:
            every = dict.fromkeys([*(n.split("/")[0] for n in known), *known])
            raise ValueError(f"no notebook or paper {text!r}{did_you_mean(name, every)}; there are {', '.join(every)}")
        found += meant
    return [n for n in known if n in found] if wanted else known


def path_of(name: str) -> Path:
    return NOTEBOOKS / f"{name}.ipynb"


def title(name: str) -> str:
    """The first heading; '' without one. Raises ValueError for a file that is no notebook."""
    import nbformat

    cells = nbformat.read(path_of(name), as_version=4).cells
    lines = (line for cell in cells if cell.cell_type == "markdown" for line in cell.source.splitlines())
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")


def check(name: str, parameters: Mapping[str, Any]) -> None:
    """Raises ValueError for a parameter that the notebook does not have, or a value that papermill would distort."""
    import papermill

    known = papermill.inspect_notebook(path_of(name))
    for parameter, value in parameters.items():
        if parameter not in known:
            has = ", ".join(known) or "none"
            raise ValueError(f"{name} has no parameter {parameter!r}{did_you_mean(parameter, known)}; it has {has}")
        if not _is_plain(value):
            raise ValueError(f"{name}: {parameter}={value!r} is no plain JSON; use numbers, strings, lists, objects")


def _is_plain(value: Any) -> bool:
    """Whether JSON brings it back as it was: no tuples, paths, numbers of numpy."""
    try:
        back = json.loads(json.dumps(value))
    except TypeError:
        return False
    return repr(back) == repr(value)

"""The papers by name. Each paper is one folder; other code reaches it only through this table."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pfl_core.runs import RunSpec
    from pfl_core.study.paper import Paper

PAPERS = {  # name -> module with PAPER, imported on first use
    "fedselect": "pfl_core.papers.fedselect.paper",
    "star_pfl": "pfl_core.papers.star_pfl.paper",
    "fedpews": "pfl_core.papers.fedpews.paper",
    "pfedgate": "pfl_core.papers.pfedgate.paper",
}


def paper(name: str) -> Paper:
    """The paper's object. Raises ValueError for an unknown name."""
    if name not in PAPERS:
        from pfl_core.options import did_you_mean

        raise ValueError(f"unknown paper {name!r}{did_you_mean(name, PAPERS)}; choose from {', '.join(PAPERS)}")
    return import_module(PAPERS[name]).PAPER


def has_runs(notebook: str) -> bool:
    """Whether a notebook ("fedselect/01_main_comparison") needs runs; a walkthrough does not."""
    name, _, section = notebook.partition("/")
    return name in PAPERS and section in paper(name).experiments


def specs(
    notebook: str, preset: str, seeds: Sequence[int] | None = None, overrides: Mapping[str, Any] | None = None
) -> list[RunSpec]:
    """The runs of a notebook ("fedselect/01_main_comparison"), see ``Paper.specs``."""
    name, slash, section = notebook.partition("/")
    if not slash:
        raise ValueError(f"{notebook!r} is not a notebook; give paper/notebook, such as fedselect/01_main_comparison")
    return paper(name).specs(section, preset, seeds, overrides)


def variant(spec: RunSpec) -> str:
    """The fields in which a run's method differs from its paper's settings; without a paper, from its defaults."""
    from pfl_core.study import metrics

    return paper(spec.paper).variant(spec) if spec.paper in PAPERS else metrics.variant(spec, {})

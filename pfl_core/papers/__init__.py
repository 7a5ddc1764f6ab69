"""The papers and studies by name. Each is one folder; other code reaches it only through these tables."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pfl_core.runs import RunSpec
    from pfl_core.study.paper import Paper, Study

PAPERS = {  # name -> module with PAPER, imported on first use
    "fedselect": "pfl_core.papers.fedselect.paper",
    "star_pfl": "pfl_core.papers.star_pfl.paper",
    "fedpews": "pfl_core.papers.fedpews.paper",
    "pfedgate": "pfl_core.papers.pfedgate.paper",
}
STUDIES = PAPERS | {"across": "pfl_core.papers.across.study"}  # the last one has STUDY: no tables of a paper


def paper(name: str) -> Paper:
    """The paper's object. Raises ValueError for an unknown name."""
    if name not in PAPERS:
        from pfl_core.options import choices

        raise ValueError(f"unknown paper {name!r}{choices(name, PAPERS)}")
    return import_module(PAPERS[name]).PAPER


def study(name: str) -> Study:
    """The object of a paper or of another study. Raises ValueError for an unknown name."""
    if name in STUDIES and name not in PAPERS:
        return import_module(STUDIES[name]).STUDY
    return paper(name)


def has_runs(notebook: str) -> bool:
    """Whether a notebook ("fedselect/01_main_comparison") needs runs; a walkthrough does not."""
    name, _, section = notebook.partition("/")
    return name in STUDIES and section in study(name).experiments


def has_preset(notebook: str, preset: str) -> bool:
    """Whether a notebook can be run at a preset; a walkthrough has all of them."""
    return not has_runs(notebook) or preset in study(notebook.partition("/")[0]).presets


def specs(
    notebook: str, preset: str, seeds: Sequence[int] | None = None, overrides: Mapping[str, Any] | None = None
) -> list[RunSpec]:
    """The runs of a notebook ("fedselect/01_main_comparison"), see ``Study.specs``."""
    name, slash, section = notebook.partition("/")
    if not slash:
        raise ValueError(f"{notebook!r} is not a notebook; give paper/notebook, such as fedselect/01_main_comparison")
    return study(name).specs(section, preset, seeds, overrides)


def variant(spec: RunSpec) -> str:
    """The fields in which a run's method differs from its study's settings; without a study, from its defaults."""
    from pfl_core.study import frame

    return study(spec.paper).variant(spec) if spec.paper in STUDIES else frame.variant(frame.changed_fields(spec, {}))

"""The comparison of all methods as one ``Study`` object."""

from __future__ import annotations

from pfl_core.papers.across.answer import answer
from pfl_core.papers.across.criteria import SEARCHES
from pfl_core.papers.across.experiments import EXPERIMENTS, SEEDS
from pfl_core.papers.across.settings import SETTINGS
from pfl_core.study.paper import Study

STUDY = Study(
    SETTINGS,
    EXPERIMENTS,
    SEEDS,
    searches=SEARCHES,
    title="All methods",
    question="On one federation and at searched settings, which of the 28 methods is worth what it costs?",
    figure="real/across/fronts",
    answer=answer,
)

"""Star-PFL's ``Paper`` object: settings, experiments, comparison, claims and metrics."""

from __future__ import annotations

from pfl_core.papers.star_pfl.answer import answer
from pfl_core.papers.star_pfl.claims import freezing, tables  # noqa: F401  (importing registers their checks)
from pfl_core.papers.star_pfl.comparison import COMPARISON
from pfl_core.papers.star_pfl.criteria import SEARCHES
from pfl_core.papers.star_pfl.experiments import EXPERIMENTS, SEEDS
from pfl_core.papers.star_pfl.results import rounds, similarity
from pfl_core.papers.star_pfl.settings import SETTINGS
from pfl_core.study.paper import Paper

EXTRA_METRICS = (rounds.extra_metrics, similarity.extra_metrics)
PAPER = Paper(
    SETTINGS,
    EXPERIMENTS,
    SEEDS,
    EXTRA_METRICS,
    searches=SEARCHES,
    comparison=COMPARISON,
    claims=freezing.claim,
    title="Star-PFL",
    question="Can clients skip parameters whose updates only oscillate, and is the result personal?",
    figure="real/star_pfl/leads",
    answer=answer,
)

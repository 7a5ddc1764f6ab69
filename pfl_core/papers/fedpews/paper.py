"""FedPeWS: settings, experiments, comparison and claims in one ``Paper`` object."""

from __future__ import annotations

from pfl_core.papers.fedpews.answer import answer
from pfl_core.papers.fedpews.claims import grids, parts, tables  # noqa: F401  (registers checks)
from pfl_core.papers.fedpews.comparison import COMPARISON
from pfl_core.papers.fedpews.criteria import SEARCHES
from pfl_core.papers.fedpews.experiments import EXPERIMENTS, SEEDS
from pfl_core.papers.fedpews.results import metrics
from pfl_core.papers.fedpews.settings import SETTINGS
from pfl_core.study.paper import Paper

EXTRA_METRICS = (metrics.to_target, metrics.late_accuracy, metrics.warmup, metrics.own_groups)
PAPER = Paper(
    SETTINGS,
    EXPERIMENTS,
    SEEDS,
    EXTRA_METRICS,
    searches=SEARCHES,
    comparison=COMPARISON,
    claims=tables.claim,
    title="FedPeWS",
    question="Does it help clients with very different data to begin with personal subnetworks?",
    figure="paper/fedpews/four_clients",
    answer=answer,
)

"""FedPeWS: settings, experiments, comparison and claims in one ``Paper`` object."""

from __future__ import annotations

from pfl_core.papers.fedpews import results
from pfl_core.papers.fedpews.answer import answer
from pfl_core.papers.fedpews.claims import grids, parts, tables  # noqa: F401  (registers checks)
from pfl_core.papers.fedpews.comparison import COMPARISON
from pfl_core.papers.fedpews.criteria import SEARCHES
from pfl_core.papers.fedpews.experiments import EXPERIMENTS, SEEDS
from pfl_core.papers.fedpews.settings import SETTINGS
from pfl_core.study.paper import Paper

EXTRA_METRICS = (results.to_target, results.late_accuracy, results.warmup, results.own_groups)
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

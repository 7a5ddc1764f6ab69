"""pFedGate's ``Paper`` object: settings, experiments, comparison, claims and metrics."""

from __future__ import annotations

from pfl_core.papers.pfedgate.answer import answer
from pfl_core.papers.pfedgate.benchmark import committed_results
from pfl_core.papers.pfedgate.claims import accuracy, parts, studies  # noqa: F401  (importing registers their checks)
from pfl_core.papers.pfedgate.comparison import COMPARISON
from pfl_core.papers.pfedgate.criteria import SEARCHES
from pfl_core.papers.pfedgate.experiments import EXPERIMENTS, SEEDS
from pfl_core.papers.pfedgate.results.gates import extra_metrics
from pfl_core.papers.pfedgate.results.studies import gate_rank, novel
from pfl_core.papers.pfedgate.settings import SETTINGS
from pfl_core.study.paper import Measured, Paper

PAPER = Paper(
    SETTINGS,
    EXPERIMENTS,
    SEEDS,
    (extra_metrics, novel, gate_rank),
    searches=SEARCHES,
    comparison=COMPARISON,
    claims=accuracy.claim,
    measured=Measured((7, 8), committed_results),
    title="pFedGate",
    question="Can each client use its own sparse part of one shared model?",
    figure="real/pfedgate/budgets",
    answer=answer,
)

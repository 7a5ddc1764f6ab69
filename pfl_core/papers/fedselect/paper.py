"""FedSelect: settings, experiments, comparison and claims in one ``Paper`` object."""

from __future__ import annotations

from pfl_core.papers.fedselect.answer import answer
from pfl_core.papers.fedselect.claims import limits, masks, methods, workshop  # noqa: F401  (registers checks)
from pfl_core.papers.fedselect.comparison import COMPARISON
from pfl_core.papers.fedselect.criteria import SEARCHES
from pfl_core.papers.fedselect.experiments import EXPERIMENTS, SEEDS
from pfl_core.papers.fedselect.settings import SETTINGS
from pfl_core.study.paper import Paper

PAPER = Paper(
    SETTINGS,
    EXPERIMENTS,
    SEEDS,
    searches=SEARCHES,
    comparison=COMPARISON,
    claims=limits.claim,
    title="FedSelect",
    question="Should the parameters that change most in a client's local training be personal, and the others shared?",
    figure="real/fedselect/leads",
    answer=answer,
)

"""Star-PFL's ``Paper`` object: settings, experiments, comparison, claims and metrics."""

from __future__ import annotations

from pfl_core.papers.star_pfl.claims import claim
from pfl_core.papers.star_pfl.experiments import EXPERIMENTS, SEEDS, WITHOUT
from pfl_core.papers.star_pfl.results import rounds, similarity
from pfl_core.papers.star_pfl.searches import SEARCHES
from pfl_core.papers.star_pfl.settings import SETTINGS
from pfl_core.papers.star_pfl.tables import TABLES
from pfl_core.study.frame import Row, is_missing
from pfl_core.study.paper import Paper

EXTRA_METRICS = (rounds.extra_metrics, similarity.extra_metrics)


def nothing_frozen(row: Row) -> bool:
    """Whether a run has no thresholds."""
    return all(name in row["changed"] and is_missing(row[name]) for name in WITHOUT)


PAPER = Paper(
    SETTINGS,
    EXPERIMENTS,
    SEEDS,
    EXTRA_METRICS,
    searches=SEARCHES,
    title="Star-PFL",
    question="Can clients skip parameters whose updates only oscillate, and is the result personal?",
    figure="real/star_pfl/leads",
    claims=claim,
    tables=TABLES,
    score="acc_mean_picked",
    removed=nothing_frozen,
)

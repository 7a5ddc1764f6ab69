"""Star-PFL: all that belongs to the paper, in one object."""

from __future__ import annotations

from pfl_core.papers.star_pfl.claims import freezing, tables  # noqa: F401  (they add their checks)
from pfl_core.papers.star_pfl.comparison import COMPARISON
from pfl_core.papers.star_pfl.criteria import SEARCHES
from pfl_core.papers.star_pfl.experiments import EXPERIMENTS, SEEDS
from pfl_core.papers.star_pfl.results import rounds, similarity
from pfl_core.papers.star_pfl.settings import SETTINGS
from pfl_core.study.paper import Paper

EXTRA_METRICS = (rounds.extra_metrics, similarity.extra_metrics)
PAPER = Paper(SETTINGS, EXPERIMENTS, SEEDS, COMPARISON, freezing.claim, EXTRA_METRICS, SEARCHES)

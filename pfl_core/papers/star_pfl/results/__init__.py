"""Star-PFL: metrics and data frames."""

from pfl_core.papers.star_pfl.results import freezing, rounds, similarity, traces

__all__ = ["freezing", "rounds", "similarity", "traces"]

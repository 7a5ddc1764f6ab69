"""Star-PFL: metrics and data frames."""

from pfl_core.papers.star_pfl.results import ablations, freezing, rounds, similarity, traces

__all__ = ["ablations", "freezing", "rounds", "similarity", "traces"]

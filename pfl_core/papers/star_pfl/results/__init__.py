"""Star-PFL: metrics, data frames and sentences."""

from pfl_core.papers.star_pfl.results import ablations, freezing, rounds, sentences, similarity, traces

__all__ = ["ablations", "freezing", "rounds", "sentences", "similarity", "traces"]

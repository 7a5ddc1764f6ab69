"""pFedGate: metrics, data frames and sentences."""

from pfl_core.papers.pfedgate.results import gates, labels, sentences, studies

__all__ = ["gates", "labels", "sentences", "studies"]

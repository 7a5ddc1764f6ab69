"""pFedGate: metrics and data frames."""

from pfl_core.papers.pfedgate.results import gates, labels, studies

__all__ = ["gates", "labels", "studies"]

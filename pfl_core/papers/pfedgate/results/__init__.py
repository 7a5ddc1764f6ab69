"""pFedGate: metrics and data frames."""

from pfl_core.papers.pfedgate.results import gates, studies

__all__ = ["gates", "studies"]

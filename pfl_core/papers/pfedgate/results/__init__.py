"""pFedGate: metrics and data frames."""

from pfl_core.papers.pfedgate import gates
from pfl_core.papers.pfedgate.results import labels, studies

__all__ = ["gates", "labels", "studies"]

"""Star-PFL: figures."""

from pfl_core.papers.star_pfl.figures import similarity, state_machine, tables, traces

__all__ = ["similarity", "state_machine", "tables", "traces"]

"""pFedGate: figures."""

from pfl_core.papers.pfedgate.figures import budgets, masks, scheme, studies, tables

__all__ = ["budgets", "masks", "scheme", "studies", "tables"]

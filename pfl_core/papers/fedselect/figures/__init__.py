"""FedSelect: figures."""

from pfl_core.papers.fedselect.figures import comparison, limits, masks

__all__ = ["comparison", "limits", "masks"]

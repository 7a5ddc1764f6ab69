"""Figures of FedPeWS's notebooks."""

from pfl_core.papers.fedpews.figures import accuracy, masks

__all__ = ["accuracy", "masks"]

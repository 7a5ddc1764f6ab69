"""FedPeWS: metrics and data frames."""

from pfl_core.papers.fedpews.results import activations, cells, grids, masks, methods, metrics, rounds

__all__ = ["activations", "cells", "grids", "masks", "methods", "metrics", "rounds"]

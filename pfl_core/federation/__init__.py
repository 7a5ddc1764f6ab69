"""A model, its layout, every client's data, and the operations that methods are written in."""

from pfl_core.federation.federation import Federation
from pfl_core.federation.types import Batch, DerivedWeights, Grad, LocalTraining, Output, Scores, Split, Trained

__all__ = [
    "Batch",
    "DerivedWeights",
    "Federation",
    "Grad",
    "LocalTraining",
    "Output",
    "Scores",
    "Split",
    "Trained",
]

"""A model, its layout, every client's data, and the operations that methods are written in."""

from pfl_core.federation.federation import Federation
from pfl_core.federation.types import Batch, Grad, Output, Scores, Split, Trained

__all__ = ["Batch", "Federation", "Grad", "Output", "Scores", "Split", "Trained"]

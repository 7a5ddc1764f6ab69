"""Figures: a tidy DataFrame in, a Figure out. No training, no files, no global style; one colour per method."""

from pfl_core.figures.common import COLORS, NAMES, accuracy_curves, who_got_what
from pfl_core.figures.fedselect import (
    labelled,
    layer_contrast,
    mask_growth,
    overlap_contrast,
    overlap_matrices,
    personalization_limit,
    personalization_rate,
)

__all__ = [
    "COLORS",
    "NAMES",
    "accuracy_curves",
    "labelled",
    "layer_contrast",
    "mask_growth",
    "overlap_contrast",
    "overlap_matrices",
    "personalization_limit",
    "personalization_rate",
    "who_got_what",
]

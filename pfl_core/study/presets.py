"""The presets: sizes at which a paper's experiments can be run."""

PRESETS = ("ci", "quick", "real", "paper")  # the smallest first
DECIDING = ("paper", "real")  # in the order in which they decide claims; smaller ones only show

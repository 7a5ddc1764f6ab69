"""The presets: sizes at which a paper's experiments can be run."""

from __future__ import annotations

PRESETS = ("ci", "quick", "real", "paper")  # the smallest first


def check_preset(preset: str) -> None:
    """Raise ValueError for an unknown preset."""
    if preset not in PRESETS:
        from pfl_core.options import choices

        raise ValueError(f"unknown preset {preset!r}{choices(preset, PRESETS)}")

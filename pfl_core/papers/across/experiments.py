"""The runs of the comparison of all methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pfl_core.papers.across.settings import SETTINGS
from pfl_core.registry import MODULES
from pfl_core.runs import RunSpec

ONE_SEED = ("cifar10",)  # settings that run with the first seed only, to save time


def all_methods(preset: str, seeds: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """Every registered method on every data set of the preset."""
    runs: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in MODULES]
    return [
        spec
        for name in SETTINGS.settings[preset]
        for spec in SETTINGS.specs(name, preset, seeds[:1] if name in ONE_SEED else seeds, overrides, runs)
    ]


EXPERIMENTS = {"00_all_methods": all_methods}
SEEDS: dict[str, dict[str, tuple[int, ...]]] = {"": {"ci": (0,), "quick": (0, 1, 2), "real": (0, 1, 2)}}

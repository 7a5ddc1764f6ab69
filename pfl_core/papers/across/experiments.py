"""The runs of the comparison of all methods."""

from __future__ import annotations

from pfl_core.papers.across.settings import SETTINGS
from pfl_core.papers.plans import Group, Groups, Overrides, experiments
from pfl_core.registry import METHODS

ONE_SEED = ("cifar10",)  # settings that run with the first seed only, to save time


def all_methods(preset: str, overrides: Overrides) -> Groups:
    """Every registered method on every data set of the preset."""
    return (Group(name, [(m, {}) for m in METHODS], one_seed=name in ONE_SEED) for name in SETTINGS.settings[preset])


EXPERIMENTS = experiments(SETTINGS, {"00_all_methods": all_methods})
SEEDS: dict[str, dict[str, tuple[int, ...]]] = {"": {"ci": (0,), "quick": (0,), "real": (0, 1, 2)}}

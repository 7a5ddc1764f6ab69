"""What every paper's experiments are built from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pfl_core.presets import spec
from pfl_core.runs import RunSpec

Runs = Sequence[tuple[str, dict[str, Any]]]  # a method's registered name and its options


def on(
    paper: str, name: str, preset: str, wanted: Sequence[int], overrides: Mapping[str, Any], runs: Runs
) -> list[RunSpec]:
    """All runs for each of the ``wanted`` seeds in one of the paper's settings.

    Raises ValueError for an unknown setting, method or option.
    """
    return [
        spec(paper, method, preset=preset, dataset=name, seed=seed, overrides=overrides, **options)
        for seed in wanted
        for method, options in runs
    ]

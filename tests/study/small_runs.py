"""Very small runs of a notebook."""

from __future__ import annotations

from pfl_core.runs import RunSpec
from tests.runs.outside import HERE

BLOBS = {
    **{"data": {"name": f"{HERE}:blobs"}, "model": {"name": "mlp", "hidden": [6]}},
    **{"clients": 4, "rounds": 3, "paper": "fedselect"},
}


def specs(preset: str = "real", seeds: tuple[int, ...] = (0, 1), **changes) -> list[RunSpec]:
    return [RunSpec(**{"method": {"name": "fedavg"}, **BLOBS, "preset": preset, "seed": s, **changes}) for s in seeds]

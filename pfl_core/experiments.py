"""Which runs a notebook needs: one function for each experiment section, from a preset to specs.

Notebooks, ``pfl figures --dry-run`` and evidence made on another machine ask for the same runs here, and so share them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pfl_core.presets import spec
from pfl_core.runs import RunSpec

Experiment = Callable[[str, Sequence[int], Mapping[str, Any]], list[RunSpec]]

SEEDS = {"ci": (0, 1), "quick": (0, 1, 2), "real": (0, 1, 2), "paper": (0, 1, 2, 3, 4)}

LIMITS = (0.05, 0.30, 0.50, 0.80)  # FedSelect, Table 2
RATES = (0.01, 0.05, 0.10, 0.25)  # ours: the paper's appendix with the effect of p is not at hand


def seeds(preset: str, wanted: Sequence[int] | None = None) -> tuple[int, ...]:
    """The seeds to run: those wanted, or the preset's own."""
    return tuple(SEEDS[preset] if wanted is None else wanted)


def personalization_limit(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """FedSelect, Table 2 and the effect of p: α at one p with α = 0 and 1 added, p at two α, and three baselines."""
    small = preset == "ci"
    pairs = [{"alpha": alpha} for alpha in ((0.0, 0.10, 0.30) if small else (0.0, *LIMITS, 1.0))]
    rates = {"ci": [(0.30, 0.01)], "real": []}  # the real preset has fifteen minutes: Table 2, and the default p only
    every = [(alpha, p) for alpha in (0.30, 0.50) for p in RATES if p != 0.05]  # 0.05, the default, is there already
    pairs += [{"alpha": alpha, "p": p} for alpha, p in rates.get(preset, every)]
    runs = [("fedselect", options) for options in pairs]
    runs += [(baseline, {}) for baseline in ("local", "fedavg", "fedavg_ft")]
    return [
        spec("fedselect", method, preset=preset, seed=seed, overrides=overrides, **options)
        for seed in wanted
        for method, options in runs
    ]


def mask_overlap(preset: str, wanted: Sequence[int], overrides: Mapping[str, Any]) -> list[RunSpec]:
    """FedSelect, Figure 4: the masks that the runs of Table 2 end with."""
    limits = (0.10, 0.30) if preset == "ci" else LIMITS
    return [
        spec("fedselect", "fedselect", preset=preset, seed=seed, overrides=overrides, alpha=alpha)
        for seed in wanted
        for alpha in limits
    ]


EXPERIMENTS: dict[str, Experiment] = {
    "fedselect/02_personalization_limit": personalization_limit,
    "fedselect/05_mask_overlap": mask_overlap,
}

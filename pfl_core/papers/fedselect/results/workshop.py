"""FedSelect's workshop version: labels, the size of its masks, and their overlap by setting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from pfl_core.papers.fedselect.experiments import KEEP_RATES
from pfl_core.runs import Record
from pfl_core.study import mask_overlap, similarity
from pfl_core.study.methods import NAMES
from pfl_core.study.style import COLORS, WINE

SHADES = dict(zip(KEEP_RATES, ("#cc8899", "#aa4466", WINE), strict=True))  # of GradLTN, by p
OWN = "GradLTN, p = 0.50"


def labelled(runs: pd.DataFrame) -> pd.DataFrame:
    """``runs`` with a label and a colour for each method, and for each p of GradLTN. Columns: method, keep_rate."""
    gradltn = runs["method"] == "fedselect_gradltn"
    label = runs["method"].map(NAMES).mask(gradltn, "GradLTN, p = " + runs["keep_rate"].map("{:.2f}".format))
    return runs.assign(label=label, color=runs["method"].map(COLORS).mask(gradltn, runs["keep_rate"].map(SHADES)))


def kept_shares(rates: Iterable[float], iterations: int = 5) -> pd.DataFrame:
    """The share of a model in the mask after each iteration of a search (columns), by p (rows): p to that power.

    Without the rounding to whole parameters.
    """
    rows = {f"p = {rate}": [rate**i for i in range(iterations + 1)] for rate in rates}
    return pd.DataFrame(rows).rename_axis("after iteration").T


def first_with(records: Sequence[Record], keep_rate: float, seed: int) -> dict[str, Record]:
    """Setting -> its run of GradLTN with this p and seed, in the order of the settings' names."""
    chosen = {r.spec.setting: r for r in records if r.spec.method.get("keep_rate") == keep_rate and r.spec.seed == seed}
    return dict(sorted(chosen.items()))


def overlaps(records: Iterable[Record], tensor: str) -> pd.DataFrame:
    """A row per run with masks: setting, p and ``mask_overlap.overlap_contrast``."""
    rows = [
        {
            "setting": r.spec.setting,
            "p": r.spec.method["keep_rate"],
            **mask_overlap.overlap_contrast(r, tensor, draws=similarity.DRAWS),
        }
        for r in records
        if mask_overlap.masks(r)
    ]
    return pd.DataFrame(rows)

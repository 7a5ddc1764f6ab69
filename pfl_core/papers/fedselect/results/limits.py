"""FedSelect's personalization limit: the share that a limit leads to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from pfl_core.algorithms.fedselect.method import FedSelect, num_new


def final_share(p: float, alpha: float, size: int = 1_000_000) -> str:
    """The share of ``size`` entries that is personal in the end, and the number of updates: "0.302 (7)"."""
    rule, personal, updates = FedSelect(p=p, alpha=alpha), 0, 0
    while new := num_new(personal, size, rule):
        personal, updates = personal + new, updates + 1
    return f"{personal / size:.3f} ({updates})"


def final_shares(rates: Iterable[float], limits: Sequence[float]) -> pd.DataFrame:
    """``final_share`` by rate p (rows) and limit α (columns)."""
    rows = {f"p = {p}": {f"α = {alpha}": final_share(p, alpha) for alpha in limits} for p in rates}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("share reached (updates)")

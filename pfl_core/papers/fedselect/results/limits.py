"""FedSelect's personalization limit: the share that a limit leads to, and the accuracy by limit in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from pfl_core.algorithms.fedselect.method import FedSelect, num_new
from pfl_core.papers.fedselect.results.tables import seeds_text
from pfl_core.study.names import NAMES, plain


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


def answer(fedselect: pd.DataFrame, baselines: pd.DataFrame) -> list[str]:
    """A sentence for each data set: the best limit, the range of the means over the limits, α = 0, and the baselines.

    fedselect: alpha, where, seed, acc_mean (a row per run); baselines: method, where, acc_mean.
    """
    sentences = []
    for where, runs in fedselect.groupby("where", sort=False):
        means = runs.groupby("alpha")["acc_mean"].mean()
        personal, best = means[means.index > 0], means.idxmax()
        parts = [f"FedSelect is most accurate at α = {best:g}, {means[best]:.1f} %"]
        if len(personal) > 1:
            spread = personal.max() - personal.min()
            ends = f"from α = {personal.index[0]:g} to {personal.index[-1]:g}"
            parts.append(f"{ends} its means differ by at most {spread:.1f} points")
        if 0 in means.index:
            parts.append(f"α = 0 has {means[0]:.1f} %")
        rivals = baselines[baselines["where"] == where].groupby("method", sort=False)["acc_mean"].mean()
        parts += [f"{NAMES[method]} {value:.1f} %" for method, value in rivals.items()]
        sentences.append(f"{plain(where)}, {seeds_text(runs)}: {'; '.join(parts)}.")
    return sentences

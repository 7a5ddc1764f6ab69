"""FedSelect with few training images: its lead over two methods at the smallest and at the largest size."""

from __future__ import annotations

import pandas as pd

from pfl_core.study.names import NAMES
from pfl_core.study.statistics import interval

FALLING = ("fedbabu", "fedper")  # lose most with few images, according to Figure 3


def by_size(table: pd.DataFrame) -> pd.DataFrame:
    """``table`` with the size in place of the data set, for ``frames.standings``. Column: images."""
    return table.sort_values("images", kind="stable").assign(where=table["images"].map("{:g} images a client".format))


def falling(table: pd.DataFrame) -> list[str]:
    """The labels of FALLING that are in the table. Column: method."""
    return [NAMES[method] for method in FALLING if (table["method"] == method).any()]


def lead_sentences(table: pd.DataFrame) -> list[str]:
    """A sentence for each of FALLING: FedSelect's lead at the smallest and at the largest size, with 95 % intervals.

    Of FedSelect's limits the best one at each size counts.
    Columns: method, label, images, seed, acc_mean.
    """
    sizes = sorted(set(table["images"]))
    means = table.groupby(["images", "method", "label"], sort=False)["acc_mean"].mean()
    highest = means.groupby(["images", "method"], sort=False).max()
    best = means.groupby(["images", "method"], sort=False).idxmax().str[-1]  # the label
    sentences = []
    for method in FALLING:
        ends = [(size, method) for size in dict.fromkeys((sizes[0], sizes[-1]))]
        ends = [end for end in ends if end in highest.index and (end[0], "fedselect") in highest.index]
        leads = {size: _lead(table[table["images"] == size], best[size, "fedselect"], method) for size, _ in ends}
        shown = [
            f"{interval(lead)} points with {size} images ({best[size, 'fedselect'].removeprefix('FedSelect, ')})"
            for size, lead in leads.items()
        ]
        if len(leads) > 1:
            first, last = leads.values()
            shown.append(f"the first minus the last {interval((first - last).dropna())}")
        if shown:
            sentences.append(
                f"Lead of FedSelect (its best limit at that size) over {NAMES[method]}: {', '.join(shown)}."
            )
    return sentences


def _lead(runs: pd.DataFrame, own: str, method: str) -> pd.Series:
    """The label's lead over the method, by seed."""
    scores = runs.set_index("seed")["acc_mean"]
    labels, methods = runs["label"].to_numpy(), runs["method"].to_numpy()
    return (scores[labels == own] - scores[methods == method]).dropna()

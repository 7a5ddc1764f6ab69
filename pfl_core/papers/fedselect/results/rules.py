"""FedSelect's selection rule against other rules: its leads."""

from __future__ import annotations

import pandas as pd

from pfl_core.papers.fedselect.figures.comparison import best
from pfl_core.study.statistics import leads

OWN = "most change (FedSelect)"  # labels of ``labels.rules``
IN_THE_PAPER = ("least change", "random, fixed")  # rules of Table 3 beside the groups of layers


def at_limit(table: pd.DataFrame, where: str, alpha: float) -> pd.DataFrame:
    """The runs of one data set at a limit, with those of fixed groups of layers, which have none.

    Columns: where, alpha, masks.
    """
    return table[(table["where"] == where) & ((table["alpha"] == alpha) | (table["masks"] == "layers"))]


def highlighted(table: pd.DataFrame) -> list[str]:
    """The rules that a figure shows in colour: the paper's, those IN_THE_PAPER, and the best other one.

    Columns: label, acc_mean.
    """
    known = [label for label in (OWN, *IN_THE_PAPER) if (table["label"] == label).any()]
    return known + best(table[~table["label"].isin(known)])


def limit_leads(table: pd.DataFrame) -> dict[tuple[str, float], pd.DataFrame]:
    """(data set, α) -> the lead of the paper's rule over each other rule, see ``leads``.

    Columns: where, alpha, masks, label, seed, acc_mean.
    """
    keys = [(where, alpha) for where in dict.fromkeys(table["where"]) for alpha in sorted(set(table["alpha"]))]
    return {(where, alpha): leads(at_limit(table, where, alpha), OWN) for where, alpha in keys}

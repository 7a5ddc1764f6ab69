"""FedSelect's selection rule against other rules: leads and sentences."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from pfl_core.papers.fedselect.figures.comparison import best
from pfl_core.papers.fedselect.results.tables import seeds_text
from pfl_core.runs import Record
from pfl_core.study.names import plain
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


def answer(table: pd.DataFrame, found: dict[tuple[str, float], pd.DataFrame]) -> list[str]:
    """A sentence for each data set and limit: the paper's rule, the highest and the lowest, and what the leads decide.

    ``table``: see ``limit_leads``, whose result is ``found``.
    """
    sentences = []
    for (where, alpha), ahead in found.items():
        runs = at_limit(table, where, alpha)
        means = runs.groupby("label", sort=False)["acc_mean"].mean().sort_values(ascending=False, kind="stable")
        if OWN not in means.index:
            continue
        place = means.index.get_loc(OWN) + 1
        parts = [f"{OWN} {means[OWN]:.1f} %, place {place} of {len(means)}"]
        parts += [f"{label} {means[label]:.1f} %" for label in IN_THE_PAPER if label in means.index]
        parts.append(
            f"highest: {means.index[0]} {means.iloc[0]:.1f} %; lowest: {means.index[-1]} {means.iloc[-1]:.1f} %"
        )
        if ahead["from"].notna().any():
            parts.append(
                f"95 % interval of its lead above 0: {_names(ahead['from'] > 0)}; below 0: {_names(ahead['to'] < 0)}"
            )
        sentences.append(f"{plain(where)}, α = {alpha:g}, {seeds_text(runs)}: {'; '.join(parts)}.")
    return sentences


def layers_over_rounds(records: Sequence[Record], table: pd.DataFrame) -> list[str]:
    """Groups of layers in the longer runs: in the round where the shorter runs end, and in the last round.

    Empty if all runs have as many rounds.

    ``table``: a row for each record, see ``labels.rules``.
    """
    ends = sorted({record.rounds for record in records})
    if len(ends) < 2:
        return []
    short, long = ends[0], ends[-1]
    rows = [
        (label, *record.curve()["acc_mean"].reindex([short, long]))
        for record, label, masks in zip(records, table["label"], table["masks"], strict=True)
        if record.rounds == long and (masks == "layers" or label == OWN)
    ]
    scores = pd.DataFrame(rows, columns=["label", short, long]).dropna().groupby("label", sort=False).mean()
    if scores.empty or set(scores.index) == {OWN}:
        return []
    shown = "; ".join(f"{label} {early:.1f} and {late:.1f} %" for label, early, late in scores.itertuples())
    rates = sorted({record.spec.train.lr for record in records})
    rate = f"the rate is {rates[0]:g} in all runs" if len(rates) == 1 else "the rates differ between runs"
    return [
        f"Effect of the rounds ({rate}): the runs of {long} rounds have in round {short}, where the others end, and in "
        f"their last round: {shown}."
    ]


def _names(chosen: pd.Series) -> str:
    """The index where ``chosen``, or "none"."""
    return ", ".join(chosen.index[chosen]) or "none"

"""The answer at the top of the notebook, from the stored runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from pfl_core.papers.across.results import (
    REFERENCE,
    RIVALS,
    SCORE,
    TRAINED,
    against_local,
    by_data_set,
    clients,
    comparable,
    front,
    means,
    table,
)
from pfl_core.papers.across.settings import SETTINGS
from pfl_core.registry import MODULES
from pfl_core.runs import Record
from pfl_core.study.criteria import SHOWN_ONLY, is_small
from pfl_core.study.metrics import metrics_frame, run_metrics
from pfl_core.study.names import NAMES
from pfl_core.study.statistics import agreement
from pfl_core.study.verdicts import UNDECIDED

SIDES = {"holds": "After aggregation ahead of Local", "does not hold": "After aggregation behind Local"}
COST_NAMES = {"upload_mb": "bytes", "passes": "passes"}
FRONT = "each has a higher mean than all that cost at most as much"


def answer(records: Sequence[Record]) -> list[str]:
    """For each data set, a text whose later lines are the parts of the answer. ``records``: runs of one preset.

    Of these, those that ``comparable`` leaves out do not count.
    """
    texts: list[str] = []
    for where, own in by_data_set(comparable(records)[0]).items():
        points = means(table(own))
        seeds = len({record.spec.seed for record in own})
        preset = own[0].spec.preset_label
        hedge = f": {SHOWN_ONLY}, not decided" * is_small(preset)
        lines = [f"{where} ({seeds} seed{'s' * (seeds > 1)}, preset {preset}{hedge})", best(points)]
        lines += [
            after_training(points),
            *sides(against_local(metrics_frame(run_metrics(record, SETTINGS) for record in own))),
            closest(clients(own)),
        ]
        fronts = {name: ", ".join(front(points, cost)) for cost, name in COST_NAMES.items()}
        lines += [f"Pareto front of accuracy and {name} ({FRONT}): {labels}." for name, labels in fronts.items()]
        texts.append("\n".join(lines))
    return texts


def best(points: pd.DataFrame) -> str:
    """The most accurate method, Local and FedAvg. ``points``: rows of ``means`` for one data set."""
    score = points.set_index("label")[SCORE]
    others = [f"{NAMES[name]} has {score[NAMES[name]]:.1f} %" for name in (REFERENCE, "fedavg") if NAMES[name] in score]
    absent = len(MODULES) - len(score)
    of = f"{len(score)} methods" + (f" ({absent} more are not stored yet)" if absent else "")
    first = f"After aggregation {score.index[0]} has the highest mean of {of}: {score.iloc[0]:.1f} %"
    return "; ".join([first, *others]) + "."


def after_training(points: pd.DataFrame) -> str:
    """The method with the highest mean after local training, and the number above Local. ``points``: as in ``best``."""
    score = points.set_index("label")[TRAINED].sort_values(ascending=False, kind="stable")
    text = f"After local training {score.index[0]} has the highest mean: {score.iloc[0]:.1f} %"
    if (local := score.get(NAMES[REFERENCE])) is None:
        return f"{text}."
    return f"{text}; {int((score > local).sum())} of {len(score) - 1} methods are above Local. Not tested."


def sides(judged: pd.DataFrame) -> Iterator[str]:
    """The methods ahead of and behind Local, and the number of others. ``judged``: see ``against_local``."""
    if judged.empty:
        return
    if judged["low"].isna().all():
        yield "One seed gives no interval, so no lead over Local is tested."
        return
    for (side, status), group in judged.groupby(["holm", "status"], sort=False):
        if side != UNDECIDED:
            hedge = f"{SHOWN_ONLY}, not decided" if status == SHOWN_ONLY else "decided"
            hedge = "not decided; the reasons are in the notebook's table of leads" if status == UNDECIDED else hedge
            yield f"{SIDES[side]} ({hedge}): {', '.join(group['label'])}."
    rest = judged[judged["holm"] == UNDECIDED]
    if rest.empty:
        return
    above, below = rest.loc[rest["low"] > 0, "label"], rest.loc[rest["high"] < 0, "label"]
    who = (
        "any method is"
        if len(rest) == len(judged)
        else f"{len(rest)} other method{'s are' if len(rest) > 1 else ' is'}"
    )
    yield (
        f"The seeds do not show on which side of Local {who}, after Holm's correction for {RIVALS} comparisons. "
        f"Without it, {', '.join(above) or 'none'} {'is' if len(above) < 2 else 'are'} ahead and {len(below)} behind."
    )


def closest(scores: pd.DataFrame) -> str:
    """The method whose clients' accuracies are closest to those under Local. ``scores``: see ``clients``."""
    table = agreement(scores, NAMES[REFERENCE]).dropna(subset="mean size of it")
    if table.empty:
        return "Local or all other methods are not stored."
    row = table.loc[table["mean size of it"].idxmin()]
    return (
        f"Closest to Local client by client: {row.name}, with a mean absolute difference of "
        f"{row['mean size of it']:.1f} points and a correlation of {row['correlation']:.2f}."
    )

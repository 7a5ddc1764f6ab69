"""Claim 3 of FedPeWS under the readings of Algorithm 1: four clients, no diversity reward."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from pfl_core.papers.fedpews.claims.tables import LATE, THREE_CLASSES
from pfl_core.papers.fedpews.experiments import READINGS
from pfl_core.papers.fedpews.results.metrics import late_accuracy
from pfl_core.runs import Record
from pfl_core.study.frames import method_fields
from pfl_core.study.statistics import interval
from pfl_core.study.verdicts import above

PRINTED = {"fedavg": 58.4, "fedpews": 91.13}  # the text on Figure 5
PRINTED_STD = [2.33, 3.55]  # their deviations


def reading_of(record: Record) -> str:
    """The name of the run's reading in READINGS; "FedAvg" for a FedAvg run.

    Raises StopIteration for a reading that is not in READINGS.
    """
    if record.spec.method["name"] == "fedavg":
        return "FedAvg"
    fields = method_fields(record.spec)
    options = {name: fields[name] for reading in READINGS.values() for name in reading}
    defaults = _defaults(record)
    return next(label for label, reading in READINGS.items() if options == defaults | reading)


def _defaults(record: Record) -> dict[str, object]:
    """The defaults of all fields that a reading changes."""
    cls = type(record.spec.build_method())
    return {name: getattr(cls, name) for reading in READINGS.values() for name in reading}


def runs_by_reading(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run: reading, seed, last (accuracy of the last round), late (mean of the last ten rounds), percent."""
    rows = []
    for record in records:
        last = record.curve()["acc_pooled"].iloc[-1]
        rows.append((reading_of(record), record.spec.seed, last, late_accuracy(record).get(LATE, np.nan)))
    return pd.DataFrame(rows, columns=["reading", "seed", "last", "late"])


def claim_3_by_reading(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per reading: accuracies, the lead of ``late`` over FedAvg, and the two parts of claim 3.

    runs: columns of ``runs_by_reading``. Deviations are sample deviations. ``succeeds``: whether the 95 % interval of
    ``late`` is above THREE_CLASSES. ``above the paper's``: whether it is above the printed 91.13.
    """
    # Rows: seeds; columns: readings.
    late = runs.pivot(index="seed", columns="reading", values="late")
    rows = {}
    for label in (label for label in READINGS if label in late.columns):
        values, last = late[label].dropna(), runs.loc[runs["reading"] == label, "last"].mean()
        level, lead = interval(values), "not stored"
        if "FedAvg" in late.columns and len(gap := (values - late["FedAvg"]).dropna()):
            lead = str(interval(gap))
        parts = [above(level, bound) for bound in (THREE_CLASSES, PRINTED["fedpews"])]
        rows[label] = (last, values.mean(), values.std(), len(values), lead, *parts)
    columns = ["last round", "ten rounds", "std", "seeds", "over FedAvg", "succeeds", "above the paper's"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("reading")


def answer(runs: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """Sentences on the mean of the last ten rounds: FedAvg, the default reading, the lowest and the highest one.

    runs: of ``runs_by_reading``; table: ``claim_3_by_reading`` of them.
    """
    late = table["ten rounds"].dropna()
    if late.empty:
        return ["No run with λ = 0 has scores of its last ten rounds."]
    low, high = late.idxmin(), late.idxmax()
    levels = [f"from {late[low]:.1f} % ({low}) to {late[high]:.1f} % ({high}) over {len(late)} readings"]
    if "default" in late:
        levels.insert(0, f"{late['default']:.1f} % with the default reading")
    plain, seeds = runs.loc[runs["reading"] == "FedAvg", "late"].mean(), table["seeds"]
    fedavg = "not stored" if np.isnan(plain) else f"{plain:.1f} %"
    few, most = seeds.min(), seeds.max()
    over = "one seed" if most == 1 else f"{most} seeds" if few == most else f"{few} to {most} seeds"
    clear = (table["succeeds"] == "holds").sum()
    return [
        f"Mean accuracy of the last ten rounds ({over}): FedAvg {fedavg}; λ = 0 has {', and '.join(levels)}. "
        f"The paper has {PRINTED['fedavg']:.1f} % and {PRINTED['fedpews']:.1f} %.",
        f"A reading succeeds if its 95 % interval lies above {THREE_CLASSES:g} %, which a model that misses one of the "
        f"four classes can reach{' (one seed has no interval)' if few < 2 else ''}: {clear} of {len(table)} do.",
    ]


def beside_the_paper(runs: pd.DataFrame) -> pd.DataFrame:
    """Means and deviations by reading, of the last ten rounds and of the last round, and the paper's two numbers.

    Columns: panel, label (the reading), value, std, method (fedavg or fedpews).
    """
    panels = {"late": "mean of the last ten rounds", "last": "last round"}
    long = runs.rename(columns=panels).melt(["reading", "seed"], var_name="panel")
    reproduced = long.groupby(["panel", "reading"], sort=False)["value"].agg(value="mean", std="std").reset_index()
    text = {"reading": ["paper: FedAvg", "paper: λ = 0"], "value": [PRINTED[name] for name in ("fedavg", "fedpews")]}
    printed = pd.DataFrame(text | {"std": PRINTED_STD, "panel": panels["late"]})
    cells = pd.concat([reproduced.sort_values("panel", key=lambda p: p != panels["late"], kind="stable"), printed])
    method = cells["reading"].str.contains("FedAvg").map({True: "fedavg", False: "fedpews"})
    return cells.rename(columns={"reading": "label"}).assign(method=method)

"""Star-PFL without one of its parts, and in other readings of the text."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from pfl_core.papers.star_pfl.experiments import ablation_name
from pfl_core.papers.star_pfl.results.rounds import POINTS, extra_metrics
from pfl_core.runs import Record
from pfl_core.study.methods import NAMES

SHARES = {  # metric -> what is sent or frozen
    "sent_share": "sent",
    "frozen_local": "frozen by clients",
    "frozen_global": "frozen by the server",
}
COLUMNS = POINTS | SHARES | {"rounds_to_convergence": "rounds to best"}
OWN = NAMES["star_pfl"]
NOISE = {"chance_sent": "sent_share", "chance_local": "frozen_local", "chance_global": "frozen_global"}


def run_label(record: Record) -> str:
    """A run's name where options, settings and seeds differ: "never thawed, axial, seed 0"."""
    return f"{ablation_name(record.spec)}, {record.spec.setting}, seed {record.spec.seed}"


def table(records: Sequence[Record]) -> pd.DataFrame:
    """A row per run. Columns: label (the option, or the method), seed, setting, and the metrics of the comparison."""
    rows = [
        {
            "label": ablation_name(record.spec) or NAMES[record.spec.method["name"]],
            "seed": record.spec.seed,
            "setting": record.spec.setting,
            **extra_metrics(record),
        }
        for record in records
    ]
    return pd.DataFrame(rows)


def cells(runs: pd.DataFrame) -> pd.DataFrame:
    """Means and deviations over seeds for ``figures.tables.ablations``; the shares on noise have a label of their own.

    Columns of ``runs``: see ``table``. The column ``same`` is Star-PFL's mean over a label's seeds, if these are fewer
    than its own.
    """
    metrics = [*POINTS, *SHARES]
    own = runs[runs["label"] == OWN]
    noise = own[["seed", *NOISE]].rename(columns=NOISE).assign(label="noise alone")
    long = pd.concat([runs, noise]).melt(["label", "seed"], metrics, var_name="metric").dropna()
    long = long.merge(own.melt("seed", metrics, "metric", "same"), "left", on=["metric", "seed"])
    means = long.groupby(["metric", "label"], sort=False).agg(
        value=("value", "mean"), std=("value", "std"), same=("same", "mean"), seeds=("seed", "nunique")
    )
    means = means.assign(same=means["same"].where(means["seeds"] < own["seed"].nunique())).reset_index()
    scores = means["metric"].isin(POINTS)
    return means.assign(
        panel=means["metric"].map(COLUMNS) + " (%)",
        dataset=scores.map({True: "accuracy", False: "share"}),
    )

"""Compares methods run side by side, from the frame of their runs (``runs_of``): costs, leads, remarks, a figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pfl_core.registry import METRICS
from pfl_core.runs import Record
from pfl_core.study import frame
from pfl_core.study.search import validation_score
from pfl_core.study.statistics import Interval, holm, interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEANS = ["acc_mean", "acc_bottom_decile", "acc_clients_sd", "acc_val", "upload_mb", "train_tflop", "passes", "seconds"]
WHERE_SCORED = ["acc_mean_novel", *METRICS]  # numbers that only some runs have


def runs_of(groups: Mapping[str, Sequence[Record]]) -> pd.DataFrame:
    """The frame of the runs, with ``label`` ("ditto, lam=0.1"), ``acc_val`` (see ``validation``), ``acc_clients_sd``
    (see ``client_deviation``) and ``about``.
    """
    return frame.frame(
        frame.row_of(record, None)
        | {"label": label, "acc_val": validation(record), "acc_clients_sd": client_deviation(record)}
        | {"about": record.about}
        for label, records in groups.items()
        for record in records
    )


def client_deviation(record: Record) -> float:
    """Standard deviation of the accuracy over all clients, in percentage points (divided by N, not N - 1).

    It is that of the last round, scored where the method reports its accuracy; of clients with test images.
    """
    correct, count = (record.last(name + record.reported_suffix) for name in ("correct", "count"))
    scored = count > 0
    return float(np.std(100 * correct[scored] / count[scored]))


def validation(record: Record) -> float:
    """Pooled accuracy on validation samples after the last round's aggregation, in percent; NaN without them."""
    return validation_score(record).end if "correct_val" in record.series else np.nan


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each label: the means of MEANS over its runs, and ``acc_mean_sd``, the sample standard deviation of the
    accuracy (NaN for one seed). ``upload_mb``: of all clients and rounds; ``train_tflop``: FLOPs of training / 10^12.
    Also the means of WHERE_SCORED: of novel clients, and of the metrics.
    """
    of_label = runs.groupby("label", sort=False)
    means = of_label[[*MEANS, *(name for name in WHERE_SCORED if name in runs)]].mean()
    return means.assign(acc_mean_sd=of_label["acc_mean"].std())


def differences(runs: pd.DataFrame, metric: str = "acc_mean") -> dict[str, tuple[Interval, bool]]:
    """The lead of the first label over each other one, paired by seed, and whether it differs from 0 significantly.

    The interval is a 95 % interval of one difference. Significance is by Holm's correction over all differences.
    """
    first, *others = dict.fromkeys(runs["label"])
    values = runs.pivot(index="seed", columns="label", values=metric)
    leads = {other: interval((values[first] - values[other]).dropna()) for other in others}
    significant = holm([lead.p for lead in leads.values()])
    return {other: (leads[other], clear) for other, clear in zip(others, significant, strict=True)}


def remarks(runs: pd.DataFrame) -> Iterator[str]:
    """A line for each data set with a note, then for each label with runs that diverged or had no active mechanism."""
    yield from (f"data: {about}" for about in dict.fromkeys(runs["about"]) if about)
    problems = {
        "the training failed (it diverged, or the models give one answer to all images)": (runs["failed"] > 0)
        | ~np.isfinite(runs["loss"]),
        "a check of the mechanism failed, so the runs do not show the method": runs["inert"] > 0,
    }
    for label in dict.fromkeys(runs["label"]):
        for problem, has_it in problems.items():
            if seeds := list(runs.loc[has_it & (runs["label"] == label), "seed"]):
                yield f"{label}: {problem} (seeds {', '.join(map(str, seeds))})"


def curves(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean client accuracy (``value``, percent) by label, seed and round, scored where the method reports it."""
    return frame.rounds(runs, "acc_mean")[["label", "method", "seed", "round", "value"]]


def accuracy_figure(runs: pd.DataFrame) -> Figure:
    """Accuracy by round: a line for the mean over seeds of each label, and a band from minimum to maximum."""
    from pfl_core.study import plots

    data = curves(runs)
    pairs = zip(data["label"], data["method"], strict=True)
    data["label"] = [plots.NAMES[method] + label.removeprefix(method) for label, method in pairs]
    fig = plots.curves(data)
    return plots.captioned(fig, plots.caption(runs), str(fig.get_label()))

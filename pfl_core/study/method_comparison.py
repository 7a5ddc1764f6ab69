"""Compares methods run side by side: accuracies and costs over seeds, paired differences, accuracy curves.

``groups`` maps a label, such as "ditto" or "ditto, lam=0.1", to the records of its runs, one for each seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from pfl_core.runs import Record
from pfl_core.study.checks import failed
from pfl_core.study.frame import passes
from pfl_core.study.search import validation_score
from pfl_core.study.statistics import Interval, holm, interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Groups = Mapping[str, Sequence[Record]]


def summary(records: Sequence[Record]) -> dict[str, float]:
    """Means over the runs of a label, and the sample standard deviation of the accuracy (NaN for one seed).

    ``acc_*`` in percent, of the last round; ``acc_val``: pooled, on validation samples, as searches score it, NaN
    without them; ``upload_mb`` of all clients and rounds; ``train_tflop``: FLOPs of the
    training / 10^12; ``passes``: how often a client went through its training data, mean over training images and
    including rounds without it; ``seconds`` of a run.
    """
    runs = pd.DataFrame(
        [record.summary() | {"passes": passes(record), "acc_val": validation(record)} for record in records]
    )
    names = ["acc_mean", "acc_bottom_decile", "acc_val", "upload_mb", "train_tflop", "passes", "seconds"]
    means = runs[names].mean(skipna=False)
    return {**means, "acc_mean_sd": float(runs["acc_mean"].std(ddof=1)) if len(runs) > 1 else math.nan}


def validation(record: Record) -> float:
    """Pooled accuracy on validation samples after the last round's aggregation, in percent; NaN without them."""
    return validation_score(record).end if "correct_val" in record.series else math.nan


def differences(groups: Groups, metric: str = "acc_mean") -> dict[str, tuple[Interval, bool]]:
    """The lead of the first label over each other one, paired by seed, and whether it differs from 0 significantly.

    The interval is a 95 % interval of one difference. Significance is by Holm's correction over all differences.
    """
    values = {
        label: pd.Series({record.spec.seed: record.summary()[metric] for record in records})
        for label, records in groups.items()
    }
    first, *others = values
    leads = {other: interval((values[first] - values[other]).dropna()) for other in others}
    significant = holm([lead.p for lead in leads.values()])
    return {other: (leads[other], clear) for other, clear in zip(others, significant, strict=True)}


def remarks(groups: Groups) -> Iterator[str]:
    """A line for each data set with a note, then for each label with runs that diverged or had no active mechanism."""
    for about in dict.fromkeys(record.about for records in groups.values() for record in records):
        if about:
            yield f"data: {about}"
    for label, records in groups.items():
        runs = {
            "the training failed (it diverged, or the models give one answer to all images)": [
                r.spec.seed for r in records if failed(r) or not math.isfinite(r.summary()["loss"])
            ],
            "a check of the mechanism failed, so the runs do not show the method": [
                r.spec.seed for r in records if not all(check.acts for check in r.mechanism)
            ],
        }
        for problem, seeds in runs.items():
            if seeds:
                yield f"{label}: {problem} (seeds {', '.join(map(str, seeds))})"


def curves(groups: Groups) -> pd.DataFrame:
    """Mean client accuracy (``value``, percent) by label, seed and round, scored where the method reports it."""
    parts = {
        (label, record.spec.method["name"], record.spec.seed): record.reported_curve()["acc_mean"]
        for label, records in groups.items()
        for record in records
    }
    return pd.concat(parts, names=["label", "method", "seed"]).rename("value").reset_index()


def accuracy_figure(groups: Groups) -> Figure:
    """Accuracy by round: a line for the mean over seeds of each label, and a band from minimum to maximum."""
    from pfl_core.study import plots
    from pfl_core.study.frame import row_of

    data, runs = curves(groups), [record for records in groups.values() for record in records]
    pairs = zip(data["label"], data["method"], strict=True)
    data["label"] = [plots.NAMES.get(method, method) + label.removeprefix(method) for label, method in pairs]
    fig = plots.curves(data)
    caption = plots.caption(pd.DataFrame([row_of(record, None) for record in runs]))
    return plots.captioned(fig, caption, str(fig.get_label()))

"""FedPeWS-specific metrics of a run."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from pfl_core.costs import VALUE_BYTES, rounds_to
from pfl_core.papers.fedpews.settings import TARGETS
from pfl_core.runs import Record

LATE = 10  # rounds; while clients disagree the accuracy changes by ten points and more between rounds


def to_target(record: Record) -> dict[str, float]:
    """The first round that reaches the target accuracy of the paper's table, and the time until then.

    ``rounds_to_target`` and ``time_to_target`` are NaN if no round reaches it. ``run_time`` is the time of all rounds.
    Times are those of ``round_times``. Empty without a target.
    """
    if (target := TARGETS.get(record.spec.setting)) is None:
        return {}
    rounds, times = round_times(record)
    reached = rounds_to(record.curve()["acc_pooled"].tolist(), target)
    first = record.series["correct"][0][reached - 1] if reached else math.nan
    elapsed = times[rounds <= first].sum() if reached else math.nan
    return {"rounds_to_target": first, "time_to_target": elapsed, "run_time": times.sum()}


def round_times(record: Record) -> tuple[np.ndarray, np.ndarray]:
    """The rounds, counted from 1, and the time of each, with a round after the warm-up as the unit.

    Each round counts as the median of its phase (warm-up or later), divided by the median of the later phase. So rounds
    that other processes slowed down have no effect, and runs under different load can be compared. NaN if no round
    follows the warm-up.
    """
    rounds, seconds = np.array(record.series["seconds"][0]), record.array("seconds")[:, 0]
    warm = np.isin(rounds, warmup_rounds(record))
    in_warmup, later = (float(np.median(part)) if len(part) else math.nan for part in (seconds[warm], seconds[~warm]))
    return rounds, np.where(warm, in_warmup, later) / later


def late_accuracy(record: Record) -> dict[str, float]:
    """``acc_late``: the mean of ``acc_pooled`` over the last ten rounds, if all of them were scored."""
    accuracy, scored = record.curve()["acc_pooled"].to_numpy(), np.array(record.series["correct"][0])
    late = accuracy[scored > record.rounds - LATE]
    return {"acc_late": float(late.mean())} if len(late) == LATE else {}


def warmup_rounds(record: Record) -> pd.Index:
    """The rounds, counted from 1, in which clients trained subnetworks."""
    return pd.Index(np.array(record.series.get("selected", ([], []))[0], dtype=int))


def warmup(record: Record) -> dict[str, float]:
    """Metrics of the warm-up; empty without one.

    ``neurons``: h. ``selected``: the share of neurons in a mask. ``warmup_upload_fraction``, ``warmup_upload_max``: a
    client's upload over the whole model, mean and maximum, with h bits for the mask. ``warmup_cost``: the
    ``round_times`` of a warm-up round. ``diversity_max`` (learned masks only): the largest ||p_k - p_others||^2.
    """
    warm = warmup_rounds(record)
    if not len(warm):
        return {}
    rounds, times = round_times(record)
    neurons = np.nanmax(record.array("upload_bits"))
    # Share of the model that each client sends in each warm-up round; the mask adds one bit per neuron.
    upload = record.array("upload")[np.isin(record.series["upload"][0], warm)]
    sent = (upload + neurons / (8 * VALUE_BYTES)) / record.num_params
    metrics = {
        "neurons": neurons,
        "selected": float(np.nanmean(record.array("selected"))),
        "warmup_upload_fraction": float(np.nanmean(sent)),
        "warmup_upload_max": float(np.nanmax(sent)),
        "warmup_cost": float(times[rounds == warm[0]][0]),
    }
    if "diversity" in record.series:
        metrics["diversity_max"] = float(np.nanmax(record.array("diversity")))
    return metrics

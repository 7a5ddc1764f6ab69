"""FedPeWS's numbers of a run: when it reaches the paper's target, its warm-up, whose neurons are active."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from pfl_core.algorithms.fedpews.fixed import split_neurons
from pfl_core.costs import VALUE_BYTES, rounds_to
from pfl_core.papers.fedpews.settings import TARGETS
from pfl_core.runs import Record, RunSpec


def target_of(spec: RunSpec) -> float | None:
    """The accuracy (percent) whose first round the tables give for this run's column; None if they do not."""
    return TARGETS.get(spec.setting) if spec.paper == "fedpews" else None


def to_target(record: Record) -> dict[str, float]:
    """Where the paper's table has a target accuracy: the first round that reaches it, and the time until then.

    ``rounds_to_target`` and ``time_to_target`` are not numbers if no round does; ``run_time``: of all rounds. Times are
    those of ``round_time``.
    """
    if (target := target_of(record.spec)) is None:
        return {}
    accuracy, took = record.curve()["acc_pooled"], round_time(record)
    reached = rounds_to(accuracy.tolist(), target)
    first = accuracy.index[reached - 1] if reached else math.nan
    spent = took.loc[:first].sum() if reached else math.nan
    return {"rounds_to_target": first, "time_to_target": spent, "run_time": took.sum()}


def round_time(record: Record) -> pd.Series:
    """What each round took, in rounds after the warm-up: the median of its phase over the median of that one.

    So a round in which the machine did something else counts as the others do, and runs made under different load can
    be compared. Not numbers if no round comes after the warm-up.
    """
    seconds = record.values("seconds")[0]
    warm = seconds.index.isin(warmup_rounds(record))
    return seconds.groupby(warm).transform("median") / seconds[~warm].median()


def warmup_rounds(record: Record) -> pd.Index:
    """The rounds, from 1, in which clients trained subnetworks."""
    return pd.Index(record.series.get("selected", ([], []))[0], dtype=int)


def warmup(record: Record) -> dict[str, float]:
    """The warm-up in a few numbers, if there was one.

    ``neurons``, h; ``selected``, the share of them in a mask; ``warmup_upload_fraction`` and ``warmup_upload_max``,
    what a client sends (h bits for the mask included) over the whole model, mean and largest; ``warmup_cost``, the
    ``round_time`` of a warm-up round; of learned masks ``diversity_max``, the largest ||p_k - p_others||^2.
    """
    warm = warmup_rounds(record)
    if not len(warm):
        return {}
    neurons = record.values("upload_bits").max(axis=None)
    sent = (record.values("upload").loc[warm] + neurons / (8 * VALUE_BYTES)).to_numpy() / record.num_params
    numbers = {
        "neurons": neurons,
        "selected": float(np.nanmean(record.values("selected"))),
        "warmup_upload_fraction": float(np.nanmean(sent)),
        "warmup_upload_max": float(np.nanmax(sent)),
        "warmup_cost": float(round_time(record).loc[warm[0]]),
    }
    if "diversity" in record.series:
        numbers["diversity_max"] = float(np.nanmax(record.values("diversity")))
    return numbers


def own_groups(record: Record) -> dict[str, float]:
    """Where activations were noted: how far each client's own group of neurons dominates a layer.

    ``own_group_warm`` and ``own_group_later``: the share of its own group in a client's summed activations of a layer,
    mean over the rounds of the warm-up and over those after it, in the client and layer where it is least.
    ``activation_rise``: a layer's activations in the first round without masks over those in the last with them, least.
    """
    if "activations" not in record.arrays:
        return {}
    sums, sizes = np.array(record.arrays["activations"]), [int(n) for n in record.arrays["layer_sizes"]]  # [T, N, h]
    shares = record.spec.build_method().shares or (1 / sums.shape[1],) * sums.shape[1]
    own, starts = split_neurons(tuple(sizes), shares).numpy(), np.cumsum([0, *sizes[:-1]])
    total = np.add.reduceat(sums, starts, axis=2)  # [T, N, layers]
    with np.errstate(divide="ignore", invalid="ignore"):  # a layer may be silent
        share = np.add.reduceat(sums * own, starts, axis=2) / total
        warm, numbers = len(warmup_rounds(record)), {}
        if warm:
            numbers["own_group_warm"] = float(share[:warm].mean(0).min())
        if warm < len(sums):
            numbers["own_group_later"] = float(share[warm:].mean(0).min())
        if 0 < warm < len(sums):
            numbers["activation_rise"] = float((total[warm] / total[warm - 1]).min())
    return numbers

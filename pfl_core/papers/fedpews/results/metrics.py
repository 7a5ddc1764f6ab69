"""FedPeWS-specific metrics of a run."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from pfl_core.algorithms.fedpews.fixed import FedPeWSFixed, split_neurons
from pfl_core.costs import VALUE_BYTES, rounds_to
from pfl_core.papers.fedpews.settings import TARGETS, method_title
from pfl_core.runs import Record, RunSpec
from pfl_core.study.names import plain

LATE = 10  # rounds; while clients disagree the accuracy changes by ten points and more between rounds


def run_label(record: Record) -> str:
    """Setting and method, as figures name them: "four clients, FedAvg + PeWS, λ = 0"."""
    fields = record.spec.method
    title = method_title(fields["name"], fields.get("base", "fedavg"))
    return f"{plain(record.spec.setting)}, {title}" + (f", λ = {fields['lam']:g}" if "lam" in fields else "")


def target_of(spec: RunSpec) -> float | None:
    """The target accuracy (percent) of this run's column in the paper's tables; None without a target."""
    return TARGETS.get(spec.setting) if spec.paper == "fedpews" else None


def to_target(record: Record) -> dict[str, float]:
    """The first round that reaches the target accuracy of the paper's table, and the time until then.

    ``rounds_to_target`` and ``time_to_target`` are NaN if no round reaches it. ``run_time`` is the time of all rounds.
    Times are those of ``round_time``. Empty without a target.
    """
    if (target := target_of(record.spec)) is None:
        return {}
    accuracy, times = record.curve()["acc_pooled"], round_time(record)
    reached = rounds_to(accuracy.tolist(), target)
    first = accuracy.index[reached - 1] if reached else math.nan
    elapsed = times.loc[:first].sum() if reached else math.nan
    return {"rounds_to_target": first, "time_to_target": elapsed, "run_time": times.sum()}


def round_time(record: Record) -> pd.Series:
    """The time of each round, with a round after the warm-up as the unit.

    Each round counts as the median of its phase (warm-up or later), divided by the median of the later phase. So rounds
    that other processes slowed down have no effect, and runs under different load can be compared. NaN if no round
    follows the warm-up.
    """
    # Median of each round's phase over the median of the rounds after the warm-up.
    seconds = record.values("seconds")[0]
    warm = seconds.index.isin(warmup_rounds(record))
    return seconds.groupby(warm).transform("median") / seconds[~warm].median()


def late_accuracy(record: Record) -> dict[str, float]:
    """``acc_late``: the mean of ``acc_pooled`` over the last ten rounds, if all of them were scored."""
    accuracy = record.curve()["acc_pooled"]
    late = accuracy[accuracy.index > record.rounds - LATE]
    return {"acc_late": late.mean()} if len(late) == LATE else {}


def warmup_rounds(record: Record) -> pd.Index:
    """The rounds, counted from 1, in which clients trained subnetworks."""
    return pd.Index(record.series.get("selected", ([], []))[0], dtype=int)


def warmup(record: Record) -> dict[str, float]:
    """Metrics of the warm-up; empty without one.

    ``neurons``: h. ``selected``: the share of neurons in a mask. ``warmup_upload_fraction``, ``warmup_upload_max``: a
    client's upload over the whole model, mean and maximum, with h bits for the mask. ``warmup_cost``: the
    ``round_time`` of a warm-up round. ``diversity_max`` (learned masks only): the largest ||p_k - p_others||^2.
    """
    warm = warmup_rounds(record)
    if not len(warm):
        return {}
    neurons = record.values("upload_bits").max(axis=None)
    # Share of the model that each client sends in each warm-up round; the mask adds one bit per neuron.
    sent = (record.values("upload").loc[warm] + neurons / (8 * VALUE_BYTES)).to_numpy() / record.num_params
    metrics = {
        "neurons": neurons,
        "selected": float(np.nanmean(record.values("selected"))),
        "warmup_upload_fraction": float(np.nanmean(sent)),
        "warmup_upload_max": float(np.nanmax(sent)),
        "warmup_cost": float(round_time(record).loc[warm[0]]),
    }
    if "diversity" in record.series:
        metrics["diversity_max"] = float(np.nanmax(record.values("diversity")))
    return metrics


def own_groups(record: Record) -> dict[str, float]:
    """How far each client's group of neurons dominates a layer; empty without recorded activations.

    ``own_group_warm``, ``own_group_later``: the share of a client's group in its summed activations of a layer, as the
    mean over the rounds of the warm-up and over those after it, for the client and layer with the lowest share.
    ``activation_rise``: a layer's activations in the first round without masks over those in the last round with masks,
    for the client and layer with the lowest ratio.
    """
    if "activations" not in record.arrays:
        return {}
    sums = np.array(record.arrays["activations"])  # [T, N, h]
    sizes = [int(n) for n in record.arrays["layer_sizes"]]
    num_clients = sums.shape[1]
    method = record.spec.build_method()
    assert isinstance(method, FedPeWSFixed)  # the only method that records activations
    shares = method.shares or (1 / num_clients,) * num_clients
    groups = split_neurons(tuple(sizes), shares).numpy()  # [N, h] bool
    # Sums per layer: reduceat adds up the neurons from each layer's start to the next one's.
    starts = np.cumsum([0, *sizes[:-1]])
    total = np.add.reduceat(sums, starts, axis=2)  # [T, N, layers]
    warm, metrics = len(warmup_rounds(record)), {}
    with np.errstate(divide="ignore", invalid="ignore"):  # all activations of a layer may be 0
        share = np.add.reduceat(sums * groups, starts, axis=2) / total
        if warm:
            metrics["own_group_warm"] = float(share[:warm].mean(0).min())
        if warm < len(sums):
            metrics["own_group_later"] = float(share[warm:].mean(0).min())
        if 0 < warm < len(sums):
            metrics["activation_rise"] = float((total[warm] / total[warm - 1]).min())
    return metrics

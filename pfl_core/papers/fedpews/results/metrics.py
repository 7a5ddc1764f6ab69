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
    rounds, times = _round_times(record)
    reached = rounds_to(record.curve()["acc_pooled"].tolist(), target)
    first = record.series["correct"][0][reached - 1] if reached else math.nan
    elapsed = times[rounds <= first].sum() if reached else math.nan
    return {"rounds_to_target": first, "time_to_target": elapsed, "run_time": times.sum()}


def round_time(record: Record) -> pd.Series:
    """The time of each round, with a round after the warm-up as the unit.

    Each round counts as the median of its phase (warm-up or later), divided by the median of the later phase. So rounds
    that other processes slowed down have no effect, and runs under different load can be compared. NaN if no round
    follows the warm-up.
    """
    rounds, times = _round_times(record)
    return pd.Series(times, index=pd.Index(rounds, name="round"))


def _round_times(record: Record) -> tuple[np.ndarray, np.ndarray]:
    """The rounds, counted from 1, and the time of each."""
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
    ``round_time`` of a warm-up round. ``diversity_max`` (learned masks only): the largest ||p_k - p_others||^2.
    """
    warm = warmup_rounds(record)
    if not len(warm):
        return {}
    rounds, times = _round_times(record)
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

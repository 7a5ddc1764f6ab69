"""FedPeWS-specific metrics of a run, and the cells of its heat maps."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd

from pfl_core.algorithms.fedpews.fixed import split_neurons
from pfl_core.costs import VALUE_BYTES, rounds_to
from pfl_core.papers.fedpews.settings import SETTINGS, TARGETS, data_title
from pfl_core.runs import Record, RunSpec
from pfl_core.study import published
from pfl_core.study.frames import method_fields

LATE = 10  # rounds: while clients disagree the accuracy of a single round swings by ten points and more
CELL = ["method", "lam", "tau"]


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


def late_accuracy(record: Record) -> dict[str, float]:
    """``acc_late``: ``acc_pooled`` as a mean over the last ten rounds, where all of them were scored."""
    accuracy = record.curve()["acc_pooled"]
    late = accuracy[accuracy.index > record.rounds - LATE]
    return {"acc_late": late.mean()} if len(late) == LATE else {}


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


def made_on(spec: RunSpec) -> str:
    """Data and clients of a run for a figure's title, and whether they stand in for the paper's."""
    name, source = spec.data["name"], " of one source each" if spec.partition["name"] == "by_source" else ""
    known = SETTINGS.settings["paper"].get(spec.setting)
    stand_in = " (stand-in)" if known is not None and known.data["name"] != name else ""
    return f"{data_title(name)}, {spec.clients} clients{source}{stand_in}"


def printed_cells(number: int) -> pd.DataFrame:
    """Table 7 or 8, a row per cell: method, lam, tau, mean, std, seeds, difference (to FedAvg), difference_std.

    The paper prints no seeds one by one, so the deviation of a difference is that of independent runs: the root of the
    sum of both squares.
    """
    table = published.table("fedpews", number)
    fields = pd.DataFrame([published.parse_variant(variant) for variant in table["variant"]])
    cells = pd.DataFrame(
        {"method": table["key"], "lam": fields["lambda"], "tau": fields["tau"], "mean": table["value"]}
    )
    cells = cells.assign(std=table["std"], seeds=3)
    plain, warm = cells[cells["method"] == "fedavg"].iloc[0], cells["method"] != "fedavg"
    spread = np.hypot(cells["std"], plain["std"]).where(warm)
    return cells.assign(difference=cells["mean"] - plain["mean"], difference_std=spread)


def grid_cells(records: Iterable[Record]) -> pd.DataFrame:
    """Ours as ``printed_cells``: means and sample deviations over seeds, differences paired by seed.

    The number of a run is the last round's accuracy on all test data, as in the paper's tables.
    """
    rows = []
    for record in records:
        options = method_fields(record.spec)
        cell = (record.spec.method["name"], options.get("lam", math.nan), options.get("tau", 0.0))
        rows.append((*cell, record.spec.seed, record.curve()["acc_pooled"].iloc[-1]))
    runs = pd.DataFrame(rows, columns=[*CELL, "seed", "final"])
    plain = runs[runs["method"] == "fedavg"].set_index("seed")["final"]
    runs["lead"] = (runs["final"] - runs["seed"].map(plain)).astype(float)
    cells = runs.groupby(CELL, dropna=False).agg(
        mean=("final", "mean"), std=("final", "std"), seeds=("final", "size"),
        difference=("lead", "mean"), difference_std=("lead", "std"),
    ).reset_index()  # fmt: skip
    cells.loc[cells["method"] == "fedavg", "difference_std"] = math.nan  # 0 by definition
    return cells

"""Metrics of Star-PFL's comparison beyond accuracy: the columns of Table 3, complete costs, and rounds to convergence.

Validation data decide when a run has converged and which round is reported. The engine scores them with the models
after aggregation, so the scoring point is the same for all methods.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from pfl_core.algorithms.star_pfl.costs import (
    Traffic,
    as_paper_comm,
    paper_values,
    round_flops,
    rounds_to_convergence,
    rounds_to_plateau,
    traffic,
)
from pfl_core.costs import VALUE_BYTES, rounds_to
from pfl_core.layout import Layout
from pfl_core.papers.star_pfl.results.freezing import by_chance, freezing, local_gain
from pfl_core.runs import Record
from pfl_core.study.methods import NAMES
from pfl_core.study.names import in_words
from pfl_core.study.network import network

METHODS = ("star_pfl", "local", "fedavg", "fedbn", "fedap", "lotteryfl")  # Tables 2 and 3
POINTS = {"acc_mean_picked_merged": "after aggregation", "acc_mean_picked_trained": "after local training"}
# Task -> target of ``rounds_to_accuracy`` in percent (not in the paper; also used for stand-ins). Just below what the
# weakest of the six methods reaches in Table 2 at α = 0.1 (88.3 and 71.4), so every method can be expected to reach it.
REACHED = {"axial": 85.0, "sagital": 70.0}

SPELLED = {"Sagital": "Sagittal"}  # the paper's spelling, which settings and stored runs keep -> the usual one
COLUMNS = {  # metric of Table 3 -> its name in tables
    "comm_mb_per_client_per_round": "MiB up in a round, 20 clients together",
    "flops_1e10_per_round": "10¹⁰ operations of a client in a round",
}


def task(record: Record) -> str:
    """The paper's task, for titles; for runs on other data these and the task: "MNIST (for axial)"."""
    data, setting = record.spec.data["name"], record.spec.setting
    return in_words(setting if data in ("organamnist", "organsmnist") else f"{data} (for {setting})")


def of_task(name: str) -> str:
    """The paper's task alone: "axial" for "MNIST (for axial)"."""
    return name.partition("(for ")[2].partition(")")[0] or name


def run_label(record: Record) -> str:
    """A run's name where tasks, α and seeds differ: "MNIST (for axial), α = 0.1, seed 0"."""
    return f"{task(record)}, α = {record.spec.partition['alpha']:g}, seed {record.spec.seed}"


# ---- Table 2 --------------------------------------------------------------------------------------------------------


def accuracies(records: Sequence[Record]) -> pd.DataFrame:
    """A row per run. Columns: method, label, seed, task, alpha, and the metrics of ``picked``."""
    table = _tagged(records).assign(alpha=[record.spec.partition["alpha"] for record in records])
    return table.join(pd.DataFrame([picked(record) for record in records]))


def _tagged(records: Sequence[Record]) -> pd.DataFrame:
    """A row per run, with its method, seed, setting and task."""
    tags = [(r.spec.method["name"], r.spec.seed, r.spec.setting, task(r)) for r in records]
    table = pd.DataFrame(tags, columns=["method", "seed", "setting", "task"])
    return table.assign(label=table["method"].map(NAMES))


def by_point(table: pd.DataFrame) -> pd.DataFrame:
    """``accuracies`` with a row per scoring point. Columns: method, label, seed, task, alpha, point, value."""
    tags = ["method", "label", "seed", "task", "alpha"]
    long = table.melt(tags, list(POINTS), var_name="point")
    return long.assign(point=long["point"].map(POINTS))


def accuracy_curves(records: Sequence[Record]) -> pd.DataFrame:
    """Mean client accuracy by round. Columns: task (with scoring point), alpha, label, seed, round, value."""
    parts = []
    for (_, run), record in zip(_tagged(records).iterrows(), records, strict=True):
        for trained, point in enumerate(POINTS.values()):
            curve = record.curve(trained=bool(trained))["acc_mean"].rename("value").reset_index()
            tags = {"task": f"{run['task']}, {point}", "alpha": record.spec.partition["alpha"]}
            parts.append(curve.assign(**tags, label=run["label"], seed=run["seed"]))
    curves = pd.concat(parts).sort_values(["task", "alpha"], kind="stable")
    return curves[["task", "alpha", "label", "seed", "round", "value"]]


def held_classes(records: Sequence[Record]) -> pd.DataFrame:
    """The clients' classes by α: fewest, most, and the mean share of a client's largest class."""
    rows: dict[float, tuple] = {}
    for record in records:
        held = pd.DataFrame(record.clients["train"])
        share, classes = held.div(held.sum(axis=1), axis=0), (held > 0).sum(axis=1)
        rows.setdefault(record.spec.partition["alpha"], (classes.min(), classes.max(), share.max(axis=1).mean()))
    columns = ["classes of a client, from", "to", "share of its largest class"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("alpha")


def with_published(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The paper's Table 2 and ``by_point``, for ``figures.tables.by_method``. ``table``: as printed."""
    scored = runs.rename(columns={"point": "panel"})[["task", "alpha", "label", "seed", "panel", "value"]]
    return pd.concat([published_accuracy(table, scored), scored])


def published_accuracy(table: pd.DataFrame, scored: pd.DataFrame) -> pd.DataFrame:
    """The paper's Table 2 for ``figures.tables.by_method``, in percent; for the tasks, methods and α of ``scored``.

    Columns of ``scored``: task (see ``task``), label, alpha.
    """
    printed = table.assign(
        alpha=table["variant"].str.removeprefix("alpha=").astype(float),
        set=table["dataset"].replace(SPELLED).str.lower(),
        label=table["key"].map(NAMES),
        value=100 * table["value"],
    )[["set", "alpha", "label", "value"]]
    cells = scored[["task", "alpha", "label"]].drop_duplicates()
    cells = cells.assign(set=cells["task"].map(of_task), panel="the paper")
    return cells.merge(printed, on=["set", "alpha", "label"]).drop(columns="set")


def printed(cells: pd.DataFrame, by: str) -> pd.DataFrame:
    """The paper's table: a row for each task and method, a column for each value of ``by`` ("variant" or "metric").

    With runs on the paper's own data also their numbers, under "here". ``cells``: one table of ``Paper.compare``.
    """
    values = ["paper", "here"] if cells["here"].notna().any() else ["paper"]
    named = cells.assign(dataset=cells["dataset"].replace(SPELLED)).astype(dict.fromkeys(values, float))
    rows, columns = (named[name].drop_duplicates() for name in ("method", by))
    wide = named.set_index(["dataset", "method", by])[values].unstack(by)
    order = [(task, method) for task in dict.fromkeys(named["dataset"]) for method in rows]
    wide = wide.reindex(order)[[(value, column) for value in values for column in columns]]
    return wide if len(values) > 1 else wide["paper"]


def extra_metrics(record: Record) -> dict[str, float]:
    """``costs``, ``picked``, ``freezing`` and ``local_gain`` of the compared methods; empty for others."""
    if record.spec.method["name"] not in METHODS:
        return {}
    return costs(record) | picked(record) | freezing(record) | local_gain(record)


# ---- Table 3 --------------------------------------------------------------------------------------------------------


def costs(record: Record) -> dict[str, float]:
    """Costs of a round (means over clients and rounds) and until convergence, by the paper's count and in full.

    By the paper's count (Table 3): ``comm_mb_per_client_per_round``, ``flops_1e10_per_round``,
    ``rounds_to_convergence``, and the products ``comm_total``, ``flops_total``, which the abstract compares.
    In full: a client's ``upload_bytes``, ``mask_bytes``, ``download_bytes``, their sum times rounds ``bytes_total``,
    and ``dense_1e10_per_round``, the operations that dense kernels execute.
    Also ``sent_share``, the uploaded share of the parameters in percent, ``rounds_to_plateau`` and
    ``rounds_to_accuracy``.
    """
    method = record.spec.method["name"]
    layout, uses = network(record)
    macs = int(uses.sum())
    upload, bits = _mean(record, "upload"), _mean(record, "upload_bits")
    masked = method in ("star_pfl", "lotteryfl")
    comm = as_paper_comm(VALUE_BYTES * paper_values(method, layout, upload if masked else None))
    bytes_ = round_traffic(method, layout, upload, bits, float(mask_size_before(record).mean()))
    # FLOPs of each client: a mask saves multiply-adds of the weight gradients only; the rule is linear in these
    sizes, epochs = np.sum(record.clients["train"], axis=1), record.spec.train.epochs
    gradients = weight_macs(record, macs).mean(axis=0)
    flops = float(np.mean([round_flops(macs, m, n, epochs) for m, n in zip(gradients, sizes, strict=True)]))
    rounds = convergence(record)
    return {
        "comm_mb_per_client_per_round": comm,
        "sent_share": 100 * upload / record.num_params,
        "flops_1e10_per_round": flops / 1e10,
        **rounds,
        "comm_total": comm * rounds["rounds_to_convergence"],
        "flops_total": flops / 1e10 * rounds["rounds_to_convergence"],
        "upload_bytes": bytes_.upload_payload,
        "mask_bytes": bytes_.upload_mask,
        "download_bytes": bytes_.download,
        "bytes_total": bytes_.total * rounds["rounds_to_convergence"],
        "dense_1e10_per_round": epochs * float(sizes.mean()) * record.flops / 1e10,
    }


def cost_table(records: Sequence[Record]) -> pd.DataFrame:
    """A row per run. Columns: method, label, seed, setting, task, rounds (made), and those of ``costs``."""
    tags = _tagged(records)
    table = tags[["method", "seed", "setting"]].join(pd.DataFrame([costs(record) for record in records]))
    return table.assign(**tags[["label", "task"]], rounds=[record.rounds for record in records])


def below_baselines(totals: pd.DataFrame) -> pd.Series:
    """How far Star-PFL lies below the mean of the stored baselines, in percent, for each column of ``totals``.

    ``totals``: a row per method.
    """
    return 100 * (1 - totals.loc["star_pfl"] / totals.drop("star_pfl").mean())


def sent_on_noise(records: Sequence[Record]) -> dict[str, float]:
    """Percent of the parameters that Star-PFL would send on noise, by task; without runs that have no null model."""
    chances = {task(record): by_chance(record) for record in records if record.spec.method["name"] == "star_pfl"}
    return {name: 100 * float(chance.upload.mean()) for name, chance in chances.items() if chance is not None}


def published_costs(table: pd.DataFrame) -> pd.DataFrame:
    """The paper's Table 3: a row per task and method (its key), a column per metric."""
    return table.pivot_table(index=["dataset", "key"], columns="metric", values="value", sort=False)


def published_totals(costs: pd.DataFrame) -> pd.DataFrame:
    """Communication and computation until convergence: cost of a round times rounds. ``costs``: ``published_costs``."""
    per_round = costs.fillna(0)  # Local sends nothing
    metrics = {"communication": "comm_mb_per_client_per_round", "computation": "flops_1e10_per_round"}
    return pd.DataFrame({what: per_round[name] * costs["rounds_to_convergence"] for what, name in metrics.items()})


def published_savings(totals: pd.DataFrame) -> pd.DataFrame:
    """``below_baselines`` of the paper's totals, a row per task. ``totals``: see ``published_totals``."""
    return pd.DataFrame({name: below_baselines(rows.droplevel(0)) for name, rows in totals.groupby(level=0)}).T


def weight_macs(record: Record, macs: int) -> np.ndarray:
    """[T, N] multiply-adds of the weight gradients of one image, on each client: all, or those of its mask.

    LotteryFL prunes every tensor by the same share, so they are ``macs`` times its density.
    """
    if "weight_macs" in record.series:
        return record.array("weight_macs")
    if "density" in record.series:
        return macs * record.array("density")
    return np.full(record.array("correct").shape, float(macs))


def round_traffic(method: str, layout: Layout, upload: float, upload_bits: float, before: float) -> Traffic:
    """``traffic`` of a round with mask size ``before`` for the download.

    LotteryFL's server sends the parameters that the client kept before the round. They are more than the uploaded ones
    if the client prunes in this round.
    """
    return replace(traffic(method, layout, upload, upload_bits), download=traffic(method, layout, before).download)


def mask_size_before(record: Record) -> np.ndarray:
    """[T, N] parameters in a client's mask before each round: those of its last upload, at first all.

    Assumes full participation. Used for LotteryFL, whose server sends only these.
    """
    upload = record.array("upload")
    return np.vstack([np.full_like(upload[:1], record.num_params), upload[:-1]])


def _mean(record: Record, metric: str) -> float:
    return float(np.nanmean(record.array(metric))) if metric in record.series else 0.0


def progress(record: Record) -> pd.DataFrame:
    """By scored round: validation accuracy (``value``, percent) and a client's cumulative traffic in ``megabytes``."""
    curve, layout = validation(record), network(record)[0]
    upload, before = record.values("upload").mean(axis=1), mask_size_before(record).mean(axis=1)
    bits = record.values("upload_bits").mean(axis=1) if "upload_bits" in record.series else 0 * upload
    method = record.spec.method["name"]
    total = [round_traffic(method, layout, *counts).total for counts in zip(upload, bits, before, strict=True)]
    so_far = pd.Series(np.cumsum(total) / 1e6, index=upload.index)
    return pd.DataFrame({"round": curve.index, "value": curve.to_numpy(), "megabytes": so_far[curve.index].to_numpy()})


# ---- rounds ---------------------------------------------------------------------------------------------------------


def validation(record: Record) -> pd.Series:
    """Validation accuracy (percent) after aggregation, mean over clients, by scored round."""
    if "correct_val" not in record.series:
        return pd.Series(dtype=float)
    correct, count = record.array("correct_val"), record.array("count_val")
    accuracy = 100 * correct / np.where(count > 0, count, np.nan)
    return pd.DataFrame(accuracy, index=pd.Index(record.series["correct_val"][0], name="round")).mean(axis=1)


def convergence(record: Record) -> dict[str, float]:
    """Rounds until the validation accuracy is best, has 95 % of its last value, stays near its best, and reaches the
    task's target of ``REACHED``. All after aggregation, whatever a method reports.

    NaN if it never does, or if the task has no target.
    """
    curve = validation(record)
    positions = {
        "rounds_to_convergence": None if curve.empty else rounds_to_convergence(curve.tolist()),
        "rounds_to_95_val": None if curve.empty else rounds_to(curve.tolist(), 0.95 * curve.iloc[-1]),
        "rounds_to_plateau": rounds_to_plateau((curve / 100).tolist()),
        "rounds_to_accuracy": rounds_to(curve.tolist(), REACHED.get(record.spec.setting, math.inf)),
    }
    # positions count scored rounds from 1; the index holds the round numbers
    return {name: float(curve.index[t - 1]) if t else math.nan for name, t in positions.items()}


def picked(record: Record) -> dict[str, float]:
    """Test accuracy (percent) in the round that is best on validation data.

    ``acc_mean_picked`` at the point that the method reports, ``_picked_merged`` after aggregation, ``_picked_trained``
    after local training. The latter is NaN with partial participation, where only a round's participants have trained.
    """
    curve = validation(record)
    if curve.empty:
        return {}
    best = curve.index[rounds_to_convergence(curve.tolist()) - 1]
    merged, trained = (record.curve(trained=after).loc[best, "acc_mean"] for after in (False, True))
    if record.spec.participation < 1:
        trained = math.nan
    after_training = record.spec.build_method().reported == "after_local_update"
    return {
        "acc_mean_picked": float(trained if after_training else merged),
        "acc_mean_picked_merged": float(merged),
        "acc_mean_picked_trained": float(trained),
    }

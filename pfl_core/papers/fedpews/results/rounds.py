"""Runs over the rounds: curves, rounds to the target, final accuracies, and what a warm-up round costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from pfl_core.papers.fedpews.results.masks import MASKS
from pfl_core.papers.fedpews.results.metrics import LATE, round_time, warmup_rounds
from pfl_core.papers.fedpews.settings import COLUMNS, TARGETS
from pfl_core.runs import Record
from pfl_core.study.frames import method_fields
from pfl_core.study.methods import NAMES

RUN = ["setting", "label", "seed"]


def curves(records: Iterable[Record]) -> pd.DataFrame:
    """A row per run, round and metric: accuracies, test loss, time (``round_time``, summed up), mask statistics.

    Columns: round, metric, value, base, lam, tau (None without the field), setting, method, seed, switch (the last
    round of the warm-up, 0 without one).
    """
    return pd.concat(map(_by_round, records), ignore_index=True)


def _by_round(record: Record) -> pd.DataFrame:
    """``curves`` of one run."""
    noted = {m: record.values(m).mean(axis=1) for m in ("loss", *MASKS) if m in record.series}
    noted["time"] = round_time(record).cumsum()
    frame = record.curve().join(pd.DataFrame(noted), how="outer").rename_axis("round").reset_index()
    options, spec = method_fields(record.spec), record.spec
    tags = {name: options.get(name) for name in ("base", "lam", "tau")}
    tags |= {"setting": spec.setting, "method": spec.method["name"], "seed": spec.seed}
    tags |= {"switch": len(warmup_rounds(record))}
    return frame.melt("round", var_name="metric").dropna(subset="value").assign(**tags)


def of_table(curves: pd.DataFrame, base: str, made_on: Mapping[str, str]) -> pd.DataFrame:
    """The runs of Table 2 (base fedavg) or 6 (fedprox), with a panel for each setting; empty where none is stored.

    ``made_on``: setting -> data and rounds, for the panel's title.
    """
    learned = (curves["method"] == "fedpews") & (curves["base"] == base)
    here = curves[((curves["method"] == base) | learned) & curves["setting"].isin(COLUMNS)]
    warm = here[here["method"] == "fedpews"].drop_duplicates("setting").set_index("setting")
    panels = {name: f"{name} ({made_on[name]})\nλ = {row.lam:g}, τ = {row.tau:g}" for name, row in warm.iterrows()}
    return here.assign(panel=here["setting"].map(panels))


def outcomes(curves: pd.DataFrame) -> pd.DataFrame:
    """For each setting, label and seed: ``final`` accuracy, ``rounds`` (the first at the target; NaN if none is), and
    ``to_the_end``, the first round at the final accuracy of FedAvg with the same seed.
    """
    scores = curves[curves["metric"] == "acc_pooled"]
    ends = scores.groupby(RUN, sort=False)["value"].last().rename("final")
    aim = scores["setting"].map(TARGETS).astype(float)
    hits = scores[scores["value"] >= aim].groupby(RUN)["round"].min().rename("rounds")
    plain_ends = ends[ends.index.get_level_values("label") == NAMES["fedavg"]].droplevel("label").rename("level")
    scores = scores.join(plain_ends, on=["setting", "seed"])
    level_hits = scores[scores["value"] >= scores["level"]].groupby(RUN)["round"].min().rename("to_the_end")
    return ends.to_frame().join(hits).join(level_hits)


def outcome_table(outcomes: pd.DataFrame) -> pd.DataFrame:
    """The layout of Table 2: target, how many seeds reach it, and means and deviations of rounds and final accuracy."""
    groups = outcomes.groupby(["setting", "label"], sort=False)
    reached = groups["rounds"].count().astype(str) + " of " + groups["final"].size().astype(str)
    numbers = {f"{n}{s}": groups[n].agg(f) for n in ("rounds", "final") for s, f in (("", "mean"), (" std", "std"))}
    aim = reached.index.get_level_values("setting").map(TARGETS).astype(float)
    return pd.DataFrame({"target": aim, "reached": reached.where(aim.notna(), "no target"), **numbers})


def ends(curves: pd.DataFrame) -> pd.DataFrame:
    """For each label, mean and deviation over the seeds of the last round's accuracy and of the last ten rounds' mean.

    curves: the runs of one setting, with a label.
    """
    accuracy = curves[curves["metric"] == "acc_pooled"]
    last = accuracy["round"].max()
    late = accuracy[accuracy["round"] > last - LATE].groupby(["label", "seed"], sort=False)["value"].mean()
    rows = {"last round": accuracy[accuracy["round"] == last], "mean of the last ten": late.reset_index()}
    return pd.concat(
        {name: scores.groupby("label", sort=False)["value"].agg(["mean", "std"]) for name, scores in rows.items()},
        axis=1,
    )


def uploads(records: Iterable[Record]) -> pd.DataFrame:
    """What a client sends in the first round of the warm-up, for each setting, method and λ; empty without one."""
    rows = []
    for record in records:
        if not len(warmup_rounds(record)):
            continue
        sent = record.values("upload").iloc[0].mean()
        tags = (record.spec.setting, NAMES[record.spec.method["name"]], record.spec.method.get("lam"))
        rows.append((*tags, sent, sent / record.num_params, record.values("upload_bits").iloc[0].max()))
    columns = ["setting", "method", "λ", "values sent in round 1", "share of d", "mask bits"]
    return pd.DataFrame(rows, columns=columns).groupby(columns[:3], sort=False, dropna=False).mean()


def costs(records: Iterable[Record]) -> pd.DataFrame:
    """The time of a warm-up round and of the whole run, in later rounds, for each setting, method, base and λ."""
    rows = []
    for record in records:
        took, options = round_time(record), method_fields(record.spec)
        if options.get("base") is not None:
            tags = (record.spec.setting, NAMES[record.spec.method["name"]], options["base"], options.get("lam"))
            rows.append((*tags, took.iloc[0], 1 + getattr(record.spec.build_method(), "tau", 0.0), took.mean()))
    columns = ["setting", "method", "base", "λ", "warm-up / later round", "1 + τ", "run / as many later"]
    return pd.DataFrame(rows, columns=columns).groupby(columns[:4], sort=False, dropna=False).mean()

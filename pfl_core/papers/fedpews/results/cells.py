"""The cells of FedPeWS's heat maps over λ and τ, the paper's and the reproduced ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from pfl_core.papers.fedpews.results.metrics import to_target
from pfl_core.papers.fedpews.settings import SETTINGS, data_title
from pfl_core.runs import Record, RunSpec
from pfl_core.study import published
from pfl_core.study.frames import method_fields

CELL = ["method", "lam", "tau"]


def made_on(spec: RunSpec) -> str:
    """Data and clients of a run for a figure's title, marked if they are a stand-in for the paper's."""
    name, source = spec.data["name"], " of one source each" if spec.partition["name"] == "by_source" else ""
    known = SETTINGS.settings["paper"].get(spec.setting)
    stand_in = " (stand-in)" if known is not None and known.data["name"] != name else ""
    return f"{data_title(name)}, {spec.clients} clients{source}{stand_in}"


def printed_cells(number: int) -> pd.DataFrame:
    """Table 7 or 8, a row per cell: method, lam, tau, mean, std, seeds, difference (to FedAvg), difference_std.

    The paper does not print single seeds, so the deviation of a difference is that of independent runs: the root of the
    sum of the squared deviations.
    """
    table = published.table("fedpews", number)
    fields = pd.DataFrame([published.parse_variant(variant) for variant in table["variant"]])
    cells = pd.DataFrame(
        {"method": table["key"], "lam": fields["lambda"], "tau": fields["tau"], "mean": table["value"]}
    )
    cells = cells.assign(std=table["std"], seeds=3)
    plain, warm = cells[cells["method"] == "fedavg"].iloc[0], cells["method"] != "fedavg"
    # Deviation of a difference of independent runs; none for FedAvg itself.
    spread = np.hypot(cells["std"], plain["std"]).where(warm)
    return cells.assign(difference=cells["mean"] - plain["mean"], difference_std=spread)


def final_accuracy(record: Record) -> float:
    """The last round's accuracy on all test data (percent), as in the paper's heat maps."""
    return float(record.curve()["acc_pooled"].iloc[-1])


def rounds_to_target(record: Record) -> float:
    """The first round that reaches the target accuracy, as in the paper's tables of the synthetic sets; else NaN."""
    return to_target(record)["rounds_to_target"]


def grid_cells(
    records: Iterable[Record], value: Callable[[Record], float] = final_accuracy, same_rate: bool = False
) -> pd.DataFrame:
    """The cells of stored runs, with the columns of ``printed_cells``.

    ``value`` of a run: means and sample deviations over seeds, differences paired by seed. NaN if it is NaN for a seed.
    ``same_rate``: a difference is to FedAvg at the same learning rate, and FedAvg's cell is at the rate of FedPeWS.
    Otherwise ``records`` has FedAvg at one rate.
    """
    rows = []
    for record in records:
        options = method_fields(record.spec)
        cell = (record.spec.method["name"], options.get("lam", math.nan), options.get("tau", 0.0))
        rows.append((*cell, record.spec.seed, record.spec.train.lr if same_rate else 0.0, value(record)))
    runs = pd.DataFrame(rows, columns=[*CELL, "seed", "lr", "final"])
    # Lead over FedAvg with the same seed.
    plain = runs[runs["method"] == "fedavg"].set_index(["seed", "lr"])["final"].rename("plain")
    runs = runs.join(plain, on=["seed", "lr"])
    runs["lead"] = runs["final"] - runs["plain"]
    if same_rate:
        learned = runs.loc[runs["method"] == "fedpews", "lr"]
        runs = runs[(runs["method"] != "fedavg") | runs["lr"].isin(learned)]
    cells = runs.groupby(CELL, dropna=False).agg(
        mean=("final", _mean), std=("final", "std"), seeds=("final", "size"),
        difference=("lead", _mean), difference_std=("lead", "std"),
    ).reset_index()  # fmt: skip
    cells.loc[cells["method"] == "fedavg", "difference_std"] = math.nan  # 0 by definition
    return cells


def _mean(values: pd.Series) -> float:
    return float(values.mean(skipna=False))


def rates(records: Iterable[Record]) -> str:
    """A line for a caption: the learning rate of each method, and what follows if they differ."""
    names = {"fedavg": "FedAvg", "fedpews": "learned masks", "fedpews_fixed": "fixed masks"}
    found = dict.fromkeys((record.spec.method["name"], record.spec.train.lr) for record in records)
    several = len({lr for _, lr in found}) > 1
    return (
        f"learning rates: {', '.join(f'{names[name]} {lr:g}' for name, lr in sorted(found))}"
        f"{', which differences between them include' * several}"
    )

"""Counts over the grids of λ and τ (Tables 7 and 8), and the runs behind them.

``cells``: of ``cells.printed_cells`` or ``cells.grid_cells``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import pandas as pd

from pfl_core.algorithms.fedpews.method import Warmup
from pfl_core.papers.fedpews.results.cells import final_accuracy, grid_cells, made_on, rounds_to_target
from pfl_core.papers.fedpews.results.rounds import curves
from pfl_core.papers.fedpews.settings import BEST
from pfl_core.runs import Record, RunSpec
from pfl_core.study import checks

TITLES = {7: "Table 7, CIFAR-MNIST", 8: "Table 8, {Path-OCT-Tissue}MNIST"}
# The setting whose grid a setting has: Synthetic-32K has that of Table 7.
GRID_OF = {"cifar_mnist": "cifar_mnist", "path_oct_tissue": "path_oct_tissue", "sensitivity": "cifar_mnist"}
TITLE_OF = {setting: TITLES[7 if grid == "cifar_mnist" else 8] for setting, grid in GRID_OF.items()}
BEST_LAMBDAS = (2.0, 5.0, 10.0)  # the region that the paper recommends; its τ differ between the tables
SHORT = 0.4  # the longest τ of the left half of Tables 7 and 8


def learned(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells with learned masks."""
    return cells[cells["method"] == "fedpews"]


def above(cells_of: Mapping[str, pd.DataFrame], by: str) -> pd.DataFrame:
    """How many learned cells are above FedAvg for each λ (``by`` "lam") or τ ("tau"): "4 of 5". A column per name."""
    columns = {}
    for name, cells in cells_of.items():
        groups = (learned(cells)["difference"] > 0).groupby(learned(cells)[by])
        columns[name] = groups.sum().astype(str) + " of " + groups.size().astype(str)
    return pd.DataFrame(columns).rename(index="{:g}".format).rename_axis({"lam": "λ", "tau": "τ"}[by])


def crossed(cells: pd.DataFrame) -> pd.Series | pd.DataFrame:
    """``above`` in four groups of λ (rows) and two of τ (columns)."""
    rows = learned(cells)
    lams = pd.cut(rows["lam"], [-1, 0.2, 1, 10, math.inf], labels=["0, 0.1", "0.3 to 1", "2 to 10", "100, 1000"])
    taus = rows["tau"].le(SHORT).map({True: "τ ≤ 0.4", False: "τ ≥ 0.5"}).rename("τ")
    groups = (rows["difference"] > 0).groupby([lams.rename("λ"), taus], observed=True)
    return (groups.sum().astype(str) + " of " + groups.size().astype(str)).unstack()


def first_rounds(records: Sequence[Record]) -> pd.DataFrame:
    """``grid_cells`` of the first round at the target, against FedAvg at the same learning rate.

    Empty unless runs with learned masks and with FedAvg are stored.
    """
    methods = {record.spec.method["name"] for record in records}
    return grid_cells(records, rounds_to_target, same_rate=True) if {"fedavg", "fedpews"} <= methods else pd.DataFrame()


def regions(taus: Collection[float], cells: pd.DataFrame) -> dict[str, float]:
    """Differences to FedAvg in the recommended region (BEST_LAMBDAS and ``taus``), outside, and of the best cells."""
    rows = learned(cells)
    inside = rows["lam"].isin(BEST_LAMBDAS) & rows["tau"].isin(taus)
    gain = rows["difference"]
    return {
        "inside": gain[inside].mean(),
        "outside": gain[~inside].mean(),
        "best learned": gain.max(),
        "λ = 0": gain[rows["lam"] == 0].max(),
        "fixed": cells.loc[cells["method"] == "fedpews_fixed", "difference"].max(),
    }


def rounds_needed(specs: Iterable[RunSpec]) -> tuple[int, int]:
    """Total rounds of the runs with a warm-up: each run separately, and with shared warm-ups computed once."""
    switches: dict[tuple[str, str, int, int], list[int]] = defaultdict(list)  # of one warm-up: lengths
    for spec in specs:
        method = spec.build_method()
        if isinstance(method, Warmup):
            rest = [(k, v) for k, v in spec.method.items() if k != "tau"]
            switches[spec.setting, str(rest), spec.seed, spec.rounds].append(method.num_warmup(spec.rounds))
    alone = sum(rounds * len(warm) for (*_, rounds), warm in switches.items())
    return alone, sum(max(warm) + sum(rounds - w for w in warm) for (*_, rounds), warm in switches.items())


def row_label(record: Record) -> str:
    """The data and the row of the grid: "Synthetic-32K, 2 clients: λ = 5"."""
    fields = record.spec.method
    row = f"λ = {fields['lam']:g}" if "lam" in fields else "fixed masks"
    return f"{made_on(record.spec)}: {row}"


def convergence(records: Iterable[Record]) -> pd.DataFrame:
    """For each data set: runs, those with validation images, the converged ones, and the largest late change."""
    change = [(made_on(record.spec), abs(checks.validation_change(record))) for record in records]
    groups = pd.DataFrame(change, columns=["data", "change"]).groupby("data", sort=False)["change"]
    return groups.agg(runs="size", judged="count", converged=lambda moved: (moved < checks.FLAT).sum(), largest="max")


def main_runs(records: Sequence[Record]) -> pd.DataFrame:
    """Accuracy over rounds of FedAvg and of both kinds of warm-up, at the cell nearest to the paper's best one.

    records: the grid of one setting. Columns: those of ``rounds.curves``, and panel (a title).
    """
    spec = records[0].spec
    fields = [record.spec.method for record in records]
    lam, tau = BEST[GRID_OF[spec.setting]]
    lam = _nearest([each["lam"] for each in fields if "lam" in each], lam)
    tau = _nearest([each["tau"] for each in fields if "tau" in each], tau)
    wanted = {"lam": lam, "tau": tau}
    chosen = [record for record in records if all(record.spec.method.get(k, v) == v for k, v in wanted.items())]
    frame = curves(sorted(chosen, key=lambda record: record.spec.method["name"]))
    frame = frame[frame["metric"] == "acc_pooled"].astype({"lam": float, "tau": float})
    return frame.assign(panel=f"beside {TITLE_OF[spec.setting]}\n{made_on(spec)}; λ = {lam:g}, τ = {tau:g}")


def _nearest(values: Iterable[float], wanted: float) -> float:
    return min(values, key=lambda value: abs(math.log(max(value, 1e-3) / wanted)), default=wanted)


def plain_rates(records: Iterable[Record]) -> pd.DataFrame:
    """First round at the target and final accuracy of FedAvg at each of its learning rates, means over seeds."""
    plain = [record for record in records if record.spec.method["name"] == "fedavg"]
    rows = [(f"{record.spec.train.lr:g}", rounds_to_target(record), final_accuracy(record)) for record in plain]
    table = pd.DataFrame(rows, columns=["learning rate of FedAvg", "first round at the target", "final accuracy"])
    return table.groupby("learning rate of FedAvg").mean()

"""Compares a paper's tables with stored runs, cell by cell."""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import pandas as pd

from pfl_core.study.claims import matches
from pfl_core.study.frame import Row, fresh, is_missing
from pfl_core.study.labels import GENERATED, in_brief
from pfl_core.study.presets import PRESETS
from pfl_core.study.published import ANY, table

if TYPE_CHECKING:
    from pfl_core.study.paper import Paper

Runs = dict[tuple[str, str | None], list[Row]]  # (method, data set) -> rows of the frame
Cell = Any  # a row of `published.table`, from itertuples: attributes are its columns
ROW = (
    "table dataset method variant metric paper paper_spread ours spread preset data differs seeds stale reproduced"
).split()
POINTS = 2.0  # tolerance for a reproduced accuracy, unless the paper's own spread is larger
STAND_IN = "(stand-in)"  # ends the description of data that replace the paper's
SHOWN = tuple(preset for preset in PRESETS[::-1] if preset != "ci")


def compare(paper: Paper, runs: pd.DataFrame) -> list[dict]:
    """A row (keys ROW) for each number in the paper's tables, from the runs of a frame.

    The runs of a cell are chosen in this order: the paper's data set before a stand-in (marked in ``data``), preset
    paper before real before quick (ci is never shown), longer runs, fresh runs before stale ones. Fields of a row:

    - ``paper``, ``paper_spread``: the printed number and its printed deviation; None where there is none.
    - ``ours``: mean over seeds, in the paper's unit; None if no run matches.
    - ``spread``: sample standard deviation over seeds (n - 1); None for one seed.
    - ``differs``: in which respects the runs differ from the paper's setting, e.g. "rounds, network"; "" if in none.
    - ``seeds``, ``stale``: the seeds, and whether any of the runs is stale.
    - ``reproduced``: whether ``ours`` is within 2 percentage points of the paper's accuracy, or within the paper's
      printed spread. None if the runs are not at the paper's setting (data set, preset, all rounds or accuracy that
      no longer changes), or if neither bound exists. Accepted deviations, such as a JPEG copy of the data or fewer
      rounds, are named in ``data``.
    """
    cells, of_method = table(paper.name), defaultdict(list)
    for row in fresh(runs.to_dict("records")):
        if row["preset"] in SHOWN:
            of_method[row["method"], row["dataset"]].append(row)
    return [_row(paper, cell, of_method, cells) for cell in cells.itertuples()]


def _row(paper: Paper, cell: Cell, runs: Runs, cells: pd.DataFrame) -> dict:
    other = paper.tables.best_of.get((cell.table, cell.method))
    if other is None:
        variant, stored = cell.variant, _stored(paper, cell, cell.variant, runs)
    else:
        variant, stored = f"best row of {other}", _best(paper, cell, other, runs, cells)
    printed = None if math.isnan(cell.value) else cell.value
    names = dict(table=cell.table, dataset=cell.dataset, method=cell.method, variant=variant, metric=cell.metric)
    spread = {"paper": printed, "paper_spread": None if math.isnan(cell.std) else cell.std}
    row = {**names, **spread, **_summary(stored, paper.tables.units.get(cell.metric, 1.0))}
    return row | {"reproduced": _reproduced(paper, cell, row, stored)}


def _reproduced(paper: Paper, cell: Cell, row: dict, stored: list[Row]) -> bool | None:
    """The value of the column ``reproduced``, see ``compare``."""
    dataset = paper.tables.datasets.get(cell.dataset)
    if not stored or row["paper"] is None:
        return None
    if any(
        run["preset"] != "paper" or run["dataset"] != dataset or run["partial"] and not run["flat"] for run in stored
    ):
        return None
    is_accuracy = "acc_" in paper.tables.metrics_of(cell)[0]
    bounds = [POINTS * paper.tables.units.get(cell.metric, 1.0)] if is_accuracy else []
    bounds += [] if math.isnan(cell.std) else [cell.std]
    return abs(row["ours"] - row["paper"]) <= max(bounds) if bounds else None


def _stored(paper: Paper, cell: Cell, variant: str, runs: Runs) -> list[Row]:
    """The runs for a cell, each with its ``value``: one data set, one preset, one run for each seed."""
    tables, metric = paper.tables, paper.tables.metrics_of(cell)[0]
    settings, published_set = tables.settings.get(cell.dataset), tables.datasets.get(cell.dataset)
    for about in tables.runs_of(cell, variant)[:1]:
        fields = {name: value for name, value in about.fields.items() if value is not ANY}
        for dataset in (published_set, *tables.stand_ins.get(cell.dataset, ())):
            found = [
                {**row, "value": row[metric]}
                for row in runs.get((about.method, dataset), [])
                if not is_missing(row.get(metric))
                and _of_setting(row["setting"], settings, about.suffix)
                and matches(row, fields)
            ]
            if found:
                source = min(map(_source, found))
                chosen = [row for row in found if _source(row) == source]
                if dataset != published_set and dataset is not None:
                    chosen = [{**row, "data": f"{_labelled(dataset, row['data'])} {STAND_IN}"} for row in chosen]
                    chosen = [{**row, "differs": _with_data(row["differs"])} for row in chosen]
                # fresh runs come first in the list, so in reverse order they replace stale ones of the same seed
                return list({row["seed"]: row for row in reversed(chosen)}.values())
    return []


def _of_setting(setting: str, known: tuple[str, ...] | None, suffix: str) -> bool:
    """Whether a setting, such as "cifar10, sampled", belongs to the cell."""
    base, _, rest = setting.partition(", ")
    return (known is None or base in known) and rest == suffix


def _labelled(dataset: str, data: str) -> str:
    """The description of the data, preceded by the data set's name if the description does not contain it."""
    return data if dataset in data else f"{dataset} ({data})"


def _with_data(differs: str) -> str:
    """The respects in which a run on a stand-in differs: the data first."""
    return ", ".join(dict.fromkeys(["data", *differs.split(", ")] if differs else ["data"]))


def _source(run: Row) -> tuple:
    """Sort key of the sources that must not be mixed in a cell, best first: preset, length, copy of the data."""
    return SHOWN.index(run["preset"]), -run["rounds"], run["data"]


def _best(paper: Paper, cell: Cell, other: str, runs: Runs, cells: pd.DataFrame) -> list[Row]:
    """The runs of the best row in another table, as in the paper, at the first preset that has all rows."""
    rows = (cells["table"] == other) & (cells["dataset"] == cell.dataset) & (cells["method"] == cell.method)
    for preset in SHOWN:
        at_preset = {key: [run for run in several if run["preset"] == preset] for key, several in runs.items()}
        candidates = [_stored(paper, cell, variant, at_preset) for variant in cells.loc[rows, "variant"]]
        if all(candidates) and len({stored[0]["data"] for stored in candidates}) == 1:
            return max(candidates, key=lambda stored: fmean(run["value"] for run in stored))
    return []


def _summary(stored: list[Row], unit: float) -> dict:
    """The columns of ROW that describe the stored runs; None if there are none."""
    if not stored:
        return dict.fromkeys(ROW[ROW.index("ours") :])
    values = [run["value"] * unit for run in stored]
    return {
        "ours": fmean(values),
        "spread": stdev(values) if len(values) > 1 else None,
        "preset": stored[0]["preset"],
        "data": stored[0]["data"],
        "differs": ", ".join(dict.fromkeys(word for run in stored for word in run["differs"].split(", ") if word)),
        "seeds": sorted(int(run["seed"]) for run in stored),
        "stale": any(bool(run["stale"]) for run in stored),
    }


def counts(rows: pd.DataFrame) -> dict[str, str]:
    """For each table, how many of its cells have runs, and how many of those at the paper's setting are reproduced.

    ``rows``: see ``as_frame``. Keys: "Table 2", "Figure 5"; values: "3 of 20 cells have runs".
    """
    texts = {}
    for name, group in rows.groupby("table", sort=False):
        stored = group[group["here"].notna()]
        text = f"{len(stored)} of {len(group)} cells have runs"
        if elsewhere := sum(STAND_IN in data for data in stored["data"]):
            text += f", {'all' if elsewhere == len(stored) else elsewhere} of them on a stand-in"
        within = stored[stored["reproduced"].notna()]
        if len(within):
            short = sum("rounds" in differs.split(", ") for differs in within["differs"])
            but = f" ({short} of them stopped early, when accuracy no longer changed)" if short else ""
            if ours := sum(in_brief(data) == GENERATED for data in within["data"]):
                but += f", {'all' if ours == len(within) else ours} of them with data {GENERATED}"
            near = sum(within["reproduced"])
            text += f"; at the paper's setting: {len(within)} run{but}, {near} within its spread or 2 points of it"
        texts[str(name).replace("table", "Table ").replace("figure", "Figure ")] = text
    return texts


def as_frame(rows: list[dict]) -> pd.DataFrame:
    """The rows as a data frame, for notebooks. The column ``ours`` is called "here": it is not the paper's authors'."""
    return pd.DataFrame(rows, columns=ROW).rename(columns={"ours": "here"})

"""Compares a paper's tables with stored results, cell by cell."""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import fmean, stdev
from typing import Any

import pandas as pd

from pfl_core.study.comparison import Comparison, Fields
from pfl_core.study.frames import GENERATED, in_brief
from pfl_core.study.published import table
from pfl_core.study.statistics import BEST_FIRST, COLUMNS, data_label, fresh_first, require, variants

Runs = dict[tuple[str, str, str | None], list[dict]]  # (method, metric, data set) -> stored runs, fresh ones first
Cell = Any  # a row of `published.table`, from itertuples: attributes are its columns
ROW = (
    "table dataset method variant metric paper paper_spread ours spread preset data differs seeds stale reproduced"
).split()
POINTS = 2.0  # tolerance for a reproduced accuracy, unless the paper's own spread is larger
STAND_IN = "(stand-in)"  # ends the description of data that replace the paper's
SHOWN = tuple(preset for preset in BEST_FIRST if preset != "ci")


def compare(comparison: Comparison, results: pd.DataFrame) -> list[dict]:
    """A row (keys ROW) for each number in the paper's tables.

    Args:
        results: a frame with ``statistics.COLUMNS`` and ``differs``. Its ``variant`` holds only fields that differ from
            the paper's main setting or that the paper's tables vary.

    The runs of a cell are chosen in this order: the paper's data set before a stand-in (marked in ``data``), preset
    paper before real before quick (ci is never shown), longer runs (if there is a column ``rounds``), fresh runs before
    stale ones. Fields of a row:

    - ``paper``, ``paper_spread``: the printed number and its printed deviation; None where there is none.
    - ``ours``: mean over seeds, in the paper's unit; None if no run matches.
    - ``spread``: sample standard deviation over seeds (n - 1); None for one seed.
    - ``differs``: in which respects the runs differ from the paper's setting, e.g. "rounds, network"; "" if in none.
    - ``seeds``, ``stale``: the seeds, and whether any of the runs is stale.
    - ``reproduced``: whether ``ours`` is within 2 percentage points of the paper's accuracy, or within the paper's
      printed spread. None if the runs are not at the paper's setting (data set, preset, all rounds or accuracy that
      no longer changes), or if neither bound exists. Accepted deviations, such as a JPEG copy of the data or fewer
      rounds, are named in ``data``.

    Raises ValueError for missing columns.
    """
    require(results, [*COLUMNS, "differs"])
    paper = comparison.paper
    cells, runs = table(paper), defaultdict(list)
    usable = results[(results["paper"] == paper) & results["preset"].isin(SHOWN)].dropna(subset="value")
    # only the metrics of cells; in `best_of` a cell has the variants of others
    metrics = {comparison.cell_metric(cell, text) for cell in cells.itertuples() for text in cells["variant"].unique()}
    usable = fresh_first(usable[usable["metric"].isin(metrics)])
    for run, variant in zip(usable.to_dict("records"), variants(usable), strict=True):
        fields = comparison.run_fields(run, variant)
        runs[run["method"], run["metric"], run["dataset"]].append({**run, "fields": fields})
    return [_row(comparison, cell, runs, cells) for cell in cells.itertuples()]


def _row(comparison: Comparison, cell: Cell, runs: Runs, cells: pd.DataFrame) -> dict:
    other = comparison.best_of.get((cell.table, cell.method))
    if other is None:
        variant, stored = cell.variant, _stored(comparison, cell, cell.variant, runs)
    else:
        variant, stored = f"best row of {other}", _best(comparison, cell, other, runs, cells)
    paper = None if math.isnan(cell.value) else cell.value
    names = dict(table=cell.table, dataset=cell.dataset, method=cell.method, variant=variant, metric=cell.metric)
    printed = {"paper": paper, "paper_spread": None if math.isnan(cell.std) else cell.std}
    row = {**names, **printed, **_summary(stored, comparison.units.get(cell.metric, 1.0))}
    return row | {"reproduced": _reproduced(comparison, cell, row, stored)}


def _reproduced(comparison: Comparison, cell: Cell, row: dict, stored: list[dict]) -> bool | None:
    """The value of the column ``reproduced``, see ``compare``."""
    dataset = comparison.datasets.get(cell.dataset)
    if not stored or row["paper"] is None:
        return None
    if any(run["preset"] != "paper" or run["dataset"] != dataset or _too_short(run) for run in stored):
        return None
    is_accuracy = comparison.cell_metric(cell, row["variant"]).startswith("acc_")
    bounds = [POINTS * comparison.units.get(cell.metric, 1.0)] if is_accuracy else []
    bounds += [] if math.isnan(cell.std) else [cell.std]
    return abs(row["ours"] - row["paper"]) <= max(bounds) if bounds else None


def _too_short(run: dict) -> bool:
    """Whether a run was stopped while its accuracy still changed."""
    return bool(run.get("partial")) and not run.get("flat")


def _stored(comparison: Comparison, cell: Cell, variant: str, runs: Runs) -> list[dict]:
    """The runs for a cell: one data set, one preset, one run for each seed."""
    cell_fields, metric = comparison.cell_fields(cell, variant), comparison.cell_metric(cell, variant)
    defaults, settings = comparison.defaults_of(cell.key), comparison.settings.get(cell.dataset)
    published_set = comparison.datasets.get(cell.dataset)
    for dataset in (published_set, *comparison.stand_ins.get(cell.dataset, ())):
        matches = runs.get((comparison.cell_method(cell), metric, dataset), [])
        # runs of the table's settings whose fields are those of the cell
        matches = [run for run in matches if settings is None or run.get("setting", settings[0]) in settings]
        matches = [run for run in matches if _same_setting(cell_fields, run["fields"], defaults)]
        if matches:
            source = min(map(_source, matches))
            chosen = [run for run in matches if _source(run) == source]
            if dataset != published_set and dataset is not None:
                chosen = [{**run, "data": f"{data_label(dataset, run['data'])} {STAND_IN}"} for run in chosen]
                chosen = [{**run, "differs": _with_data(run["differs"])} for run in chosen]
            # fresh runs come first in the list, so in reverse order they replace stale ones of the same seed
            return list({run["seed"]: run for run in reversed(chosen)}.values())
    return []


def _with_data(differs: str) -> str:
    """The respects in which a run on a stand-in differs: the data first."""
    return ", ".join(dict.fromkeys(["data", *differs.split(", ")] if differs else ["data"]))


def _source(run: dict) -> tuple:
    """Sort key of the sources that must not be mixed in a cell, best first: preset, length, copy of the data."""
    return SHOWN.index(run["preset"]), -run.get("rounds", 0), run["data"]


def _same_setting(cell_fields: Fields, run_fields: Fields, defaults: Fields) -> bool:
    """Whether all fields are equal, where a missing field has the default of the paper's main setting."""
    return all(
        _equal(run_fields.get(name, defaults.get(name)), cell_fields.get(name, defaults.get(name)))
        for name in cell_fields.keys() | run_fields.keys()
    )


def _equal(a: float | str | None, b: float | str | None) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b)
    return a is not None and a == b


def _best(comparison: Comparison, cell: Cell, other: str, runs: Runs, cells: pd.DataFrame) -> list[dict]:
    """The runs of the best row in another table, as in the paper, at the first preset that has all rows."""
    rows = (cells["table"] == other) & (cells["dataset"] == cell.dataset) & (cells["method"] == cell.method)
    for preset in SHOWN:
        at_preset = {key: [run for run in several if run["preset"] == preset] for key, several in runs.items()}
        candidates = [_stored(comparison, cell, variant, at_preset) for variant in cells.loc[rows, "variant"]]
        if all(candidates) and len({stored[0]["data"] for stored in candidates}) == 1:
            return max(candidates, key=lambda stored: fmean(run["value"] for run in stored))
    return []


def _summary(stored: list[dict], unit: float) -> dict:
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
            text += f"; of {len(within)} at the paper's setting{but}, {near} within its spread or 2 points"
        texts[str(name).replace("table", "Table ").replace("figure", "Figure ")] = text
    return texts


def as_frame(rows: list[dict]) -> pd.DataFrame:
    """The rows as a data frame, for notebooks. The column ``ours`` is called "here": it is not the paper's authors'."""
    return pd.DataFrame(rows, columns=ROW).rename(columns={"ours": "here"})

"""A paper's numbers beside stored results, cell by cell, with what the results were made from."""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import fmean, stdev

import pandas as pd

from pfl_core.study.comparison import Comparison, Fields
from pfl_core.study.published import table
from pfl_core.study.statistics import BEST_FIRST, COLUMNS, data_label, fresh_first, require, variants

Runs = dict[tuple[str, str, str], list[dict]]  # (method, metric, data set) -> stored runs, fresh ones first
ROW = "table dataset method variant metric paper ours spread preset data seeds stale reproduced".split()
POINTS = 2.0  # by which a printed accuracy may be missed, unless the paper's own spread is larger
SHOWN = tuple(preset for preset in BEST_FIRST if preset != "ci")


def compare(comparison: Comparison, results: pd.DataFrame) -> list[dict]:
    """A row (keys ROW) for each number of the paper's tables; `ours` None where nothing fits.

    results: columns `statistics.COLUMNS`; `variant` holds only fields that differ from the paper's main setting or
    that its tables vary. The paper's own data come before a stand-in (marked in `data`), then preset paper before real
    before quick (ci never shows), then longer runs (by a column `rounds`, if there is one), then a fresh run before a
    stale one. `ours` is the mean over seeds in the paper's unit, `spread` the sample standard deviation (n - 1; None
    for one seed), `seeds` their list, `stale` whether any of them is stale. `reproduced`: whether ours is within 2
    points of the paper's accuracy, or within the spread that it prints; None where the runs are not at the paper's own
    setting (data, preset, all rounds), or where neither bound is known. Deviations that are allowed, such as a JPEG
    copy of the data, are named in `data`.
    Raises ValueError for missing columns.
    """
    require(results, COLUMNS)
    paper = comparison.paper
    cells, runs = table(paper), defaultdict(list)
    usable = results[(results["paper"] == paper) & results["preset"].isin(SHOWN)].dropna(subset="value")
    usable = fresh_first(usable)
    for run, fields in zip(usable.to_dict("records"), variants(usable), strict=True):
        own = comparison.run_fields(run, fields)
        runs[run["method"], run["metric"], run["dataset"]].append({**run, "fields": own})
    return [_row(comparison, cell, runs, cells) for cell in cells.itertuples()]


def _row(comparison: Comparison, cell: tuple, runs: Runs, cells: pd.DataFrame) -> dict:
    other = comparison.best_of.get((cell.table, cell.method))
    if other is None:
        variant, stored = cell.variant, _stored(comparison, cell, cell.variant, runs)
    else:
        variant, stored = f"best row of {other}", _best(comparison, cell, other, runs, cells)
    paper = None if math.isnan(cell.value) else cell.value
    shown = dict(table=cell.table, dataset=cell.dataset, method=cell.method, variant=variant, metric=cell.metric)
    found = {**shown, "paper": paper, **_summary(stored, comparison.units.get(cell.metric, 1.0))}
    return found | {"reproduced": _reproduced(comparison, cell, found, stored)}


def _reproduced(comparison: Comparison, cell: tuple, found: dict, stored: list[dict]) -> bool | None:
    own_set = comparison.datasets.get(cell.dataset)
    if not stored or found["paper"] is None:
        return None
    if any(run["preset"] != "paper" or run["dataset"] != own_set or run.get("partial") for run in stored):
        return None
    accuracy = comparison.cell_metric(cell, found["variant"]).startswith("acc_")
    bounds = [POINTS * comparison.units.get(cell.metric, 1.0)] * accuracy + [cell.std] * (not math.isnan(cell.std))
    return abs(found["ours"] - found["paper"]) <= max(bounds) if bounds else None


def _stored(comparison: Comparison, cell: tuple, variant: str, runs: Runs) -> list[dict]:
    """The runs for a cell: one data set, one preset, one run for each seed."""
    theirs, metric = comparison.cell_fields(cell, variant), comparison.cell_metric(cell, variant)
    main, settings = comparison.defaults_of(cell.key), comparison.settings.get(cell.dataset)
    own_set = comparison.datasets.get(cell.dataset)
    for dataset in (own_set, *comparison.stand_ins.get(cell.dataset, ())):
        found = runs.get((comparison.cell_method(cell), metric, dataset), [])
        found = [run for run in found if settings is None or run.get("setting", settings[0]) in settings]
        found = [run for run in found if _same_setting(theirs, run["fields"], main)]
        if found:
            source = min(map(_source, found))
            chosen = [run for run in found if _source(run) == source]
            if dataset != own_set:
                chosen = [{**run, "data": f"{data_label(dataset, run['data'])} (stand-in)"} for run in chosen]
            return list({run["seed"]: run for run in reversed(chosen)}.values())
    return []


def _source(run: dict) -> tuple:
    """What must not be mixed in one cell, best first: preset, length, copy of the data (the plain name first)."""
    return SHOWN.index(run["preset"]), -run.get("rounds", 0), run["data"]


def _same_setting(theirs: Fields, ours: Fields, default: Fields) -> bool:
    """Each field of the paper's variant is ours, and ours has no other that departs from the paper's main setting."""
    fields = theirs.keys() | ours.keys()
    return all(_equal(ours.get(name, default.get(name)), theirs.get(name, default.get(name))) for name in fields)


def _equal(a: float | str | None, b: float | str | None) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b)
    return a is not None and a == b


def _best(comparison: Comparison, cell: tuple, other: str, runs: Runs, cells: pd.DataFrame) -> list[dict]:
    """As the paper does: the best of another table's settings, of the first preset that has all of them."""
    here = (cells["table"] == other) & (cells["dataset"] == cell.dataset) & (cells["method"] == cell.method)
    for preset in SHOWN:
        alike = {key: [run for run in found if run["preset"] == preset] for key, found in runs.items()}
        found = [_stored(comparison, cell, variant, alike) for variant in cells.loc[here, "variant"]]
        if all(found) and len({stored[0]["data"] for stored in found}) == 1:
            return max(found, key=lambda stored: fmean(run["value"] for run in stored))
    return []


def _summary(stored: list[dict], unit: float) -> dict:
    if not stored:
        return dict.fromkeys(ROW[ROW.index("ours") :])
    values = [run["value"] * unit for run in stored]
    return {
        "ours": fmean(values),
        "spread": stdev(values) if len(values) > 1 else None,
        "preset": stored[0]["preset"],
        "data": stored[0]["data"],
        "seeds": sorted(int(run["seed"]) for run in stored),
        "stale": any(bool(run["stale"]) for run in stored),
    }


def as_frame(rows: list[dict]) -> pd.DataFrame:
    """The rows as a data frame, for notebooks."""
    return pd.DataFrame(rows, columns=ROW)

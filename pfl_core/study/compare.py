"""Compares a paper's tables with stored runs, cell by cell."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import pandas as pd

from pfl_core.study.claims import matches
from pfl_core.study.frame import Row, fresh, is_missing
from pfl_core.study.labels import GENERATED
from pfl_core.study.presets import PRESETS
from pfl_core.study.published import ANY, table, titled

if TYPE_CHECKING:
    from pfl_core.study.paper import Paper

Runs = defaultdict[str, list[Row]]  # method -> rows of the frame
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
    paper before real before quick (ci is never shown), at real those whose rates were searched, as for claims, longer
    runs, fresh runs before stale ones. Fields of a row:

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
    by_method = defaultdict(list)
    for row in fresh(runs.to_dict("records")):
        if row["preset"] in SHOWN:
            by_method[row["method"]].append(row)
    return [_row(paper, cell, by_method) for cell in table(paper.name).itertuples()]


def _row(paper: Paper, cell: Cell, runs: Runs) -> dict:
    tables, other = paper.tables, paper.tables.best_of.get((cell.table, cell.method))
    variant = f"best row of {other}" if other else cell.variant
    theirs, deviation = (None if math.isnan(number) else number for number in (cell.value, cell.std))
    row = dict(table=cell.table, dataset=cell.dataset, method=cell.method, variant=variant, metric=cell.metric)
    row |= {"paper": theirs, "paper_spread": deviation}
    stored = _best(paper, cell, other, runs) if other else _stored(paper, cell, variant, runs)
    if not stored:
        return row | dict.fromkeys(ROW[ROW.index("ours") :])
    dataset, unit = tables.datasets.get(cell.dataset), tables.units.get(cell.metric, 1.0)
    metric = tables.metrics_of(cell)[0]
    row |= _summary(stored, [run[metric] * unit for run in stored], dataset)
    whole = all(run["preset"] == "paper" and (run["flat"] or not run["partial"]) for run in stored)
    points = POINTS * unit if "acc_" in metric else 0.0
    judged = whole and stored[0]["dataset"] == dataset and theirs is not None and (points or deviation is not None)
    return row | {"reproduced": abs(row["ours"] - theirs) <= max(points, deviation or 0.0) if judged else None}


def _summary(stored: list[Row], values: list[float], dataset: str | None) -> dict:
    """The columns of ROW that describe the stored runs. Those on other data than ``dataset`` name them."""
    first, words = stored[0], [word for run in stored for word in run["differs"].split(", ") if word]
    name, data = first["dataset"], first["data"]
    if name != dataset:
        data = f"{data if name in data else f'{name} ({data})'} {STAND_IN}"
        words = ["data", *words]
    return {
        "ours": fmean(values),
        "spread": stdev(values) if len(values) > 1 else None,
        "preset": first["preset"],
        "data": data,
        "differs": ", ".join(dict.fromkeys(words)),
        "seeds": sorted(int(run["seed"]) for run in stored),
        "stale": any(bool(run["stale"]) for run in stored),
    }


def _stored(paper: Paper, cell: Cell, variant: str, runs: Runs) -> list[Row]:
    """The runs for a cell, one for each seed, of one source: data set, preset, length and copy of the data."""
    tables, metric = paper.tables, paper.tables.metrics_of(cell)[0]
    datasets = (tables.datasets.get(cell.dataset), *tables.stand_ins.get(cell.dataset, ()))
    settings = tables.settings_of(cell.dataset)

    for about in tables.runs_of(cell, variant)[:1]:
        fields = {name: value for name, value in about.fields.items() if value is not ANY}
        suffixes = [(about.suffix and ", ") + about.suffix + searched for searched in paper.searched_first]
        found = []  # a key to sort by, the best first, and the row
        for row in runs[about.method]:
            base, comma, rest = row["setting"].partition(", ")
            fits = base in settings and comma + rest in suffixes and matches(row, fields)
            if fits and row["dataset"] in datasets and not is_missing(row.get(metric)):
                standing = SHOWN.index(row["preset"]), suffixes.index(comma + rest), -row["rounds"]
                found.append(((datasets.index(row["dataset"]), *standing, row["data"]), row))
        best = min((key for key, _ in found), default=None)
        # fresh runs come first in the list, so in reverse order they replace stale ones of the same seed
        return list({row["seed"]: row for key, row in reversed(found) if key == best}.values())
    return []


def _best(paper: Paper, cell: Cell, other: str, runs: Runs) -> list[Row]:
    """The runs of the best row in another table, as in the paper, at the first preset that has all rows."""
    metric, rows = paper.tables.metrics_of(cell)[0], table(paper.name, other)
    variants = rows.loc[(rows["dataset"] == cell.dataset) & (rows["method"] == cell.method), "variant"]
    for preset in SHOWN:
        at_preset = defaultdict(list, {key: [row for row in of if row["preset"] == preset] for key, of in runs.items()})
        candidates = [_stored(paper, cell, variant, at_preset) for variant in variants]
        if all(candidates) and len({(found[0]["dataset"], found[0]["data"]) for found in candidates}) == 1:
            seeds = set.intersection(*({row["seed"] for row in found} for found in candidates))
            return max(candidates, key=lambda found: fmean(r[metric] for r in found if r["seed"] in seeds or not seeds))
    return []


def counts(rows: pd.DataFrame) -> dict[str, str]:
    """For each table, how many of its cells have runs, and how many of those at the paper's setting are reproduced.

    ``rows``: see ``as_frame``. Keys: "Table 2", "Figure 5"; values: "3 of 20 cells have runs".
    """
    texts = {}
    for name, group in rows.groupby("table", sort=False):
        stored = group[group["here"].notna()]
        text = f"{len(stored)} of {len(group)} cells have runs"
        stand_in = _part((STAND_IN in data for data in stored["data"]), "on a stand-in")
        text += f" ({stand_in})" if stand_in else ""
        within = stored[stored["reproduced"].notna()]
        if len(within):
            text += f", {len(within)} of them judged, at the paper's setting"
            early = ("rounds" in differs.split(", ") for differs in within["differs"])
            parts = [
                _part(early, "stopped early when accuracy no longer changed"),
                _part((data.startswith(GENERATED) for data in within["data"]), f"with data {GENERATED}"),
            ]
            text += f" ({', '.join(filter(None, parts))})" if any(parts) else ""
            text += f"; {sum(within['reproduced'])} of {len(within)} within the printed spread or 2 accuracy points"
        texts[titled(name)] = text
    return texts


def _part(flags: Iterable[bool], phrase: str) -> str:
    """The phrase for those that are true: "3 on a stand-in"; "" if none is."""
    known = list(flags)
    return "" if not any(known) else phrase if all(known) else f"{sum(known)} {phrase}"


def as_frame(rows: list[dict]) -> pd.DataFrame:
    """The rows as a data frame, for notebooks. The column ``ours`` is called "here": it is not the paper's authors'."""
    return pd.DataFrame(rows, columns=ROW).rename(columns={"ours": "here"})

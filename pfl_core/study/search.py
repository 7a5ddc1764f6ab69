"""Hyperparameter search on validation images, the same for every method of a comparison.

Coordinate search: the fields (learning rates, regularization strengths) are varied over their grids one after another,
in the given order, while the others keep their current values. Passes over all fields are repeated until a whole pass
changes nothing. If the best value of a field is at an edge of its grid, the grid is extended by its own factor. Fields
given as ``each`` are not rates or strengths (the initial bias of pFedGate's gate): the other fields are searched for
each of their values, and the best of all is chosen.

The score of a run is its pooled accuracy on validation images after the last round's aggregation. This holds for all
methods, also those that their paper scores before aggregation. If two are equal, as with 100 % for several rates, the
mean of this accuracy over the rounds decides: the faster run is better. Test images are not used. A run that
diverges is given up early, see ``diverged``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from pfl_core.files import atomic_write, checksum, parsed
from pfl_core.runs import Record, RunSpec, Store, sweep
from pfl_core.runs.provenance import ROOT
from pfl_core.runs.record import Series
from pfl_core.study.settings import TRAINING, PaperSettings

Values = dict[str, float]
MAX_PASSES = 3  # over all fields
EDGES = (0, -1)  # positions in a grid
MAX_EXTENSIONS = 2  # of each edge of a grid
SEED = 0  # of all runs of a search


@dataclass(frozen=True)
class Search:
    """The grids of a method: fields of the method or of its training, each with its values in ascending order."""

    method: str
    grid: Mapping[str, tuple[float, ...]]
    asked: Mapping[str, Any] = field(default_factory=dict)  # fixed fields of the method
    each: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # fields whose values are all tried, see above

    def spec(self, settings: PaperSettings, preset: str, setting: str, values: Values) -> RunSpec:
        """The run with these values. Raises ValueError for a value that its field does not accept."""
        training = {name: value for name, value in values.items() if name in TRAINING}
        method_fields = {**self.asked, **{name: value for name, value in values.items() if name not in TRAINING}}
        spec = settings.spec(
            self.method, preset=preset, setting=setting, seed=SEED, overrides=training, **method_fields
        )
        return replace(spec, changed=True)  # becomes the preset's own run only if it is chosen


class Score(NamedTuple):
    """Pooled validation accuracy of a run in percent; of two equal ones at the end, the higher mean is better."""

    end: float  # after the last round
    mean: float  # over all scored rounds


WORST = Score(-math.inf, -math.inf)


class Choice(NamedTuple):
    """The result of a search."""

    values: Values
    score: Score
    grid: dict[str, list[float]]  # with extensions
    edges: list[str]  # fields whose best value is at an edge of the extended grid, or beyond it


def choose(grid: Mapping[str, Sequence[float]], start: Values, score: Callable[[list[Values]], list[Score]]) -> Choice:
    """Coordinate search for the values with the highest score.

    ``score`` takes a list of values and returns a score for each. It is called once for each value; NaN counts as the
    lowest score. If it raises ValueError for an extension of a grid, the grid is not extended on that side. If scores
    are equal, the current value is preferred, then the one that was tried first.
    """
    grids, best = {name: sorted(values) for name, values in grid.items()}, dict(start)
    known: dict[str, Score] = {}  # by key
    extensions = dict.fromkeys(product(grids, EDGES), MAX_EXTENSIONS)  # that remain, by field and edge

    def scores(candidates: list[Values]) -> list[Score]:
        new = [values for values in candidates if _key(values) not in known]
        for values, found in zip(new, score(new) if new else [], strict=True):
            known[_key(values)] = WORST if math.isnan(found.end) else found
        return [known[_key(values)] for values in candidates]

    def best_on_line(name: str) -> float:
        """The best value of one field with the others fixed. Extends the field's grid."""
        values = list(dict.fromkeys([best[name], *grids[name]]))
        score_of = dict(zip(values, scores([{**best, name: value} for value in values]), strict=True))
        top = max(values, key=score_of.__getitem__)
        edge = next((edge for edge in EDGES if top == grids[name][edge]), None)
        if edge is None or len(grids[name]) < 2 or not extensions[name, edge]:
            return top
        try:
            extension = _next_value(grids[name], edge)
            scores([{**best, name: extension}])
        except ValueError:
            return top
        grids[name] = sorted([*grids[name], extension])
        extensions[name, edge] -= 1
        return best_on_line(name)

    for _ in range(MAX_PASSES):
        before = dict(best)
        for name in grids:
            best[name] = best_on_line(name)
        if best == before:
            break
    # a start value may lie beyond its grid, or be None, which stands for a default
    beyond = [name for name, at in best.items() if at is not None and not grids[name][0] < at < grids[name][-1]]
    return Choice(best, scores([best])[0], grids, [name for name in beyond if len(grids[name]) > 1])


def _next_value(values: list[float], edge: int) -> float:
    """The next value beyond an edge, by the factor of the two values there; two digits. Raises ValueError for zeros."""
    last, neighbour = (values[0], values[1]) if edge == 0 else (values[-1], values[-2])
    if not last or not neighbour:
        raise ValueError("a grid with 0 has no factor")
    return float(f"{last * last / neighbour:.2g}")


def _key(values: Values) -> str:
    return json.dumps(values, sort_keys=True)


def validation_score(record: Record) -> Score:
    """The score of a run. Raises LookupError without validation images."""
    if "correct_val" not in record.series:
        raise LookupError(f"{record.spec.label()}: the search needs validation images, and this run has none")
    correct, count = (record.values(f"{name}_val").sum(axis=1) for name in ("correct", "count"))
    accuracy = 100 * correct / count  # a value for each scored round
    return Score(float(accuracy.iloc[-1]), float(accuracy.mean()))


def diverged(series: Series) -> bool:
    """Whether every client's loss on validation images was NaN in the last evaluation.

    The search gives such a run up: it ends there, and no run that goes on is worse.
    """
    losses = series["loss_val"][1][-1] if "loss_val" in series else [0.0]
    return all(loss is None or math.isnan(loss) for loss in losses)  # None: NaN in a stored record


def run_search(
    search: Search,
    settings: PaperSettings,
    preset: str,
    setting: str,
    *,
    jobs: int | None = None,
    store: Store | None = None,
) -> dict[str, Any]:
    """Run one search. Returns its row of the paper's ``searched.json``.

    Stored runs are reused. The search starts from the values in the paper's settings.

    Raises ValueError if all its runs diverged; LookupError without validation images.
    """
    store = store or Store()
    record_of: dict[str, Record] = {}  # all runs of the search, by the key of their values

    def score(candidates: list[Values]) -> list[Score]:
        specs = [search.spec(settings, preset, setting, values) for values in candidates]
        records = sweep(specs, jobs=jobs, store=store, stop_when=diverged)
        record_of.update((_key(values), record) for values, record in zip(candidates, records, strict=True))
        return [WORST if record.partial else validation_score(record) for record in records]

    first = search.spec(settings.before_search(), preset, setting, {})
    method = first.build_method()
    start = {name: getattr(first.train if name in TRAINING else method, name) for name in search.grid}
    choices = []
    for values in product(*search.each.values()):
        fixed = dict(zip(search.each, values, strict=True))
        grid = {**search.grid, **{name: (value,) for name, value in fixed.items()}}
        choices.append(choose(grid, start | fixed, score))
    choice = max(choices, key=lambda candidate: candidate.score)
    best = record_of[_key(choice.values)]
    if best.partial:
        raise ValueError(f"{best.spec.label()}: all {len(record_of)} runs of the search diverged; try lower rates")
    store.put(replace(best, spec=replace(best.spec, changed=False)))
    return {
        "preset": preset,
        "setting": setting,
        "method": search.method,
        "values": choice.values,
        "validation": round(choice.score.end, 2),
        "grid": {**choice.grid, **search.each},
        "edges": choice.edges,
        "seed": SEED,
        "runs": len(record_of),
        "hours": round(sum(record.core_seconds for record in record_of.values()) / 3600, 2),
        "tried": [[json.loads(values), round(validation_score(record).end, 2)] for values, record in record_of.items()],
    }


def searched_path(paper: str) -> Path:
    """The file with the results of a paper's searches."""
    return ROOT / "pfl_core" / "papers" / paper / "searched.json"


def read(path: Path) -> dict[tuple[str, str], dict[str, Values]]:
    """(preset, setting) -> method -> chosen values; empty if the file does not exist.

    Raises ValueError if the file is damaged.
    """
    searched: dict[tuple[str, str], dict[str, Values]] = {}
    for row in _rows(path):
        searched.setdefault((row["preset"], row["setting"]), {})[row["method"]] = row["values"]
    return searched


def table(paper: str) -> pd.DataFrame:
    """The results of a paper's searches for notebooks, a row for each search; empty if there was none.

    Raises ValueError if the file is damaged.
    """
    shown = [
        {
            **{name: row[name] for name in ("preset", "setting", "method")},
            "chosen": ", ".join(f"{name}={value}" for name, value in row["values"].items()),
            "validation": row["validation"],
            "tried": "; ".join(f"{name}: {_tried(row, name)}" for name in row["grid"]),
            "at an end": ", ".join(row["edges"]),
            **{name: row[name] for name in ("runs", "hours")},
        }
        for row in _rows(searched_path(paper))
    ]
    columns = ["preset", "setting", "method", "chosen", "validation", "tried", "at an end", "runs", "hours"]
    return pd.DataFrame(shown, columns=columns)


def _tried(row: Mapping[str, Any], name: str) -> str:
    """The values of a field that a search could choose, in ascending order, and the best accuracy with each.

    These are its grid and its start value.
    """
    scores: dict[Any, list[float]] = {value: [] for value in row["grid"][name]}
    for values, score in row["tried"]:
        scores.setdefault(values[name], []).append(score)
    ascending = sorted(scores, key=lambda value: -math.inf if value is None else value)
    return ", ".join(f"{value} ({max(scores[value])})" if scores[value] else str(value) for value in ascending)


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to a paper's file. They replace those of the same preset, setting and method.

    Raises ValueError if the file is damaged, and OSError if it cannot be written; it then stays as it was.
    """
    place = itemgetter("preset", "setting", "method")
    row_of = {place(row): row for row in (*_rows(path), *rows)}
    text = ",\n".join(json.dumps({**row_of[key], "sha256": checksum(row_of[key])}) for key in sorted(row_of))
    atomic_write(path, f"[\n{text}\n]\n".encode())


def _rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a paper's file, without their checksums; empty if the file does not exist.

    Raises ValueError if the file is damaged.
    """
    try:
        rows = parsed(path.read_bytes())
        for row in rows:
            if row.pop("sha256") != checksum(row):
                raise ValueError(f"the checksum of {row['method']} at {row['preset']} does not match")
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}); restore it with git, or search again") from None
    return rows

"""The same search for every method of a comparison: rates and strengths, chosen on validation images.

One field after the other is varied over its grid, in the stated order, while the others keep their present values;
after the last field it starts over, until a whole pass changes nothing. Where the best value is the smallest or the
largest one tried, the grid is widened by its own factor. A choice that is no rate or strength (where pFedGate's gate
starts) is gone through whole: the others are searched for each of its values, and the best of all wins. A run's score
is its accuracy on validation images after the last round's aggregation, over all samples, for every method alike (also
for one that its paper scores before it); test images choose nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from pfl_core.runs import Record, RunSpec, Store, sweep
from pfl_core.runs.provenance import ROOT
from pfl_core.study.settings import TRAINING, PaperSettings

Values = dict[str, float]
PASSES = 3  # over all fields, at most
ENDS = (0, -1)  # of a grid
WIDENINGS = 2  # of each end of a grid, at most
SEED = 0  # of all runs of a search


@dataclass(frozen=True)
class Search:
    """What is tried of a method: fields of it or of its training, each with its grid in ascending order."""

    method: str
    grid: Mapping[str, tuple[float, ...]]
    asked: Mapping[str, Any] = field(default_factory=dict)  # fields of the method that stand still
    each: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # fields gone through whole, see above

    def spec(self, settings: PaperSettings, preset: str, dataset: str, values: Values) -> RunSpec:
        """The run with these values. Raises ValueError for one that its field does not take."""
        training = {name: value for name, value in values.items() if name in TRAINING}
        own = {name: value for name, value in values.items() if name not in TRAINING}
        where = {"preset": preset, "dataset": dataset, "seed": SEED}
        made = settings.spec(self.method, **where, overrides=training, **{**self.asked, **own})
        return replace(made, changed=True)  # none of the preset's own runs, unless it is chosen


class Choice(NamedTuple):
    """What a search chose, and how."""

    values: Values
    score: float
    grid: dict[str, list[float]]  # as widened
    edges: list[str]  # fields whose best value is still at an end of its grid


def choose(grid: Mapping[str, Sequence[float]], start: Values, score: Callable[[list[Values]], list[float]]) -> Choice:
    """The best values of some fields, one after the other.

    ``score`` takes the values to try and returns a number for each, higher is better; it is asked only once for each.
    Not a number is the worst. A value that the score refuses (ValueError) ends the widening on its side. Of equal
    scores the present value wins, then the one that was tried first.
    """
    grids, known = {name: sorted(values) for name, values in grid.items()}, {}
    left = {(name, end): WIDENINGS for name in grids for end in ENDS}

    def scores(wanted: list[Values]) -> list[float]:
        new = [values for values in wanted if _key(values) not in known]
        for values, found in zip(new, score(new) if new else [], strict=True):
            known[_key(values)] = -math.inf if math.isnan(found) else found
        return [known[_key(values)] for values in wanted]

    best = dict(start)
    for _ in range(PASSES):
        before = dict(best)
        for name in grids:
            best[name] = _best_on_line(name, best, grids, left, scores)
        if best == before:
            break
    edges = [name for name, values in grids.items() if len(values) > 1 and best[name] in (values[0], values[-1])]
    return Choice(best, scores([best])[0], grids, edges)


def _best_on_line(
    name: str,
    now: Values,
    grids: dict[str, list[float]],
    left: dict[tuple[str, int], int],
    scores: Callable[[list[Values]], list[float]],
) -> float:
    """The best value of one field, the others as they are; widens its grid in place, as often as is ``left``."""
    while True:
        values = list(dict.fromkeys([now[name], *grids[name]]))
        found = dict(zip(values, scores([{**now, name: value} for value in values]), strict=True))
        best = max(values, key=found.__getitem__)
        end = next((end for end in ENDS if best == grids[name][end]), None)
        if end is None or len(grids[name]) < 2 or not left[name, end]:
            return best
        try:
            beyond = _beyond(grids[name], end)
            scores([{**now, name: beyond}])
        except ValueError:
            return best
        grids[name].insert(0 if end == 0 else len(grids[name]), beyond)
        left[name, end] -= 1


def _beyond(values: list[float], end: int) -> float:
    """The next value of a grid, by the factor between the last two; two digits. Raises ValueError beside a 0."""
    last, neighbour = (values[0], values[1]) if end == 0 else (values[-1], values[-2])
    if not last or not neighbour:
        raise ValueError("a grid with 0 has no factor")
    return float(f"{last * last / neighbour:.2g}")


def _key(values: Values) -> str:
    return json.dumps(values, sort_keys=True)


def validation_accuracy(record: Record) -> float:
    """Percent of all validation images after the last round. Raises ValueError for a run without any."""
    if "correct_val" not in record.series:
        raise LookupError(f"{record.spec.label()}: there are no validation images to choose by")
    correct, count = (record.values(f"{name}_val").iloc[-1].sum() for name in ("correct", "count"))
    return float(100 * correct / count)


def run_search(
    search: Search,
    settings: PaperSettings,
    preset: str,
    dataset: str,
    *,
    jobs: int | None = None,
    store: Store | None = None,
) -> dict[str, Any]:
    """Make the runs of one search, and say what it chose: a row of the paper's ``searched.json``.

    Stored runs are read. Starts from the values that the paper's settings have.
    """
    store, made = store or Store(), {}

    def score(wanted: list[Values]) -> list[float]:
        records = sweep([search.spec(settings, preset, dataset, values) for values in wanted], jobs=jobs, store=store)
        made.update((_key(values), record) for values, record in zip(wanted, records, strict=True))
        return [validation_accuracy(record) for record in records]

    first = search.spec(settings.before_search(), preset, dataset, {})
    method = first.build_method()
    start = {name: getattr(first.train if name in TRAINING else method, name) for name in search.grid}
    choices = []
    for values in product(*search.each.values()):
        fixed = dict(zip(search.each, values, strict=True))
        choices.append(choose(search.grid | {name: (value,) for name, value in fixed.items()}, start | fixed, score))
    choice = max(choices, key=lambda found: found.score)
    best = made[_key(choice.values)]
    store.put(replace(best, spec=replace(best.spec, changed=False)))
    grid = choice.grid | {name: list(values) for name, values in search.each.items()}
    return {
        **{"preset": preset, "setting": dataset, "method": search.method, "values": choice.values},
        **{"validation": round(choice.score, 2), "grid": grid, "edges": choice.edges, "seed": SEED},
        **{"runs": len(made), "hours": round(sum(record.seconds for record in made.values()) / 3600, 2)},
        "tried": [[json.loads(values), round(validation_accuracy(record), 2)] for values, record in made.items()],
    }


def searched_path(paper: str) -> Path:
    """Where the choices of a paper's searches are kept."""
    return ROOT / "pfl_core" / "papers" / paper / "searched.json"


def read(path: Path) -> dict[tuple[str, str], dict[str, Values]]:
    """(preset, setting) -> method -> the values that its search chose; nothing where there is no such file."""
    if not path.exists():
        return {}
    found: dict[tuple[str, str], dict[str, Values]] = {}
    for row in json.loads(path.read_text(encoding="utf-8")):
        found.setdefault((row["preset"], row["setting"]), {})[row["method"]] = row["values"]
    return found


def table(paper: str) -> pd.DataFrame:
    """What a paper's searches chose: a row for each, for notebooks. No rows where there was none."""
    path = searched_path(paper)
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    found = [
        {
            **{name: row[name] for name in ("preset", "setting", "method")},
            "chosen": ", ".join(f"{name}={value}" for name, value in row["values"].items()),
            "validation": row["validation"],
            "tried": "; ".join(f"{name}: {', '.join(map(str, grid))}" for name, grid in row["grid"].items()),
            "at an end": ", ".join(row["edges"]),
            **{name: row[name] for name in ("runs", "hours")},
        }
        for row in rows
    ]
    columns = ["preset", "setting", "method", "chosen", "validation", "tried", "at an end", "runs", "hours"]
    return pd.DataFrame(found, columns=columns)


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put rows into a paper's file, in place of those of the same method, preset and setting."""
    kept = {_place(row): row for row in (json.loads(path.read_text(encoding="utf-8")) if path.exists() else [])}
    kept |= {_place(row): row for row in rows}
    text = ",\n".join(json.dumps(kept[place]) for place in sorted(kept))
    path.write_text(f"[\n{text}\n]\n", encoding="utf-8", newline="\n")


def _place(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["preset"], row["setting"], row["method"]

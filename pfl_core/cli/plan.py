"""What runs would cost, for ``--dry-run``: stored and missing runs, time, memory and disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pfl_core.cli.text import duration, size, table
from pfl_core.runs import RunSpec, Store
from pfl_core.runs.estimate import Cost, Survey, Timings, estimate


@dataclass(frozen=True)
class Plan:
    """The cost of several groups of runs, which may share runs; the row "total" counts these once."""

    rows: list[dict[str, Any]]  # name, stored, missing; seconds, memory and disk (bytes), None if nothing is missing
    notes: list[str]

    @classmethod
    def of(cls, groups: Mapping[str, Sequence[RunSpec]], jobs: int) -> Self:
        """The cost of the groups (name -> runs) with ``jobs`` parallel runs."""
        store = Store()
        timings = Timings.of(store)
        surveys = {name: Survey.of(specs, store) for name, specs in groups.items()}
        rows = [
            _row(name, survey, estimate(survey.missing.values(), timings), jobs) for name, survey in surveys.items()
        ]
        notes = [
            f"{name}: {num} runs cannot be computed: {reason}"
            for name, survey in surveys.items()
            for reason, num in survey.blocked.items()
        ]
        together = Survey.of([spec for specs in groups.values() for spec in specs], store)
        total = estimate(together.missing.values(), timings)
        if len(rows) > 1:
            rows.append(_row("total", together, total, jobs))
        if total.runs:
            notes.insert(0, f"{jobs} parallel runs; time estimated {total.basis}")
        return cls(rows, notes)

    def text(self, column: str) -> str:
        """A table, followed by the notes. ``column``: title of the names."""
        columns = (column, "runs stored", "missing", "time", "memory", "disk")
        return "\n".join([table(columns, [_cells(row) for row in self.rows]), *self.notes])


def _row(name: str, survey: Survey, cost: Cost, jobs: int) -> dict[str, Any]:
    numbers = {"seconds": cost.wall(jobs), "memory": cost.memory(jobs), "disk": cost.disk}
    missing = len(survey.missing) + survey.num_blocked
    return {"name": name, "stored": survey.stored, "missing": missing} | (
        numbers if cost.runs else dict.fromkeys(numbers)
    )


def _cells(row: Mapping[str, Any]) -> list[object]:
    forms = {"seconds": duration, "memory": size, "disk": size}
    costs = [None if row[name] is None else form(row[name]) for name, form in forms.items()]
    return [row["name"], row["stored"], row["missing"], *costs]

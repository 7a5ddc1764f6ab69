"""How cells of a paper's tables are matched with stored runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pfl_core.study.published import parse_variant

Fields = dict[str, float | str]


@dataclass(frozen=True)
class Miss:
    """What explains numbers that are not reproduced, or what is open and the run that would answer it.

    It covers the cells of a data set and a method (of all if empty) whose variant contains ``variant``.
    """

    why: str
    dataset: str = ""
    method: str = ""
    variant: str = ""
    run: str = ""  # a command
    hours: float | None = None  # core hours that it takes

    def covers(self, cell: Any) -> bool:
        """Whether this explains the cell, a row of ``compare.as_frame``."""
        named = all(
            name in ("", of_cell) for name, of_cell in ((self.dataset, cell.dataset), (self.method, cell.method))
        )
        return named and self.variant in cell.variant


CONTEXT = {"T", "batch_size", "target"}  # fields in a paper's tables that the preset determines


@dataclass(frozen=True)
class Comparison:
    """How cells of a paper's tables are matched with stored runs.

    The keys of the mappings are the paper's names, the values this project's names, unless stated otherwise.
    """

    paper: str
    defaults: Mapping[str, float | str]  # fields of the main results; other values belong to other experiments
    datasets: Mapping[str, str]
    varied: tuple[str, ...] = ("alpha",)  # fields whose values the claims compare
    stand_ins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # shown if the paper's data set is missing
    # The paper's data set -> settings whose runs belong to its tables. Other settings have other clients, partitions or
    # epochs, for a figure or another table.
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, float] = field(default_factory=dict)  # metric -> factor from the stored unit to the paper's
    fields: Mapping[str, str] = field(default_factory=dict)
    # (table, method) -> another table, whose best row is the cell's value
    best_of: Mapping[tuple[str, str], str] = field(default_factory=dict)
    misses: tuple[Miss, ...] = ()  # of a cell, the first one that covers it counts

    def defaults_of(self, method: str) -> Fields:
        """A method's fields in the paper's main results."""
        return dict(self.defaults)

    def run_fields(self, run: Mapping[str, Any], fields: Fields) -> Fields:
        """A stored run's fields under the paper's names; ``fields`` are those of its variant."""
        return fields

    def cell_fields(self, cell: Any, variant: str) -> Fields:
        """The fields of the runs that match a cell."""
        parsed = {name: value for name, value in parse_variant(variant).items() if name not in CONTEXT}
        return {self.fields.get(name, name): value for name, value in parsed.items()}

    def cell_metric(self, cell: Any, variant: str) -> str:
        """The metric of a cell."""
        return self.metrics.get(cell.metric, cell.metric)

    def cell_method(self, cell: Any) -> str:
        """The method whose runs match a cell."""
        return cell.key

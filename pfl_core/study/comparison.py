"""How the cells of a paper's tables and stored runs are matched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pfl_core.study.published import parse_variant

Fields = dict[str, float | str]
CONTEXT = {"T", "batch_size", "target"}  # fields of a column of the paper's table, which the preset has


@dataclass(frozen=True)
class Comparison:
    """How the cells of a paper's tables and stored runs are matched.

    The names on the left of a mapping are the paper's, those on the right the project's.
    """

    paper: str
    defaults: Mapping[str, float | str]  # fields of the main results; any other value is an experiment of its own
    datasets: Mapping[str, str]
    varied: tuple[str, ...] = ("alpha",)  # fields whose values the claims compare
    stand_ins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # shown where the paper's own set is missing
    # Experiments whose runs are a data set's tables; the others have other clients, splits or epochs, for a figure or
    # another table.
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, float] = field(default_factory=dict)  # metric -> factor from the stored unit to the paper's
    fields: Mapping[str, str] = field(default_factory=dict)
    best_of: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (table, method) -> table of its settings

    def defaults_of(self, method: str) -> Fields:
        """A method's fields in the paper's main results."""
        return dict(self.defaults)

    def run_fields(self, run: Mapping[str, Any], fields: Fields) -> Fields:
        """A stored run's fields in the paper's words; ``fields`` are those of its variant."""
        return fields

    def cell_fields(self, cell: Any, variant: str) -> Fields:
        """The fields that a cell's run has."""
        found = {name: value for name, value in parse_variant(variant).items() if name not in CONTEXT}
        return {self.fields.get(name, name): value for name, value in found.items()}

    def cell_metric(self, cell: Any, variant: str) -> str:
        return self.metrics.get(cell.metric, cell.metric)

    def cell_method(self, cell: Any) -> str:
        """The method whose runs fill a cell."""
        return cell.key

"""A study as one object: settings, experiments, searches; of a paper also comparison and claims.

Shared code receives it as argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from pfl_core.runs import Record, RunSpec
from pfl_core.study import published
from pfl_core.study.claims import ClaimChecks, claims_table
from pfl_core.study.compare import as_frame, compare
from pfl_core.study.comparison import Comparison
from pfl_core.study.metrics import ExtraMetrics, RunMetrics, metrics_frame, run_metrics, variant
from pfl_core.study.presets import PRESETS
from pfl_core.study.search import Search, searched_path
from pfl_core.study.settings import PaperSettings

Experiment = Callable[[str, Sequence[int], Mapping[str, Any]], list[RunSpec]]  # preset, seeds, overrides -> runs


class Measured(NamedTuple):
    """Claims about measurements, such as times, in place of runs."""

    claims: tuple[int, ...]  # their numbers
    committed: Callable[[str], pd.DataFrame]  # preset -> the committed measurements as results; empty if there are none


@dataclass(frozen=True)
class Study:
    """Settings, the runs of notebooks, and the searches. ``Paper`` adds what belongs to a published paper."""

    settings: PaperSettings
    experiments: Mapping[str, Experiment]  # notebook -> its runs
    seeds: Mapping[str, Mapping[str, tuple[int, ...]]]  # notebook -> preset -> seeds; "": default of all notebooks
    extra_metrics: tuple[ExtraMetrics, ...] = ()  # functions from a record to metrics that only this study has
    searches: Mapping[tuple[str, str], Sequence[Search]] = field(default_factory=dict)  # (preset, setting) -> searches
    title: str = ""  # the name of its method, as printed
    question: str = ""  # what it asks
    figure: str = ""  # the main figure, relative to figures/, without suffix
    # what is stored -> the answer. Of a paper: `report.Evidence` -> sentences, of which the first three are the answer.
    # Of another study: the runs of one preset -> a text for each data set, whose later lines are the parts.
    answer: Callable[[Any], list[str]] = lambda stored: []

    @property
    def name(self) -> str:
        return self.settings.paper

    @property
    def presets(self) -> tuple[str, ...]:
        """The presets that it has settings for, the smallest first."""
        return tuple(preset for preset in PRESETS if preset in self.settings.settings)

    @property
    def searched(self) -> Path:
        """The file with the values that the searches chose."""
        return searched_path(self.name)

    def specs(
        self, notebook: str, preset: str, seeds: Sequence[int] | None = None, overrides: Mapping[str, Any] | None = None
    ) -> list[RunSpec]:
        """The runs of a notebook ("01_main_comparison"). ``seeds``: default those of the preset.

        ``overrides`` are fields of the run or its training. Runs that differ from the preset's are marked as changed.
        Raises ValueError for an unknown setting, and for a preset that the study does not have.
        """
        self.settings.of(preset)
        if notebook not in self.experiments:
            known = ", ".join(self.experiments)
            raise ValueError(f"{self.name} has no notebook {notebook!r} with runs; choose from {known}")
        if seeds is None:
            seeds = {**self.seeds[""], **self.seeds.get(notebook, {})}[preset]
        experiment = self.experiments[notebook]
        specs = experiment(preset, seeds, overrides or {})
        if not overrides:
            return specs
        preset_runs = {_identity(spec) for spec in experiment(preset, seeds, {})}
        return [replace(spec, changed=_identity(spec) not in preset_runs) for spec in specs]

    def variant(self, spec: RunSpec) -> str:
        """The fields in which a run's method differs from this study's settings."""
        return variant(spec, self.settings.fields_of(spec))

    def metrics_frame(self, records: Iterable[Record]) -> pd.DataFrame:
        """A row per run and metric, for the records of this study."""
        return metrics_frame(self.run_metrics(record) for record in records if record.spec.paper == self.name)

    def run_metrics(self, record: Record) -> RunMetrics:
        """Tags and metrics of a record of this study, see ``metrics.run_metrics``."""
        return run_metrics(record, self.settings, self.extra_metrics)


@dataclass(frozen=True)
class Paper(Study):
    """The study of a paper, with the checks of its tables and claims."""

    comparison: Comparison = field(kw_only=True)
    claims: ClaimChecks = field(kw_only=True)
    measured: Measured | None = None

    def __post_init__(self) -> None:
        names = {self.settings.paper, self.comparison.paper, self.claims.comparison.paper}
        if len(names) > 1:
            raise ValueError(f"settings, comparison and claims belong to different papers: {', '.join(sorted(names))}")

    def table(self, number: int | str | None = None) -> pd.DataFrame:
        """The paper's printed numbers, see ``published.table``."""
        return published.table(self.name, number)

    def remarks(self, *tables: str) -> list[str]:
        """Remarks on the printed numbers, see ``published.remarks``."""
        return published.remarks(self.name, *tables)

    def compare(self, results: pd.DataFrame) -> pd.DataFrame:
        """The paper's tables with the stored results, see ``compare.compare``."""
        return as_frame(compare(self.comparison, results))

    def claims_table(self, results: pd.DataFrame, numbers: list[int] | None = None) -> pd.DataFrame:
        """The paper's claims with verdicts, see ``claims.claims_table``."""
        return claims_table(self.claims, results, numbers)

    def verdicts(self, preset: str, results: pd.DataFrame) -> pd.DataFrame:
        """``claims_table`` of the runs at a preset; claims about measurements are judged by the committed ones."""
        table = self.claims_table(results)
        measurements = self.measured.committed(preset) if self.measured else pd.DataFrame()
        if self.measured is None or measurements.empty:
            return table
        judged = self.claims_table(measurements, list(self.measured.claims))
        return pd.concat([table.drop(index=judged.index), judged]).sort_index()


def _identity(spec: RunSpec) -> str:
    """The identity of a run, independent of its device."""
    return str(replace(spec, device="cpu").identity())

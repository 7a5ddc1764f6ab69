"""One paper's study as one object: settings, experiments, comparison, claims. Shared code receives it as argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from pfl_core.runs import Record, RunSpec
from pfl_core.study import published
from pfl_core.study.claims import ClaimChecks, claims_table
from pfl_core.study.compare import as_frame, compare
from pfl_core.study.comparison import Comparison
from pfl_core.study.metrics import ExtraMetrics, RunMetrics, metrics_frame, run_metrics, variant
from pfl_core.study.presets import check_preset
from pfl_core.study.search import Search, searched_path
from pfl_core.study.settings import PaperSettings

Experiment = Callable[[str, Sequence[int], Mapping[str, Any]], list[RunSpec]]  # preset, seeds, overrides -> runs


@dataclass(frozen=True)
class Paper:
    """A paper's settings, the runs of its notebooks, and the checks of its tables and claims."""

    settings: PaperSettings
    experiments: Mapping[str, Experiment]  # notebook -> its runs
    seeds: Mapping[str, Mapping[str, tuple[int, ...]]]  # notebook -> preset -> seeds; "": default of all notebooks
    comparison: Comparison
    claims: ClaimChecks
    extra_metrics: tuple[ExtraMetrics, ...] = ()  # functions from a record to metrics that only this paper has
    searches: Mapping[tuple[str, str], Sequence[Search]] = field(default_factory=dict)  # (preset, setting) -> searches
    title: str = ""  # the name of its method, as printed
    question: str = ""  # what its study asks
    figure: str = ""  # the main figure, relative to figures/, without suffix
    answer: Callable[[Any], list[str]] = (
        lambda evidence: []
    )  # `report.Evidence` -> sentences that open its results page

    def __post_init__(self) -> None:
        names = {self.settings.paper, self.comparison.paper, self.claims.comparison.paper}
        if len(names) > 1:
            raise ValueError(f"settings, comparison and claims belong to different papers: {', '.join(sorted(names))}")

    @property
    def name(self) -> str:
        return self.settings.paper

    @property
    def searched(self) -> Path:
        """The file with the values that the searches chose."""
        return searched_path(self.name)

    def specs(
        self, notebook: str, preset: str, seeds: Sequence[int] | None = None, overrides: Mapping[str, Any] | None = None
    ) -> list[RunSpec]:
        """The runs of a notebook ("01_main_comparison"). ``seeds``: default those of the preset.

        ``overrides`` are fields of the run or its training. Runs that differ from the preset's are marked as changed.
        Raises ValueError for an unknown preset or setting.
        """
        check_preset(preset)
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
        """The fields in which a run's method differs from this paper's settings."""
        return variant(spec, self.settings.fields_of(spec))

    def metrics_frame(self, records: Iterable[Record]) -> pd.DataFrame:
        """A row per run and metric, for the records of this paper."""
        return metrics_frame(self.run_metrics(record) for record in records if record.spec.paper == self.name)

    def run_metrics(self, record: Record) -> RunMetrics:
        """Tags and metrics of a record of this paper, see ``metrics.run_metrics``."""
        return run_metrics(record, self.settings, self.extra_metrics)

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


def _identity(spec: RunSpec) -> str:
    """The identity of a run, independent of its device."""
    return str(replace(spec, device="cpu").identity())

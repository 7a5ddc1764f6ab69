"""A study as one object: settings, experiments, searches, claims; of a paper also its tables.

Shared code receives it as argument.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from pfl_core.data import data_dir
from pfl_core.options import choices
from pfl_core.runs import Record, RunSpec, Store
from pfl_core.runs.index import indexed
from pfl_core.study import claims, frame, parameters, published, stored
from pfl_core.study.compare import as_frame, compare
from pfl_core.study.methods import NAMES
from pfl_core.study.presets import DECIDING, PRESETS
from pfl_core.study.search import Search, searched_path
from pfl_core.study.settings import PaperSettings

Experiment = Callable[[str, Sequence[int], Mapping[str, Any]], list[RunSpec]]  # preset, seeds, overrides -> runs
ExtraMetrics = Callable[[Record], dict[str, float]]
HIDDEN = ("partition_alpha",)  # fields that tell no method from another


@dataclass(frozen=True)
class Study:
    """Settings, the runs of notebooks, searches and claims. ``Paper`` adds the tables of a published paper."""

    settings: PaperSettings
    experiments: Mapping[str, Experiment]  # notebook -> its runs
    seeds: Mapping[str, Mapping[str, tuple[int, ...]]]  # notebook -> preset -> seeds; "": default of all notebooks
    extra_metrics: tuple[ExtraMetrics, ...] = ()  # functions from a record to metrics that only this study has
    searches: Mapping[tuple[str, str], Sequence[Search]] = field(default_factory=dict)  # (preset, setting) -> searches
    title: str = ""  # the name of its method, as printed
    question: str = ""  # what it asks
    figure: str = ""  # the main figure, relative to figures/, without suffix

    # ---- claims: see ``study.claims`` ----
    claims: claims.Claims = field(default_factory=claims.Claims)
    score: str = "acc_mean"  # the metric of claims that name none
    # of a run's spec and changed fields: these as tables and claims name them
    renamed: Callable[[RunSpec, dict[str, Any]], dict[str, Any]] = lambda spec, changed: changed
    removed: Callable[[frame.Row], bool] = lambda row: False  # whether a run's fields remove the mechanism
    stands_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # setting on other data -> the paper's
    # at preset real, what follows the settings' names where rates were searched, before those where they were not
    searched_first: tuple[str, ...] = ("",)
    symbols: Mapping[str, str] = field(default_factory=dict)  # field -> how texts name it
    measured_rows: Callable[[], Iterable[frame.Row]] = tuple  # of committed measurements, such as times

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
        Raises ValueError for a notebook without runs, and for a preset that the study does not have.
        """
        self.settings.of(preset)
        if notebook not in self.experiments:
            known = ", ".join(self.experiments)
            raise ValueError(f"{self.name} has no notebook {notebook!r} with runs; choose from {known}")
        if seeds is None:
            seeds = self.preset_seeds(notebook, preset)
        experiment = self.experiments[notebook]
        specs = experiment(preset, seeds, overrides or {})
        if not overrides:
            return specs
        preset_runs = {_identity(spec) for spec in experiment(preset, seeds, {})}
        return [replace(spec, changed=_identity(spec) not in preset_runs) for spec in specs]

    # ---- the frame and its long forms: see ``study.frame`` ----

    rounds = staticmethod(frame.rounds)
    clients = staticmethod(frame.clients)
    checks = staticmethod(frame.checks)
    records = staticmethod(frame.records)
    about = staticmethod(frame.about)

    def runs(
        self,
        notebook: str,
        preset: str,
        seeds: parameters.Seeds = None,
        overrides: Mapping[str, Any] | str | None = None,
        train: bool | str = False,
    ) -> pd.DataFrame:
        """A row per run of a notebook; its columns are listed in ``pfl_core.study.frame``.

        Missing runs are computed or listed, see ``stored.read_or_compute``. The arguments are a notebook's parameters,
        in any form that papermill passes, see ``study.parameters``; raises BadParameter, a ValueError, for others.
        Column ``overrides``: for the caption, as text.
        """
        try:
            chosen, fields = parameters.seeds_of(seeds), parameters.overrides_of(overrides)
            wanted, trains = self.specs(notebook, preset, chosen, fields), parameters.truth_of(train)
        except ValueError as error:
            raise parameters.BadParameter(str(error)) from None
        records = stored.read_or_compute(wanted, trains, notebook=f"{self.name}/{notebook}")
        found = self.frame(records)
        return found.assign(overrides=", ".join(f"{name} = {value}" for name, value in fields.items()))

    def preset_seeds(self, notebook: str, preset: str) -> tuple[int, ...]:
        """The seeds that a preset has for a notebook."""
        return {**self.seeds[""], **self.seeds.get(notebook, {})}[preset]

    def frame(self, records: Iterable[Record]) -> pd.DataFrame:
        """A row per record of this study."""
        return frame.frame(frame.row_of(record, self) for record in records if record.spec.paper == self.name)

    def stored(self, store: Store) -> pd.DataFrame:
        """A row per record of this study in the store, read through the store's index."""
        return frame.frame(indexed(store, "frame", lambda record, _: frame.row_of(record, self), self.name))

    def committed(self, *presets: str) -> pd.DataFrame:
        """A row per committed record of these presets, whatever notebook it was made for; nothing is computed."""
        rows = self.stored(Store(root=data_dir() / "runs" / "cache" / "committed"))  # no records, but their index
        return rows[rows["preset"].isin(presets)]

    def with_committed(self, runs: pd.DataFrame) -> pd.DataFrame:
        """All committed runs that can decide, by which the results page judges, if these are among them; else these.

        So smaller runs, runs with overrides and your own, which may be on other files of the data, stand alone.
        """
        if not runs["preset"].isin(DECIDING).all():
            return runs
        committed = self.committed(*DECIDING)
        return committed if runs["key"].isin(committed["key"]).all() else runs

    def variant(self, spec: RunSpec) -> str:
        """The fields in which a run's method differs from this study's settings, as text."""
        return frame.variant(frame.changed_fields(spec, self.settings.fields_of(spec)))

    # ---- claims ----

    def judge(self, runs: pd.DataFrame, numbers: Iterable[int] | None = None) -> pd.DataFrame:
        """What these runs say of the claims with these numbers (default: of all), an effect a row."""
        return claims.table(claims.judge(self, runs, numbers))

    @property
    def printed_cells(self) -> Mapping[tuple[str, str, str], Sequence[dict[str, Any]]]:
        """Printed numbers by table, setting and method; none without a paper."""
        return {}

    @cached_property
    def _usual(self) -> dict[str, dict[str, Any]]:
        return {}

    def usual_fields(self, method: str) -> Mapping[str, Any]:
        """The fields of a method at the largest preset, for which a claim names no other value."""
        if method not in self._usual:
            spec = self.settings.before_search().spec(method, preset=self.presets[-1])
            self._usual[method] = asdict(spec.build_method())
        return self._usual[method]

    def check_names(self, method: str, fields: Iterable[str], columns: Collection[str]) -> None:
        """Raises ValueError for an unknown method, and for a field that no run and no printed number can have."""
        known = (self.usual_fields(method), columns, self._printed_fields, frame.OF_RUN)
        for name in fields:
            if not any(name in names for names in known) and not name.startswith(frame.PREFIXES):
                raise ValueError(f"{self.name}: {method} has no field {name!r}{choices(name, chain(*known))}")

    @cached_property
    def _printed_fields(self) -> set[str]:
        return {name for cells in self.printed_cells.values() for cell in cells for name in cell["fields"]}

    def label(self, method: str, fields: Mapping[str, Any]) -> str:
        """What a claim picks, in short: "Ditto", "α = 0.3"."""
        shown = [f"{self.symbols.get(n, n)} = {frame.as_text(value)}" for n, value in fields.items() if n not in HIDDEN]
        return ", ".join([*([NAMES[method]] if method != self.name or not shown else []), *shown])


@dataclass(frozen=True)
class Paper(Study):
    """The study of a paper, with its tables."""

    tables: published.Tables = field(kw_only=True)
    # the effects of the picture of all papers: claim, setting, effect as ``claims.Found`` names it, and in words; of an
    # effect that is asked in several settings, all with an interval
    headline: Sequence[tuple[int, str, str, str]] = ()

    def table(self, number: int | str | None = None) -> pd.DataFrame:
        """The paper's printed numbers as printed, see ``published.table``."""
        return published.table(self.name, number)

    def printed(self, number: int | str | None = None) -> pd.DataFrame:
        """The paper's printed numbers in the columns of the frame, see ``published.printed``."""
        return published.printed(self.name, self.tables, number)

    def remarks(self, *tables: str) -> list[str]:
        """Remarks on the printed numbers, see ``published.remarks``."""
        return published.remarks(self.name, *tables)

    @cached_property
    def printed_cells(self) -> Mapping[tuple[str, str, str], Sequence[dict[str, Any]]]:
        """The printed numbers by table, setting and method, see ``published.cells``."""
        groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
        for cell in published.cells(self.name, self.tables):
            groups.setdefault((cell["table"], cell["setting"], cell["method"]), []).append(cell)
        return groups

    def compare(self, runs: pd.DataFrame) -> pd.DataFrame:
        """The paper's tables beside the runs of a frame, see ``compare.compare``."""
        return as_frame(compare(self, runs))


def _identity(spec: RunSpec) -> str:
    """The identity of a run, independent of its device."""
    return str(replace(spec, device="cpu").identity())

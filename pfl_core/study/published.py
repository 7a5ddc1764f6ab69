"""The papers' tables as printed, including their errors, and which runs their cells are about."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from pfl_core.runs.provenance import ROOT
from pfl_core.study.methods import PRINTED

PRINTED_TABLES = Path(__file__).with_name("printed")  # in a wheel, see setup.py
FOLDER = PRINTED_TABLES if PRINTED_TABLES.is_dir() else ROOT / "data" / "paper"
CONTEXT = {"T", "batch_size", "target"}  # fields in a paper's tables that the setting determines
SYMBOLS = {"eta_g": "η_g", "lambda": "λ", "tau": "τ", "alpha": "α"}  # fields of variants
METRICS = {  # parts of names
    "acc_bottom_decile": "worst tenth",
    "acc_mean": "mean accuracy",
    "comm_mb_per_client_per_round": "MiB sent in a round",
    "flops_1e10_per_round": "operations in a round",
    "pct": " %",
    "_": " ",
}
COLUMNS = ["paper", "table", "dataset", "method", "key", "variant", "metric", "value", "std", "note"]


def table(paper: str, number: int | str | None = None) -> pd.DataFrame:
    """One table of a paper, or all of them: a row per printed number, columns COLUMNS.

    ``variant`` is text such as "lambda=2.0;tau=0.5", or '' (see ``parse_variant``). ``value`` is NaN if the paper has
    no number; it has the paper's unit (Star-PFL: accuracy from 0 to 1). ``note`` is a remark on the cell, or ''.
    ``key`` is the method's registered name. Raises ValueError for an unknown paper or table.
    """
    files, wanted = _files(paper), number and f"table{str(number).removeprefix('table')}"
    if wanted and wanted not in files:
        available = ", ".join(name.removeprefix("table") for name in files)
        raise ValueError(f"{paper}: table {number!r} is not available; choose one of {available}")
    chosen = [files[wanted]] if wanted else files.values()
    return pd.concat([_read(paper, path) for path in chosen], ignore_index=True)


def parse_variant(text: str) -> dict[str, float | str]:
    """'alpha=0.3;base=fedprox' -> {'alpha': 0.3, 'base': 'fedprox'}. A part without '=' is the value of "rule"."""
    fields: dict[str, float | str] = {}
    for part in filter(None, text.split(";")):
        name, sign, value = map(str.strip, part.partition("="))
        key, shown = (name, value) if sign else ("rule", name)
        try:
            fields[key] = float(shown)
        except ValueError:
            fields[key] = shown
    return fields


def titled(table: str) -> str:
    """A table as texts name it: "Table 2" for ``table2``, "Figure 5" for ``figure5``."""
    return table.replace("table", "Table ").replace("figure", "Figure ")


def method_of(cell: Any) -> str:
    """A cell's method with its fields, as texts name it: "FedAvg+PeWS, λ = 2"."""
    texts = {
        name: f"{value:g}" if isinstance(value, float) else value.replace("_", " ")
        for name, value in parse_variant(cell.variant).items()
        if name not in CONTEXT
    }
    words = [titled(text) if name == "rule" else f"{SYMBOLS.get(name, name)} = {text}" for name, text in texts.items()]
    return ", ".join([cell.method, *words])


def panel_of(cell: Any) -> str:
    """A cell's table and metric, as texts name them: "Table 1, worst tenth"."""
    return f"{titled(cell.table)}, {_in_words(cell.metric)}"


def _in_words(metric: str) -> str:
    for code, words in METRICS.items():
        metric = metric.replace(code, words)
    return metric


def remarks(paper: str, *tables: str) -> list[str]:
    """The notes on some tables (default: all) as lines, 'Table 3, CIFAR-10: ...'."""
    shown: dict[str, Callable[[str], str]] = {"table": titled, "metric": _in_words}
    selected = [note for note in facts(paper).get("note", []) if not tables or note["table"] in tables]
    cells = [", ".join(shown.get(name, str)(note[name]) for name in COLUMNS if name in note) for note in selected]
    return [f"{cell}: {note['text']}" for cell, note in zip(cells, selected, strict=True)]


@cache
def facts(paper: str) -> dict:
    """The paper's TOML file: errata, notes on cells, and misses (the fields of ``Miss``).

    A note has a ``text``, and names its cells by table, dataset, method and metric; a key that is missing matches any.
    """
    _files(paper)
    return tomllib.loads((FOLDER / f"{paper}.toml").read_text(encoding="utf-8"))


def _files(paper: str) -> dict[str, Path]:
    """Table name -> file, by table number."""
    known = sorted(path.stem for path in FOLDER.glob("*.toml"))
    if known and paper not in known:
        raise ValueError(f"unknown paper {paper!r}; choose one of {', '.join(known)}")
    files = {path.stem.removeprefix(f"{paper}_"): path for path in FOLDER.glob(f"{paper}_table*.csv")}
    if not files:
        raise FileNotFoundError(f"no tables of {paper!r} in {FOLDER}; restore data/paper from the repository")
    return dict(sorted(files.items(), key=lambda item: int(item[0].removeprefix("table"))))


@cache
def _read(paper: str, path: Path) -> pd.DataFrame:
    frame = pd.read_csv(path, keep_default_na=False, na_values={"value": [""], "std": [""]})
    frame = frame.assign(paper=paper, key=frame["method"].map(PRINTED))
    frame = frame.reindex(columns=COLUMNS).astype({"value": float, "std": float})  # only FedPeWS has std and note
    frame["note"] = frame["note"].astype(object).fillna("")
    for note in facts(paper).get("note", []):
        names = [name for name in note if name != "text"]
        cells = (frame[names] == [note[name] for name in names]).all(axis=1)
        frame.loc[cells, "note"] = [f"{old}; {note['text']}".removeprefix("; ") for old in frame.loc[cells, "note"]]
    return frame


# ---- which runs the cells are about ---------------------------------------------------------------------------------


ANY = object()  # equals every value: a field that a table varies without printing it


@dataclass(frozen=True)
class Runs:
    """The runs that a cell is about: a method's registered name, its fields (and other columns of the frame), and what
    follows the comma in the setting's name ("sampled"). ``setting``: if it is not the first one of the data set."""

    method: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    suffix: str = ""
    setting: str = ""


@dataclass(frozen=True)
class Miss:
    """What explains numbers that are not reproduced, or what is open and the run that would answer it.

    It covers the cells of a data set and a method (of all if empty) whose variant contains ``variant``. Of several that
    cover a cell, the first counts.
    """

    why: str
    dataset: str = ""
    method: str = ""
    variant: str = ""
    run: str = ""  # a command
    hours: float | None = None  # core hours that it takes

    def covers(self, cell: Any) -> bool:
        """Whether this explains the cell, a row of ``compare.as_frame``."""
        named = all(name in ("", other) for name, other in ((self.dataset, cell.dataset), (self.method, cell.method)))
        return named and self.variant in cell.variant


@dataclass(frozen=True)
class Tables:
    """What a paper's tables call data sets, metrics and fields, and the runs of each cell."""

    datasets: Mapping[str, str]  # as printed -> the column ``dataset`` of the frame
    # as printed -> settings whose runs belong to the tables; default: the one with the data set's name
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # as printed -> metrics of the frame, or a function of the cell; the first of several is compared
    metrics: Mapping[str, str | tuple[str, ...]] | Callable[[Any], str | tuple[str, ...]] = field(default_factory=dict)
    units: Mapping[str, float] = field(default_factory=dict)  # metric -> factor from the frame's unit to the paper's
    # of a cell whose metric is relative to another method: the printed number of that method, for claims alone
    relative_to: Callable[[Any], float] = lambda cell: 1.0
    fields: Mapping[str, str] = field(default_factory=dict)  # printed field -> column of the frame
    # the runs of a cell, from its row and the fields of its variant; of several, the first is compared with the cell
    runs: Callable[[Any, dict[str, Any]], Iterable[Runs]] = lambda cell, fields: [Runs(cell.key, fields)]
    stand_ins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # as printed -> data sets, best first
    # (table, method) -> another table, whose best row is the cell's value
    best_of: Mapping[tuple[str, str], str] = field(default_factory=dict)
    figures: tuple[str, ...] = ()  # files with numbers that the text on a figure prints, for claims alone: "figure5"

    def settings_of(self, dataset: str) -> tuple[str, ...]:
        """The settings whose runs belong to the cells of a data set, the first one's for claims."""
        return self.settings.get(dataset, (self.datasets.get(dataset, dataset),))

    def runs_of(self, cell: Any, variant: str | None = None) -> list[Runs]:
        """The runs that a cell (a row of ``table``) is about; none if no run has its number."""
        parsed = parse_variant(cell.variant if variant is None else variant)
        return list(self.runs(cell, {self.fields.get(n, n): value for n, value in parsed.items() if n not in CONTEXT}))

    def metrics_of(self, cell: Any) -> tuple[str, ...]:
        """The metrics of the frame that a cell is about."""
        known = self.metrics(cell) if callable(self.metrics) else self.metrics.get(cell.metric, cell.metric)
        return (known,) if isinstance(known, str) else known


def cells(paper: str, tables: Tables) -> list[dict[str, Any]]:
    """The printed numbers for claims: table, setting, method, fields, metrics and value of each.

    Values have the frame's unit. A cell about several kinds of runs has a row for each. A target that the paper does
    not reach in its T rounds counts as T + 1 rounds, as in the runs.
    """
    rows = []
    figures = [_read(paper, FOLDER / f"{paper}_{name}.csv") for name in tables.figures]
    for cell in pd.concat([table(paper), *figures]).itertuples():
        value, length = cell.value, parse_variant(cell.variant).get("T")
        if math.isnan(value) and cell.metric.startswith("rounds_to") and isinstance(length, float):
            value = length + 1
        value = value / tables.units.get(cell.metric, 1.0) / tables.relative_to(cell)
        setting = tables.settings_of(cell.dataset)[0]
        for runs in tables.runs_of(cell):
            name = ", ".join(filter(None, (runs.setting or setting, runs.suffix)))
            known = {"table": cell.table, "setting": name, "method": runs.method, "fields": dict(runs.fields)}
            rows.append({**known, "metrics": tables.metrics_of(cell), "value": value})
    return rows


def printed(paper: str, tables: Tables, number: int | str | None = None) -> pd.DataFrame:
    """The paper's numbers in the columns of the frame: a row per data set and kind of runs, a column per metric.

    A field that the table varies without printing it, and one that it does not name, is missing.
    """
    rows: dict[str, dict[str, Any]] = {}
    for cell in cells(paper, tables):
        if number is None or cell["table"] == f"table{str(number).removeprefix('table')}":
            fields = {name: None if value is ANY else value for name, value in cell["fields"].items()}
            tags = {"table": cell["table"], "setting": cell["setting"], "method": cell["method"], **fields}
            rows.setdefault(str(tags), tags).update(dict.fromkeys(cell["metrics"], cell["value"]))
    return pd.DataFrame(rows.values())

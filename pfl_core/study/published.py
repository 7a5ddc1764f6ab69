"""The papers' tables as printed, including their errors, with this project's name of each method."""

from __future__ import annotations

import math
import tomllib
from functools import cache
from pathlib import Path

import pandas as pd

from pfl_core.runs.provenance import ROOT

FOLDER = ROOT / "data" / "paper"
COLUMNS = ["paper", "table", "dataset", "method", "key", "variant", "metric", "value", "std", "note"]

# Name in a paper -> name in the registry. "FedProx+PeWS" is FedPeWS on another base.
METHODS = {
    "Local": "local",
    "Local Only": "local",
    "FedAvg": "fedavg",
    "FedAvg + FT": "fedavg_ft",
    "FedAvg-FT": "fedavg_ft",
    "FedSelect": "fedselect",
    "Ditto": "ditto",
    "FedPAC": "fedpac",
    "FedRep": "fedrep",
    "FedPer": "fedper",
    "FedBABU": "fedbabu",
    "LG-FedAvg": "lg_fedavg",
    "LotteryFL": "lotteryfl",
    "FedAvg+PeWS": "fedpews",
    "FedProx+PeWS": "fedpews",
    "FedPeWS-Fixed": "fedpews_fixed",
    "FedProx": "fedprox",
    "SCAFFOLD": "scaffold",
    "FedNova": "fednova",
    "MOON": "moon",
    "pFedGate": "pfedgate",
    "pFedMe": "pfedme",
    "Per-FedAvg": "perfedavg",
    "FedEM": "fedem",
    "FedMask": "fedmask",
    "HeteroFL": "heterofl",
    "FedMD": "fedmd",
    "Star-PFL": "star_pfl",
    "FedBN": "fedbn",
    "FedAP": "fedap",
}


def table(paper: str, number: int | str | None = None) -> pd.DataFrame:
    """One table of a paper, or all of them: a row per printed number, columns COLUMNS.

    ``variant`` is text such as "lambda=2.0;tau=0.5", or '' (see ``parse_variant``). ``value`` is NaN if the paper has
    no number; it has the paper's unit (Star-PFL: accuracy from 0 to 1). ``note`` is a remark on the cell, or ''.
    ``key`` is the method's registered name. Raises ValueError for an unknown paper or table.
    """
    files = _files(paper)
    if number is None:
        names = list(files)
    else:
        names = [f"table{str(number).removeprefix('table')}"]
        if names[0] not in files:
            available = ", ".join(name.removeprefix("table") for name in files)
            raise ValueError(f"{paper}: table {number!r} is not available; choose one of {available}")
    return pd.concat([_read(paper, files[name]) for name in names], ignore_index=True)


def parse_variant(text: str) -> dict[str, float | str]:
    """'alpha=0.3;base=fedprox' -> {'alpha': 0.3, 'base': 'fedprox'}. A part without '=' is the value of "rule"."""
    fields: dict[str, float | str] = {}
    for part in filter(None, text.split(";")):
        name, sign, value = part.partition("=")
        fields[name.strip() if sign else "rule"] = _number(value) if sign else name.strip()
    return fields


def notes(paper: str) -> list[dict[str, str]]:
    """Remarks on cells: ``text``, and the cells by table, dataset, method, metric (a missing key matches any)."""
    return facts(paper).get("note", [])


def remarks(paper: str, *tables: str) -> list[str]:
    """The notes on some tables (default: all) as lines, 'table3, CIFAR-10: ...'."""
    selected = [note for note in notes(paper) if not tables or note["table"] in tables]
    return [f"{', '.join(note[c] for c in COLUMNS if c in note)}: {note['text']}" for note in selected]


@cache
def facts(paper: str) -> dict:
    """The paper's TOML file: claims and notes."""
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
    optional = {"std": math.nan, "note": ""}  # columns that only FedPeWS's files have
    frame = frame.assign(**{name: empty for name, empty in optional.items() if name not in frame.columns})
    frame = frame.assign(paper=paper, key=frame["method"].map(METHODS))[COLUMNS].astype({"value": float, "std": float})
    # append each note to the cells that it is about
    for note in notes(paper):
        cells = pd.Series(True, index=frame.index)
        for column in note.keys() - {"text"}:
            cells &= frame[column] == note[column]
        frame.loc[cells, "note"] = [f"{old}; {note['text']}".removeprefix("; ") for old in frame.loc[cells, "note"]]
    return frame


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text.strip()

"""Which evidence is complete: the notebooks whose runs at preset real or paper are all stored, with their seeds.

``data/results/manifest.json`` is written by ``pfl runs manifest`` and read by ``pfl figures --evidence``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pfl_core.papers import PAPERS, paper, specs
from pfl_core.runs import Store
from pfl_core.runs.store import atomic_write

PRESETS = ("paper", "real")
MOST_SEEDS = 10
NAME = "manifest.json"


@dataclass(frozen=True)
class Evidence:
    """One notebook at one preset."""

    notebook: str
    preset: str
    seeds: list[int]
    keys: list[str]  # of its records


def complete(store: Store) -> list[Evidence]:
    """For each notebook the preset with most seeds, from 0 on, that have all their runs; paper before real."""
    found = []
    for notebook in (f"{name}/{section}" for name in PAPERS for section in paper(name).experiments):
        entries = [entry for preset in PRESETS if (entry := _of(notebook, preset, store)) is not None]
        found += [max(entries, key=lambda entry: len(entry.seeds))] if entries else []
    return found


def _of(notebook: str, preset: str, store: Store) -> Evidence | None:
    best = None
    for most in range(1, MOST_SEEDS + 1):
        seeds = list(range(most))
        records = [store.display_record(spec) for spec in specs(notebook, preset, seeds)]
        if not records or any(record is None or record.partial or record.stale for record in records):
            break
        best = Evidence(notebook, preset, seeds, list(dict.fromkeys(record.key for record in records)))
    return best


def check(entry: Evidence, store: Store) -> None:
    """Raises ValueError unless the entry names the runs that its notebook asks for, all of them stored and whole."""
    wanted = specs(entry.notebook, entry.preset, entry.seeds)
    if {spec.key() for spec in wanted} != set(entry.keys):
        raise ValueError(
            f"{entry.notebook}: the manifest has other runs than the notebook; write it with `pfl runs manifest`"
        )
    for key in entry.keys:
        record = store.get(key)
        if record is None or record.partial or record.stale:
            raise ValueError(f"{entry.notebook}: record {key} of the manifest is not in {store.results}, or not whole")


def write(entries: list[Evidence], results: Path) -> Path:
    """A line for each notebook, in the folder of the committed records."""
    path = results / NAME
    lines = ",\n".join(json.dumps(asdict(entry)) for entry in entries)
    atomic_write(path, f"[\n{lines}\n]\n".encode())
    return path


def read(results: Path) -> list[Evidence]:
    """Raises ValueError for a damaged file, OSError for a missing one."""
    path = results / NAME
    try:
        return [Evidence(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except (TypeError, ValueError):
        raise ValueError(f"{path} is damaged; write it again with `pfl runs manifest`") from None

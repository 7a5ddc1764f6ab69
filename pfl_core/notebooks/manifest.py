"""The manifest: the best stored evidence of each notebook, with its preset, seeds and record keys.

``pfl runs manifest`` writes ``data/results/manifest.json``, ``pfl figures --evidence`` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from pfl_core.files import atomic_write, parsed
from pfl_core.papers import STUDIES, has_preset, specs, study
from pfl_core.runs import Record, RunSpec, Store
from pfl_core.runs.store import DEVICES

PRESETS = ("paper", "real")
MAX_SEEDS = 10
LEAST = 1 / 3  # of a notebook's runs
NAME = "manifest.json"
Stored = Callable[[str], Record | None]  # a store's record of a key
HEAD = ("notebook", "preset", "seeds", "runs", "missing")


@dataclass(frozen=True)
class Evidence:
    """The stored records of a notebook at one preset."""

    notebook: str
    preset: str
    seeds: list[int]
    keys: list[str]  # of the records
    missing: int = 0  # runs of these seeds that are not stored, or stopped early

    @property
    def row(self) -> tuple[str, str, str, int, int]:
        """A row of a table with HEAD."""
        return self.notebook, self.preset, ", ".join(map(str, self.seeds)), len(self.keys), self.missing


def best(store: Store) -> list[Evidence]:
    """The best evidence of each notebook that has enough records.

    Complete evidence comes first: the preset with more complete seeds; with equal numbers, "paper". The seeds are 0, 1,
    ... up to the first seed with a missing run. Without a complete seed: the preset with more of the runs of its own
    seeds, if they are at least LEAST of all, and the number of missing ones. With fewer, a notebook shows too little of
    what it asks.
    """
    evidence = []
    get = cache(store.get)
    for notebook in (f"{name}/{section}" for name in STUDIES for section in study(name).experiments):
        presets = [preset for preset in PRESETS if has_preset(notebook, preset)]
        entries = [entry for preset in presets if (entry := _complete_seeds(notebook, preset, get)) is not None]
        if entries:
            evidence.append(max(entries, key=lambda entry: len(entry.seeds)))
        else:
            entry = max((_incomplete(notebook, preset, get) for preset in presets), key=lambda entry: len(entry.keys))
            evidence += [entry] if len(entry.keys) >= LEAST * (len(entry.keys) + entry.missing) else []
    return evidence


def _find(spec: RunSpec, get: Stored) -> Record | None:
    """The record of a spec, of its device or another one, that is neither missing nor stale. No data set is read."""
    for device in dict.fromkeys((spec.device_kind, *DEVICES)):
        record = get((spec if device == spec.device_kind else replace(spec, device=device)).key())
        if record is not None:
            return None if record.stale else record
    return None


def _complete_seeds(notebook: str, preset: str, get: Stored) -> Evidence | None:
    best = None
    for num_seeds in range(1, MAX_SEEDS + 1):
        seeds, keys = list(range(num_seeds)), []
        for spec in specs(notebook, preset, seeds):
            record = _find(spec, get)
            if record is None or record.partial:
                return best
            keys.append(record.key)
        if not keys:
            return best
        best = Evidence(notebook, preset, seeds, list(dict.fromkeys(keys)))
    return best


def _incomplete(notebook: str, preset: str, get: Stored) -> Evidence:
    wanted = specs(notebook, preset)
    found = [record for spec in wanted if (record := _find(spec, get)) is not None]
    keys = list(dict.fromkeys(record.key for record in found))
    whole = len({record.key for record in found if not record.partial})
    seeds = sorted({spec.seed for spec in wanted})
    return Evidence(notebook, preset, seeds, keys, len({spec.key() for spec in wanted}) - whole)


def check(entry: Evidence, store: Store) -> None:
    """Raise ValueError unless the entry lists the runs of its notebook except the missing ones, and all are stored."""
    wanted = {spec.key() for spec in specs(entry.notebook, entry.preset, entry.seeds)}
    if not set(entry.keys) <= wanted or not entry.missing and set(entry.keys) != wanted:
        raise ValueError(
            f"{entry.notebook}: the manifest has other runs than the notebook; update it with `pfl runs manifest`"
        )
    for key in entry.keys:
        record = store.get(key)
        if record is None or record.stale or record.partial and not entry.missing:
            raise ValueError(
                f"{entry.notebook}: record {key} of the manifest is missing in {store.results}, or incomplete; "
                "update the manifest with `pfl runs manifest`"
            )


def write(entries: list[Evidence], results: Path) -> Path:
    """Write the manifest, a line for each notebook, to the folder of the committed records."""
    path = results / NAME
    lines = ",\n".join(json.dumps(asdict(entry)) for entry in entries)
    atomic_write(path, f"[\n{lines}\n]\n".encode())
    return path


def read(results: Path) -> list[Evidence]:
    """Read the manifest; empty if there is none. Raises ValueError for a damaged file."""
    path = results / NAME
    if not path.exists():
        return []
    try:
        return [Evidence(**entry) for entry in parsed(path.read_bytes())]
    except (TypeError, ValueError):
        raise ValueError(f"{path} is damaged; write it again with `pfl runs manifest`") from None

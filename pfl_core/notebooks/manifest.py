"""The manifest: notebooks whose runs at preset real or paper are all stored, with their seeds and record keys.

``pfl runs manifest`` writes ``data/results/manifest.json``, ``pfl figures --evidence`` reads it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pfl_core.files import atomic_write
from pfl_core.papers import STUDIES, has_preset, specs, study
from pfl_core.runs import Store

PRESETS = ("paper", "real")
MAX_SEEDS = 10
NAME = "manifest.json"


@dataclass(frozen=True)
class Evidence:
    """The complete records of a notebook at one preset."""

    notebook: str
    preset: str
    seeds: list[int]
    keys: list[str]  # of the records


def complete(store: Store) -> list[Evidence]:
    """The complete notebooks, each at the preset with more complete seeds; with equal numbers, "paper".

    A preset's seeds are 0, 1, ... up to the first seed with a missing run.
    """
    evidence = []
    for notebook in (f"{name}/{section}" for name in STUDIES for section in study(name).experiments):
        presets = [preset for preset in PRESETS if has_preset(notebook, preset)]
        entries = [entry for preset in presets if (entry := _complete_seeds(notebook, preset, store)) is not None]
        evidence += [max(entries, key=lambda entry: len(entry.seeds))] if entries else []
    return evidence


def _complete_seeds(notebook: str, preset: str, store: Store) -> Evidence | None:
    best = None
    for num_seeds in range(1, MAX_SEEDS + 1):
        seeds = list(range(num_seeds))
        records = [store.display_record(spec) for spec in specs(notebook, preset, seeds)]
        keys = [record.key for record in records if record is not None and not record.partial and not record.stale]
        if not records or len(keys) < len(records):
            break
        best = Evidence(notebook, preset, seeds, list(dict.fromkeys(keys)))
    return best


def check(entry: Evidence, store: Store) -> None:
    """Raise ValueError unless the entry lists exactly the runs of its notebook, and all of them are stored."""
    if {spec.key() for spec in specs(entry.notebook, entry.preset, entry.seeds)} != set(entry.keys):
        raise ValueError(
            f"{entry.notebook}: the manifest has other runs than the notebook; update it with `pfl runs manifest`"
        )
    for key in entry.keys:
        record = store.get(key)
        if record is None or record.partial or record.stale:
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
    """Read the manifest. Raises ValueError for a damaged file, OSError for a missing one."""
    path = results / NAME
    try:
        return [Evidence(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except (TypeError, ValueError):
        raise ValueError(f"{path} is damaged; write it again with `pfl runs manifest`") from None

"""Exports models from the command line: ``pfl run --save-models`` and ``pfl runs export --models``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pfl_core.cli.tables import size
from pfl_core.deadline import deadline

if TYPE_CHECKING:
    from tqdm import tqdm

    from pfl_core.runs import Record, Store

WHICH = "the models are those that are scored after the aggregation of the last round (acc_mean_merged)"  # for --help


def folders_for(folder: Path | None, keys: Sequence[str]) -> dict[str, Path]:
    """Where the models of each run (by key) are written: to the folder, those of several runs to ``folder/KEY``."""
    if folder is None:
        return {}
    return {key: folder / key if len(set(keys)) > 1 else folder for key in keys}


def save(record: Record, store: Store, folder: Path) -> str:
    """Export the models of a stored run; returns the text for the user."""
    from pfl_core.runs.export import export_models

    with _progress(record) as bar:
        content = export_models(
            record, store, folder, stop_at=deadline(), on_round=lambda done: bar.update(done - bar.n)
        )
    total = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    lines = [
        f"models of {len(content['clients'])} clients in {folder}, {size(total)}; models.json says how to use them"
    ]
    rounds, correct = record.series["correct"]
    others = sum(a != b["correct"] for a, b in zip(correct[-1], content["clients"], strict=True))
    if rounds[-1] == content["rounds"] and others:
        lines.append(f"{others} clients score differently from the record, which may come from another machine")
    if record.spec.build_method().reported == "after_local_update":
        lines.append("this method reports accuracy after local training; the models are those after aggregation")
    return "\n".join(lines)


def keep_state(record: Record, store: Store) -> None:
    """Make sure that the final state of a stored run is kept; it is computed again if it was not."""
    from pfl_core.runs.export import restore_state

    with _progress(record) as bar:
        restore_state(record, store, stop_at=deadline(), on_round=lambda done: bar.update(done - bar.n))


def _progress(record: Record) -> tqdm:
    """A progress bar for the rounds of a run that is computed again; it does not appear if nothing is computed."""
    from tqdm import tqdm

    name = record.spec.method["name"]
    return tqdm(total=record.rounds, unit="round", file=sys.stderr, desc=f"{name}, again", delay=0.001)

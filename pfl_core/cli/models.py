"""Exports models from the command line: ``pfl run --save-models`` and ``pfl runs export --models``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pfl_core.cli.output import size
from pfl_core.deadline import deadline

if TYPE_CHECKING:
    from pfl_core.runs import Record, Store

WHICH = "the models are those that are scored after the aggregation of the last round (acc_mean_merged)"  # for --help


def save(record: Record, store: Store, folder: Path) -> str:
    """Export the models of a stored run; returns the text for the user."""
    from pfl_core.runs.export import export_models

    with _progress(record) as on_round:
        content = export_models(record, store, folder, stop_at=deadline(), on_round=on_round)
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

    with _progress(record) as on_round:
        restore_state(record, store, stop_at=deadline(), on_round=on_round)


@contextmanager
def _progress(record: Record) -> Iterator[Callable[[int], object]]:
    """A progress bar for the rounds of a run that is computed again; it appears with the first of them."""
    from tqdm import tqdm

    bar: tqdm | None = None

    def on_round(done: int) -> None:
        nonlocal bar
        if bar is None:
            bar = tqdm(total=record.rounds, unit="round", file=sys.stderr, desc=f"{record.spec.method['name']}, again")
        bar.update(done - bar.n)

    try:
        yield on_round
    finally:
        if bar is not None:
            bar.close()

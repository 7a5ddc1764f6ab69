"""Exports the final models of a stored run; they are computed again if the run's state was not kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pfl_core import engine, exports
from pfl_core.data.dataset import PLAIN
from pfl_core.files import remove
from pfl_core.runs.build import build, load_data
from pfl_core.runs.execute import execute, read_usable
from pfl_core.runs.record import Record
from pfl_core.runs.spec import RunSpec
from pfl_core.runs.store import Store
from pfl_core.runs.sweep import num_jobs


def export_models(
    record: Record,
    store: Store,
    folder: Path,
    *,
    stop_at: float | None = None,
    on_round: Callable[[int], object] = lambda done: None,
) -> dict[str, Any]:
    """Write the final models of a stored run to a folder (see ``exports``); returns the content of ``models.json``.

    They come from the run's checkpoint if it has the rounds of the record, else the run is computed again. A checkpoint
    that is made for this is deleted afterwards. ``stop_at`` and ``on_round``: as in ``execute``.

    Raises ValueError if the folder has other models, if the method cannot be exported, or if data or code on this
    machine are not those of the record; TimeUpError because of ``stop_at``; OSError if a file cannot be written.
    """
    spec, path = record.spec, store.checkpoint(record.key)
    check(spec, record.key, folder)
    was_kept = restore_state(record, store, stop_at=stop_at, on_round=on_round)
    saved = read_usable(path, spec.rounds, record.data)
    if saved is None:
        raise OSError(f"the state of run {record.key} was deleted by another process; run the command again")
    algorithm, fed, _ = build(spec)
    done = saved["done"]
    seen = engine.participants(fed, spec.schedule, done)
    state = engine.adapted_state(algorithm, fed, saved["state"], seen, done - 1)
    content = exports.save_models(folder, algorithm, fed, state, done - 1, describe(spec, record.key, done))
    if not was_kept:
        remove(path)
    return content


def restore_state(
    record: Record,
    store: Store,
    *,
    stop_at: float | None = None,
    on_round: Callable[[int], object] = lambda done: None,
) -> bool:
    """Make sure that the final state of a stored run is kept as a checkpoint; returns whether it already was.

    If not, the run is computed again, and its record is not changed. Raises ValueError if a later state is kept, and as
    ``execute``.
    """
    saved = read_usable(store.checkpoint(record.key), record.spec.rounds, record.data)
    if saved is not None and saved["done"] > record.rounds:
        done = saved["done"]
        raise ValueError(
            f"run {record.key} has a state of round {done} and a record of {record.rounds}; finish it first"
        )
    if saved is not None and saved["done"] == record.rounds:
        return True
    execute(
        record.spec,
        store,
        key=record.key,
        checksums=record.data,
        until=record.rounds,
        record=False,
        keep_state=True,
        stop_at=stop_at,
        threads=num_jobs(None),
        on_round=on_round,
    )
    return False


def check(spec: RunSpec, key: str, folder: Path) -> None:
    """Raise ValueError if models of this run cannot be written to this folder; for a check before training."""
    exports.check(folder, key, spec.build_method())


def describe(spec: RunSpec, key: str, rounds: int) -> dict[str, Any]:
    """What ``models.json`` says of the run: everything that is needed to build the network and to prepare samples."""
    components, dataset = spec.identity(written_out=True), load_data(spec)
    network = components["model"]
    if "pretrained" in network:  # the initial weights are replaced, so they are not needed to load the models
        network["pretrained"] = False
    scaled = dataset.has_images or (dataset.mean, dataset.std) != PLAIN
    normalisation = {"mean": list(dataset.mean), "std": list(dataset.std)} if scaled else None
    return {
        "key": key,
        "rounds": rounds,
        "seed": spec.seed,
        "method": components["method"],
        "network": network,
        "input_shape": list(dataset.x.shape[1:]),
        "num_classes": dataset.num_classes,
        "class_names": list(dataset.class_names),
        "data": components["data"],
        "about": dataset.note,
        "partition": components["partition"],
        "normalisation": normalisation,  # of pixels in 0..1 or of features, one value or one per channel; None: none
    }

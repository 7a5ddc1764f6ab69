"""Computes one run and stores its record. With checkpoints: a killed run continues and ends with identical results."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import io
import json
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from pfl_core import engine, models
from pfl_core.algorithm import Algorithm, State, class_in_checkpoint
from pfl_core.costs import step_flops
from pfl_core.data import data_dir
from pfl_core.engine import History, Snapshot
from pfl_core.federation import Federation
from pfl_core.partition import Partition
from pfl_core.plugins import PACKAGE
from pfl_core.runs.build import build, load_data, run_warnings
from pfl_core.runs.provenance import describe
from pfl_core.runs.spec import RunSpec, options
from pfl_core.runs.store import Record, Store, atomic_write, remove
from pfl_core.runs.versions import named, versions

CHECKPOINT_SECONDS = 60.0
CLASS = "class"  # key of the class name in a packed state; a Python keyword, so it cannot be a field name

Start = tuple[State, History, int]


def execute(
    spec: RunSpec,
    store: Store,
    *,
    key: str | None = None,
    checksums: Mapping[str, str] | None = None,
    branch: Path | None = None,
    marks: tuple[int, ...] = (),
    until: int | None = None,
    record: bool = True,
    keep_state: bool = False,
    on_round: Callable[[int], object] = lambda done: None,
    warn: Callable[[str], object] = lambda text: None,
) -> Record | None:
    """Compute the run that ``spec`` describes, store its record and return it.

    The run continues from its own checkpoint, else from ``branch``, else it starts at round 0.

    Args:
        key: the run's key, default ``store.key_of(spec)``.
        checksums: of the data that the caller planned the run with, default those of the data on this machine.
        branch: the checkpoint of another run that is identical up to that round.
        marks: rounds after which a checkpoint is saved for branches, see ``mark_path``.
        until: stop after this number of rounds. The record is then partial.
        record: if False, no record is stored, and None is returned.
        keep_state: save the final state as a checkpoint, so that a stopped run can continue.
        on_round: called with the number of completed rounds.
        warn: called with the text of a warning about the training.

    Raises ValueError if the run would stop before its first evaluation, or if data or code on this machine are not
    those of ``key`` and ``checksums``.
    """
    torch.set_num_threads(1)
    key, current = key or store.key_of(spec), spec.checksums()
    if key not in (spec.key(), spec.key(current)) or checksums not in (None, current):
        raise ValueError(f"{spec.label()}: data or code on this machine differ from those of run {key}")
    stop = spec.rounds if until is None else min(until, spec.rounds)
    if record and stop < min(spec.eval_every, spec.rounds):
        raise ValueError(f"until={until}: the first evaluation is after {spec.eval_every} rounds; stop there or later")
    atomic_write(store.progress(key), b"0")  # reports a read-only folder before anything is computed
    try:
        return _execute(spec, key, current, store, branch, marks, stop, record, keep_state, on_round, warn)
    finally:
        remove(store.progress(key))


def _execute(
    spec: RunSpec,
    key: str,
    checksums: Mapping[str, str],
    store: Store,
    branch: Path | None,
    marks: tuple[int, ...],
    stop: int,
    record: bool,
    keep_state: bool,
    on_round: Callable[[int], object],
    warn: Callable[[str], object],
) -> Record | None:
    algorithm, fed, assigned = build(spec)
    began = perf_counter()
    had_checkpoint = store.checkpoint(key).exists()
    start, previous_seconds = _resume([store.checkpoint(key), branch], spec.rounds, checksums)
    last_saved = perf_counter()

    def after_round(snapshot: Snapshot, history: History) -> None:
        nonlocal last_saved
        done = snapshot.t + 1
        on_round(done)
        elapsed = previous_seconds + perf_counter() - began
        if done in marks:
            save_checkpoint(mark_path(store, key, done), snapshot.state, history, done, elapsed, checksums)
        if perf_counter() - last_saved >= CHECKPOINT_SECONDS and done < spec.rounds:
            save_checkpoint(store.checkpoint(key), snapshot.state, history, done, elapsed, checksums)
            last_saved = perf_counter()

    for text in run_warnings(spec, algorithm, fed):
        warn(text)
    with warnings.catch_warnings():  # reported above through `warn`
        warnings.filterwarnings("ignore", message="batch norm: ")
        state, history = engine.run(algorithm, fed, spec.schedule, start=start, until=stop, on_round=after_round)
    done, seconds = max(stop, start[2] if start else 0), previous_seconds + perf_counter() - began
    result = None
    # the stored record is replaced only by one with other data or at least as many rounds
    if record:
        result = _record(spec, key, algorithm, fed, assigned, state, history, seconds)
        result = replace(result, data=dict(checksums), rounds_done=done if done < spec.rounds else None)
        stored = store.get(key, spec)  # another process may have stored more rounds meanwhile
        if stored is None or stored.data != result.data or stored.rounds <= result.rounds:
            store.put(result)
    if keep_state:
        save_checkpoint(store.checkpoint(key), state, history, done, seconds, checksums)
    elif done == spec.rounds or not had_checkpoint:  # a checkpoint kept earlier may be ahead of this run
        remove(store.checkpoint(key))
    return result


def _record(
    spec: RunSpec,
    key: str,
    algorithm: Algorithm,
    fed: Federation,
    assigned: Partition,
    state: State,
    history: History,
    seconds: float,
) -> Record:
    dataset = load_data(spec)
    return Record(
        key=key,
        spec=spec,
        series=history.series,
        arrays=algorithm.artifacts(fed, state),
        clients={name: counts.tolist() for name, counts in assigned.table(dataset).items()},
        num_params=fed.num_params,
        flops=sample_flops(json.dumps(dict(spec.model)), tuple(fed.splits["train"].x.shape[1:]), dataset.num_classes),
        about=dataset.note,
        seconds=seconds,
        state=state_hash(state),
        versions=versions(spec),
        provenance=describe() | ({"dropped_clients": str(assigned.dropped)} if assigned.dropped else {}),
    )


@cache
def sample_flops(model: str, shape: tuple[int, ...], num_classes: int) -> int:
    """FLOPs of a forward and backward pass of one sample; counted once for each network.

    The count is cached on disk, because importing torch's FLOP counter takes two seconds.
    """
    from joblib import Memory

    made_by = json.dumps(named("network", json.loads(model)["name"], models.MODELS, models.VERSIONS)), torch.__version__
    return Memory(data_dir() / "runs" / "flops", verbose=0).cache(_counted_flops)(model, shape, num_classes, made_by)


def _counted_flops(model: str, shape: tuple[int, ...], num_classes: int, made_by: tuple[str, str]) -> int:
    """``made_by``: versions of the network and of torch. Unused here, but part of the cache key."""
    component = json.loads(model)
    return step_flops(models.build(component["name"], shape, num_classes, 0, **options(component)), shape)[1]


def mark_path(store: Store, key: str, rounds: int) -> Path:
    """The checkpoint of run ``key`` after this number of rounds, from which other runs branch."""
    return store.root / f"{key}.{rounds}.mark"


def save_checkpoint(
    path: Path, state: State, history: History, done: int, seconds: float, checksums: Mapping[str, str]
) -> None:
    """Write state, history, rounds done, seconds and data checksums atomically, preceded by a SHA-256 digest."""
    # plain data only, so that the file can be read with weights_only=True
    buffer = io.BytesIO()
    content = {"name": path.name, "data": dict(checksums), "state": _packed(state), "series": history.series}
    torch.save({**content, "done": done, "seconds": seconds}, buffer)
    serialized = buffer.getvalue()
    atomic_write(path, hashlib.sha256(serialized).digest() + serialized)


def _read_checkpoint(path: Path) -> dict[str, Any]:
    """The content that ``save_checkpoint`` wrote. Raises ValueError if the file changed: torch.load does not check."""
    data = path.read_bytes()
    digest, serialized = data[:32], data[32:]
    if hashlib.sha256(serialized).digest() != digest:
        raise ValueError("its checksum does not match")
    saved = torch.load(io.BytesIO(serialized), weights_only=True)
    if saved["name"] != path.name:
        raise ValueError(f"it was written as {saved['name']}")
    return saved


def _resume(paths: list[Path | None], rounds: int, checksums: Mapping[str, str]) -> tuple[Start | None, float]:
    """The first usable checkpoint and its seconds, or (None, 0). Unusable checkpoints are renamed with a warning.

    A checkpoint is usable if it has at most ``rounds`` rounds and the same data checksums.
    """
    for path in paths:
        if path is None or not path.exists():
            continue
        try:
            saved = _read_checkpoint(path)
            if saved["data"] != checksums:
                raise ValueError("it was computed with other data")
            if saved["done"] > rounds:
                raise ValueError(f"it has {saved['done']} rounds, the run has {rounds}")
            return (_unpacked(saved["state"]), History(saved["series"]), saved["done"]), saved["seconds"]
        except (OSError, ValueError, KeyError) as error:
            renamed = path.with_name(path.name + ".damaged")
            with suppress(OSError):  # another process was faster, or has the file open (Windows)
                os.replace(path, renamed)
            warnings.warn(
                f"checkpoint {path.name} is not usable ({error}); renamed to {renamed.name}, the run starts over",
                stacklevel=2,
            )
    return None, 0.0


def _packed(value: Any) -> Any:
    """A state as dicts, lists and tensors. A dataclass becomes a dict with its class name under CLASS."""
    if dataclasses.is_dataclass(value):
        cls = type(value)
        in_package = cls.__module__.partition(".")[0] == PACKAGE
        fields = {f.name: _packed(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {CLASS: cls.__name__ if in_package else f"{cls.__module__}:{cls.__qualname__}", **fields}
    return [_packed(v) for v in value] if isinstance(value, tuple) else value


def _unpacked(packed: Any) -> Any:
    """Inverse of ``_packed``. Raises ValueError for a class that no longer exists or has other fields."""
    if isinstance(packed, dict):
        fields = {name: _unpacked(value) for name, value in packed.items()}
        name = fields.pop(CLASS)
        # "Name" of a class in this package, or "module:Name" of a user's class
        try:
            module, colon, attribute = name.partition(":")
            cls = attrgetter(attribute)(importlib.import_module(module)) if colon else class_in_checkpoint(name)
            return cls(**fields)
        except (ImportError, AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"it contains a {name}, which has changed ({error})") from None
    return tuple(map(_unpacked, packed)) if isinstance(packed, list) else packed


def state_hash(state: State) -> str:
    """16 hex digits: hash of all tensors of a state. Equal hashes mean bitwise identical states.

    A field that was added to a state later (``metadata={"added": True}``) is ignored while it is None, so that the
    hashes stay comparable with those of older records.
    """
    digest = hashlib.sha256()

    def update(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(str((value.dtype, tuple(value.shape))).encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        elif dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                item = getattr(value, field.name)
                if item is not None or not field.metadata.get("added"):
                    digest.update(field.name.encode())
                    update(item)
        elif isinstance(value, tuple):
            for item in value:
                update(item)
        else:
            digest.update(repr(value).encode())

    update(state)
    return digest.hexdigest()[:16]

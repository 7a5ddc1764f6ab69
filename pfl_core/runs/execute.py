"""One run: from spec to record, through checkpoints, so that a kill loses little and changes no bit."""

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
from pfl_core.runs.build import build, load_data
from pfl_core.runs.provenance import describe
from pfl_core.runs.spec import RunSpec, options
from pfl_core.runs.store import Record, Store, atomic_write
from pfl_core.runs.versions import named, versions

CHECKPOINT_SECONDS = 60.0
CLASS = "class"  # a keyword, so no field of a state has that name

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
    """Compute the run that ``spec`` describes and store its record.

    Continues from its own checkpoint, else from ``branch`` (a checkpoint of another run that is equal up to there),
    else from the start. ``key``: default ``store.key_of(spec)``; ``checksums``: of the data that it was planned with,
    default those of the data here. ``marks``: rounds after which a checkpoint is left for branches, see ``mark_path``.
    ``until``: stop after that many rounds; the record is then a partial one, or, with ``record`` False, there is none.
    ``keep_state`` leaves the last state as a checkpoint, from which a stopped run can go on. ``on_round`` is called
    with the number of rounds done, ``warn`` with what may go wrong in training.

    Raises ValueError if the run would stop before its first score, or if data or code here are others than planned.
    """
    torch.set_num_threads(1)
    key, here = key or store.key_of(spec), spec.checksums()
    if key not in (spec.key(), spec.key(here)) or checksums not in (None, here):
        raise ValueError(f"{spec.label()}: its data or its code here are others than those of run {key}")
    stop = spec.rounds if until is None else min(until, spec.rounds)
    if record and stop < min(spec.eval_every, spec.rounds):
        raise ValueError(f"until={until}: the run is first scored after {spec.eval_every} rounds; stop there or later")
    atomic_write(store.progress(key), b"0")  # a folder that cannot be written is reported before anything is computed
    try:
        return _execute(spec, key, here, store, branch, marks, stop, record, keep_state, on_round, warn)
    finally:
        store.progress(key).unlink(missing_ok=True)


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
    existed = store.checkpoint(key).exists()
    start, spent = _resume([store.checkpoint(key), branch], spec.rounds, checksums)
    clock = {"saved": perf_counter()}

    def after(snapshot: Snapshot, history: History) -> None:
        done = snapshot.t + 1
        on_round(done)
        elapsed = spent + perf_counter() - began
        if done in marks:
            save_checkpoint(mark_path(store, key, done), snapshot.state, history, done, elapsed, checksums)
        if perf_counter() - clock["saved"] >= CHECKPOINT_SECONDS and done < spec.rounds:
            save_checkpoint(store.checkpoint(key), snapshot.state, history, done, elapsed, checksums)
            clock["saved"] = perf_counter()

    if warning := fed.small_batches():
        warn(warning)
    with warnings.catch_warnings():  # said already, to who asked for the run
        warnings.filterwarnings("ignore", message="batch norm: ")
        state, history = engine.run(algorithm, fed, spec.schedule, start=start, until=stop, on_round=after)
    done, seconds = max(stop, start[2] if start else 0), spent + perf_counter() - began
    made = None
    if record:
        made = _record(spec, key, algorithm, fed, assigned, state, history, seconds)
        made = replace(made, data=dict(checksums), rounds_done=done if done < spec.rounds else None)
        other = store.get(key, spec)  # another process may have come further
        if other is None or other.data != made.data or other.rounds <= made.rounds:
            store.put(made)
    if keep_state:
        save_checkpoint(store.checkpoint(key), state, history, done, seconds, checksums)
    elif done == spec.rounds or not existed:  # a state that was kept before stays as long as there is more to do
        store.checkpoint(key).unlink(missing_ok=True)
    return made


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
        about=dataset.about,
        seconds=seconds,
        state=state_hash(state),
        versions=versions(spec),
        provenance=describe() | ({"dropped_clients": str(assigned.dropped)} if assigned.dropped else {}),
    )


@cache
def sample_flops(model: str, shape: tuple[int, ...], num_classes: int) -> int:
    """Of one sample's forward and backward pass; counted once for each network, never while training.

    The count is remembered on disk, for torch's counter takes two seconds to import.
    """
    from joblib import Memory

    made_by = json.dumps(named("network", json.loads(model)["name"], models.MODELS, models.VERSIONS)), torch.__version__
    return Memory(data_dir() / "runs" / "flops", verbose=0).cache(_counted_flops)(model, shape, num_classes, made_by)


def _counted_flops(model: str, shape: tuple[int, ...], num_classes: int, made_by: tuple[str, str]) -> int:
    """``made_by``: version of the network, and of torch."""
    part = json.loads(model)
    return step_flops(models.build(part["name"], shape, num_classes, 0, **options(part)), shape)[1]


def mark_path(store: Store, key: str, rounds: int) -> Path:
    """Where the state of run ``key`` after that many rounds is left for branches."""
    return store.root / f"{key}.{rounds}.mark"


def save_checkpoint(
    path: Path, state: State, history: History, done: int, seconds: float, checksums: Mapping[str, str]
) -> None:
    """State, history, rounds done, seconds spent and the data's checksums, written at once or not at all."""
    buffer = io.BytesIO()
    content = {"name": path.name, "data": dict(checksums), "state": _packed(state), "series": history.series}
    torch.save({**content, "done": done, "seconds": seconds}, buffer)
    content = buffer.getvalue()
    atomic_write(path, hashlib.sha256(content).digest() + content)


def _read_checkpoint(path: Path) -> dict[str, Any]:
    """What ``save_checkpoint`` wrote, whole; raises ValueError otherwise (torch itself would not see a flipped bit)."""
    digest, content = (data := path.read_bytes())[:32], data[32:]
    if hashlib.sha256(content).digest() != digest:
        raise ValueError("its checksum does not match")
    saved = torch.load(io.BytesIO(content), weights_only=True)
    if saved["name"] != path.name:
        raise ValueError(f"it was written as {saved['name']}")
    return saved


def _resume(paths: list[Path | None], rounds: int, checksums: Mapping[str, str]) -> tuple[Start | None, float]:
    """The first usable checkpoint of at most ``rounds`` rounds on these data, and its seconds; others are set aside."""
    for path in paths:
        if path is None or not path.exists():
            continue
        try:
            saved = _read_checkpoint(path)
            if saved["data"] != checksums:
                raise ValueError("it was made with other data")
            if saved["done"] > rounds:
                raise ValueError(f"it has {saved['done']} rounds, the run has {rounds}")
            return (_unpacked(saved["state"]), History(saved["series"]), saved["done"]), saved["seconds"]
        except (OSError, ValueError, KeyError) as error:
            with suppress(FileNotFoundError):  # another branch was faster
                os.replace(path, path.with_name(path.name + ".damaged"))
            warnings.warn(f"checkpoint {path.name} is damaged ({error}); set aside, the run starts over", stacklevel=2)
    return None, 0.0


def _packed(value: Any) -> Any:
    """A state as plain dicts, lists and tensors; a dataclass with its class's name, so that it comes back as it was."""
    if dataclasses.is_dataclass(value):
        cls = type(value)
        own = cls.__module__.partition(".")[0] == PACKAGE
        fields = {f.name: _packed(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {CLASS: cls.__name__ if own else f"{cls.__module__}:{cls.__qualname__}", **fields}
    return [_packed(v) for v in value] if isinstance(value, tuple) else value


def _unpacked(packed: Any) -> Any:
    """What ``_packed`` took apart; raises ValueError for a class that is not there any more."""
    if isinstance(packed, dict):
        fields = {name: _unpacked(value) for name, value in packed.items()}
        name = fields.pop(CLASS)
        try:
            module, colon, attribute = name.partition(":")
            cls = attrgetter(attribute)(importlib.import_module(module)) if colon else class_in_checkpoint(name)
            return cls(**fields)
        except (ImportError, AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"it holds a {name}, which has changed ({error})") from None
    return tuple(map(_unpacked, packed)) if isinstance(packed, list) else packed


def state_hash(state: State) -> str:
    """16 hex digits of the bits of every tensor of a state: two runs with the same hash are the same run.

    A field that a state got later (``metadata={"added": True}``) does not count where it is None, so that the hashes of
    older records can be compared.
    """
    digest = hashlib.sha256()

    def feed(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(str((value.dtype, tuple(value.shape))).encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        elif dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                part = getattr(value, field.name)
                if part is not None or not field.metadata.get("added"):
                    digest.update(field.name.encode())
                    feed(part)
        elif isinstance(value, tuple):
            for part in value:
                feed(part)
        else:
            digest.update(repr(value).encode())

    feed(state)
    return digest.hexdigest()[:16]

"""Computes one run and stores its record. With checkpoints: a killed run continues and ends with identical results."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import io
import json
import math
import os
import platform
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from pfl_core import engine, metrics, models
from pfl_core.algorithm import Algorithm, State, class_in_checkpoint
from pfl_core.costs import step_flops
from pfl_core.data import data_dir
from pfl_core.deadline import passed, time_up
from pfl_core.engine import History, Snapshot
from pfl_core.federation import Federation
from pfl_core.files import atomic_write, cached, remove
from pfl_core.partition import Partition
from pfl_core.plugins import PACKAGE, is_users_own
from pfl_core.registry import METRICS
from pfl_core.runs.build import build, load_data, run_warnings
from pfl_core.runs.extend import horizon_dependence, shorter_runs
from pfl_core.runs.prefix import SUFFIX, path_of, rounds_of, saved
from pfl_core.runs.provenance import describe
from pfl_core.runs.record import Record, Series
from pfl_core.runs.spec import RunSpec, options
from pfl_core.runs.store import Store, check_replaceable
from pfl_core.runs.task import Prefix, SweepEndedError, Task
from pfl_core.runs.versions import named

CHECKPOINT_SECONDS = 60.0
CLASS = "class"  # key of the class name in a packed state; a Python keyword, so it cannot be a field name


def execute(
    run: RunSpec | Task,
    store: Store,
    *,
    on_round: Callable[[int], object] = lambda done: None,
    watch: Callable[[Series], object] = lambda series: None,
    warn: Callable[[str], object] = lambda text: None,
    **options: Any,
) -> Record | None:
    """Compute a run, store its record and return it. Instead of a `Task`: a spec, and fields of `Task` as options.

    A checkpoint is saved every minute, at ``stop_at`` and at Ctrl-C. The run continues from its own checkpoint, from a
    shared prefix of its own or of ``prefix``, or from the kept state of a run with fewer rounds, whichever has most
    rounds; else it starts at round 0.

    Args:
        on_round: called with the number of completed rounds.
        watch: called after each round with the series of all rounds so far, as in `Record.series`.
        warn: called with a line for the user: a warning about the training, or where the run continues.

    Raises ValueError if the run would stop before its first evaluation, or if data or code on this machine are not
    those of the task; TimeUpError if it was stopped because of ``stop_at``; OSError if the record cannot be written.
    """
    task = run if isinstance(run, Task) else Task(run, **{"key": "", **options})
    if passed(task.stop_at):
        raise time_up(0, 0, 1)
    torch.set_num_threads(1)
    _keep_freed_memory()
    key, spec, current = task.key or store.key_of(task.spec), task.spec, task.spec.checksums()
    if key not in (spec.key(), spec.key(current)) or task.checksums not in (None, current):
        name = spec.data["name"]
        hint = f"; does {name} return the same samples at every call?" if ":" in name else ""
        raise ValueError(f"{spec.label()}: data or code on this machine differ from those of run {key}{hint}")
    task = replace(task, key=key, checksums=current, until=task.rounds)
    if task.record:
        _check_end(task)
        check_replaceable(store.path(key))
    else:
        missing = [n for n in task.saves if read_usable(path_of(store, Prefix(key, n)), n, current) is None]
        if not (missing or task.keep_state):
            return None
        task = replace(task, saves=tuple(missing), until=task.until if task.keep_state else max(missing))
    atomic_write(store.progress(key), b"0")  # reports a read-only folder before anything is computed
    try:
        return _compute(task, store, current, on_round, watch, warn)
    finally:
        remove(store.progress(key))


@cache
def _keep_freed_memory() -> None:
    """Let this process reuse the memory that it frees, in blocks of up to 32 MiB, where the C library is glibc.

    glibc gives it back to the system in part, so each training step on a large batch would touch its pages anew.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: larger blocks have mappings of their own, which are given back
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: the heap does not shrink


def _check_end(task: Task) -> None:
    """Raise ValueError if the run would stop where it has no scores, or not those of its metrics."""
    spec, stop = task.spec, task.rounds
    if stop < min(spec.eval_every, spec.rounds):
        raise ValueError(f"until={stop}: the first evaluation is after {spec.eval_every} rounds; stop there or later")
    if spec.metrics:
        if stop < spec.rounds:
            raise ValueError(f"until={stop}: metrics are scored after the last round; leave out one of the two")
        metrics.check_installed()


def _compute(
    task: Task,
    store: Store,
    checksums: Mapping[str, str],
    on_round: Callable[[int], object],
    watch: Callable[[Series], object],
    warn: Callable[[str], object],
) -> Record | None:
    spec, key, stop = task.spec, task.key, task.rounds
    algorithm, fed, assigned = build(spec, task.threads)
    began = perf_counter()
    checkpoint = store.checkpoint(key)
    own = read_usable(checkpoint, spec.rounds, checksums)
    saved = _start(task, store, checksums, own, warn)
    start = (saved["state"], History(saved["series"]), saved["done"]) if saved else None
    previous_seconds = saved["seconds"] if saved else 0.0
    last_saved = perf_counter()
    last: tuple[Snapshot | None, History] = None, History()  # after the last round that is complete

    def save(path: Path, snapshot: Snapshot, history: History) -> None:
        """Save a checkpoint while the run goes on. If that fails, the run is worth more than its checkpoint."""
        elapsed = previous_seconds + perf_counter() - began
        try:
            save_checkpoint(path, snapshot.state, history, snapshot.t + 1, elapsed, checksums)
        except OSError as error:
            warnings.warn(f"{error}; the run goes on without it", stacklevel=2)

    def after_round(snapshot: Snapshot, history: History) -> bool:
        """Returns whether the run ends here because of ``stop_when``."""
        nonlocal last_saved, last
        if last[0] is None:
            _packed(snapshot.state)  # a state that no checkpoint can hold ends the run here, not after hours
        done, last = snapshot.t + 1, (snapshot, history)
        on_round(done)
        watch(history.series)
        if done in task.saves:
            save(path_of(store, Prefix(key, done)), snapshot, history)
        if task.stop_when is not None and spec.schedule.scores(snapshot.t) and task.stop_when(history.series):
            return True
        time_is_up = passed(task.stop_at)
        if done < stop and (time_is_up or perf_counter() - last_saved >= CHECKPOINT_SECONDS):
            save(checkpoint, snapshot, history)
            last_saved = perf_counter()
        if done < stop and time_is_up:
            raise time_up(0, 1, 0)
        return False

    for text in run_warnings(spec, algorithm, fed):
        warn(text)
    with warnings.catch_warnings():  # reported above through `warn`
        warnings.filterwarnings("ignore", message="batch norm: |network ")
        try:
            state, history = engine.run(algorithm, fed, spec.schedule, start=start, until=stop, on_round=after_round)
        except (KeyboardInterrupt, SweepEndedError):
            if (snapshot := last[0]) is not None:
                save(checkpoint, snapshot, last[1].until(snapshot.t + 1))
            raise
    done, seconds = len(history.series["seconds"][0]), previous_seconds + perf_counter() - began
    result = None
    # the stored record is replaced only by one with other data or at least as many rounds
    if task.record:
        scored = _metrics(spec, store, key, algorithm, fed, state) if done == spec.rounds else {}
        result = _record(spec, key, algorithm, fed, assigned, state, history, seconds)
        result = replace(
            result,
            series=result.series | scored,
            data=dict(checksums),
            rounds_done=done if done < spec.rounds else None,
        )
        stored = store.get(key)  # another process may have stored more rounds meanwhile
        if stored is None or stored.data != result.data or stored.rounds <= result.rounds:
            store.put(result)
    if task.keep_state:
        save_checkpoint(checkpoint, state, history, done, seconds, checksums)
    elif done == spec.rounds or own is None or (not task.record and own["done"] <= stop):
        remove(checkpoint)  # but not one that was kept earlier and may be ahead of this run
    return result


def _start(
    task: Task,
    store: Store,
    checksums: Mapping[str, str],
    own: dict[str, Any] | None,
    warn: Callable[[str], object],
) -> dict[str, Any] | None:
    """The content of the checkpoint from which the run continues; None if it starts at round 0.

    ``own``: that of the run's own checkpoint.
    """
    spec = task.spec
    # a run that is made for its prefixes must start before the first one
    limit = spec.rounds if task.record or not task.saves else min(task.saves) - 1
    best = own if own is not None and own["done"] <= limit else None
    for path in saved(store, Prefix(task.key, limit), *([task.prefix] if task.prefix else [])):
        if rounds_of(path) <= _rounds_in(best):
            break
        if (content := read_usable(path, spec.rounds, checksums)) is not None:
            best = content
            break
    for shorter in shorter_runs(spec, store, checksums):
        if reason := horizon_dependence(spec):
            warn(f"starts at round 0, not after the {shorter.rounds} rounds of run {shorter.key}: {reason}")
            return best
        kept = read_usable(store.checkpoint(shorter.key), shorter.spec.rounds, checksums)
        if kept is not None and _rounds_in(best) < (done := kept["done"]) <= min(limit, spec.rounds - 1):
            warn(f"continues after the {done} rounds of run {shorter.key}")
            history = History(kept["series"])
            # the last round of the shorter run is evaluated in any case
            return kept | {
                "series": (history if spec.schedule.scores(done - 1) else history.without_scores(done)).series
            }
    return best


def _metrics(spec: RunSpec, store: Store, key: str, algorithm: Algorithm, fed: Federation, state: State) -> Series:
    """The series of the spec's metrics, and of those that the stored record of this run has."""
    stored = store.get(key) if spec.metrics else None
    names = [name for name in METRICS if name in spec.metrics or (stored and name in stored.series)]
    if not names:
        return {}
    seen = engine.participants(fed, spec.schedule, spec.rounds)
    outputs = engine.class_scores(algorithm, fed, state, seen, spec.rounds - 1)
    return {name: ([spec.rounds], [values]) for name, values in metrics.score(names, outputs).items()}


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
    provenance = describe()
    if assigned.dropped:
        provenance["dropped_clients"] = str(assigned.dropped)
    if fed.threads.num > 1:
        provenance["client_threads"] = str(fed.threads.num)
    return Record(
        key=key,
        spec=spec,
        series=history.series,
        arrays=engine.guarded(algorithm, fed, partial(algorithm.artifacts, fed, state), "artifacts"),
        clients={name: counts.tolist() for name, counts in assigned.table(dataset).items()},
        num_params=fed.num_params,
        flops=_flops(spec, tuple(fed.splits["train"].x.shape[1:]), dataset.num_classes),
        about=dataset.note,
        seconds=seconds,
        state=state_hash(state),
        versions=spec.versions(),
        provenance=provenance,
    )


def _flops(spec: RunSpec, shape: tuple[int, ...], num_classes: int) -> int:
    """``sample_flops`` of the run's network; 0, with a warning, if they cannot be counted."""
    try:
        return sample_flops(json.dumps(dict(spec.model)), shape, num_classes)
    except Exception as error:  # a run that has been computed is stored in any case
        warnings.warn(f"FLOPs are not counted ({error}); the record has 0", stacklevel=2)
        return 0


@cache
def sample_flops(model: str, shape: tuple[int, ...], num_classes: int) -> int:
    """FLOPs of a forward and backward pass of one sample; counted once for each network.

    ``model``: the component as JSON. The count is cached on disk.
    """
    component = json.loads(model)
    made_by = [named("network", component["name"], models.MODELS, models.VERSIONS), torch.__version__]
    key = [component, shape, num_classes, made_by]
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]

    def count() -> int:
        net = models.build(component["name"], shape, num_classes, 0, **options(component))
        return step_flops(net, shape)[1]

    return cached(data_dir() / "runs" / "cache" / f"flops-{name}.json", key, count)


def save_checkpoint(
    path: Path, state: State, history: History, done: int, seconds: float, checksums: Mapping[str, str]
) -> None:
    """Write state, history, rounds done, seconds and data checksums atomically, preceded by a SHA-256 digest.

    The file's name, which starts with the run's key, is part of the content: a file of another run is refused. Raises
    OSError if the file cannot be written.
    """
    # plain data only, so that the file can be read with weights_only=True
    buffer = io.BytesIO()
    content = {"name": path.name, "data": dict(checksums), "state": _packed(state), "series": history.series}
    torch.save({**content, "done": done, "seconds": seconds}, buffer)
    serialized = buffer.getvalue()
    atomic_write(path, hashlib.sha256(serialized).digest() + serialized)


def _read_checkpoint(path: Path) -> dict[str, Any]:
    """The content that ``save_checkpoint`` wrote.

    Raises ValueError if the file changed, which torch.load does not check, or if it is not a file of that function.
    """
    data = path.read_bytes()
    digest, serialized = data[:32], data[32:]
    if hashlib.sha256(serialized).digest() != digest:
        raise ValueError("its checksum does not match")
    try:
        saved = torch.load(io.BytesIO(serialized), weights_only=True)
    except Exception:  # torch.load raises IndexError, struct.error and others for a file that is no pickle
        raise ValueError("it is not a checkpoint") from None
    if not isinstance(saved, dict) or "name" not in saved:
        raise ValueError("it is not a checkpoint")
    if saved["name"] != path.name:
        raise ValueError(f"it was written as {saved['name']}")
    state, seconds = _unpacked(saved["state"]), saved["seconds"]
    if not isinstance(state, State) or not isinstance(seconds, float) or not 0 <= seconds < math.inf:
        raise ValueError("it is not a checkpoint")
    return {**saved, "state": state}


def read_usable(path: Path, rounds: int, checksums: Mapping[str, str]) -> dict[str, Any] | None:
    """The content of a checkpoint; None if there is none. An unusable one is renamed with a warning.

    It is usable if it is complete, of the run in its name, has at most ``rounds`` rounds, as a shared prefix exactly
    those of its name, and the same data checksums.
    """
    try:
        saved = _read_checkpoint(path)
        if saved["data"] != checksums:
            raise ValueError("it was computed with other data")
        done = saved["done"]
        if type(done) is not int or not 0 < done <= rounds:
            raise ValueError(f"it has {done!r} rounds, the run has {rounds}")
        if path.suffix == SUFFIX and done != rounds_of(path):
            raise ValueError(f"it has {done} rounds, not those of its name")
        series = saved["series"]
        every_round = series["seconds"][0] == list(range(1, done + 1))
        if not every_round or any(len(times) != len(values) or max(times) > done for times, values in series.values()):
            raise ValueError(f"its series are not those of its {done} rounds")
        return saved
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        renamed = path.with_name(path.name + ".damaged")
        with suppress(OSError):  # another process was faster, or has the file open (Windows)
            os.replace(path, renamed)
        warnings.warn(
            f"checkpoint {path.name} is not usable ({error}); renamed to {renamed.name}, the run starts over",
            stacklevel=2,
        )
        return None


def passed_checkpoints(store: Store) -> list[Path]:
    """Checkpoints in the middle of runs that are stored completely: a process was killed right after it stored one."""
    passed = []
    for path in store.own("*.ckpt"):
        record = store.get(path.stem)
        if record is not None and not record.partial:
            saved = read_usable(path, record.rounds, record.data)
            passed += [path] if 0 < _rounds_in(saved) < record.rounds else []
    return passed


def _rounds_in(saved: Mapping[str, Any] | None) -> int:
    return saved["done"] if saved else 0


def _packed(value: Any) -> Any:
    """A state as dicts, lists and tensors. A dataclass becomes a dict with its class name under CLASS.

    Raises ValueError for a value of another type, which could not be read again.
    """
    if dataclasses.is_dataclass(value):
        cls = type(value)
        in_package = cls.__module__.partition(".")[0] == PACKAGE
        fields = {f.name: _packed(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {CLASS: cls.__name__ if in_package else f"{cls.__module__}:{cls.__qualname__}", **fields}
    if isinstance(value, tuple):
        return [_packed(v) for v in value]
    if not isinstance(value, torch.Tensor | bool | int | float | str | None):
        raise ValueError(f"the state has a {type(value).__name__}; use tensors, numbers, texts, tuples and dataclasses")
    return value


def _unpacked(packed: Any) -> Any:
    """Inverse of ``_packed``. Raises ValueError for a class that no longer exists or has other fields."""
    if isinstance(packed, dict):
        fields = {name: _unpacked(value) for name, value in packed.items()}
        name = fields.pop(CLASS)
        # "Name" of a class in this package, or "module:Name" of a user's class
        try:
            module, colon, attribute = name.partition(":")
            # The file may be forged: nothing is imported for it, the run has imported what it needs.
            cls = attrgetter(attribute)(sys.modules[module]) if colon else class_in_checkpoint(name)
            if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)) or (colon and not is_users_own(module)):
                raise TypeError("it is not a dataclass of yours")
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

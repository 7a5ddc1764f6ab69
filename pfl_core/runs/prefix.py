"""Shared prefixes: runs that are equal up to a round are trained once up to it.

FedSelect with two limits, for example, is one run until the smaller limit is reached; a method says so in
``Algorithm.shared_prefix``. One task of a sweep computes the longest prefix of such runs and saves its state after
each round where another run parts: KEY.ROUNDS.prefix, a checkpoint. The other runs start from there.

The file KEY.waiting beside them lists the runs that still need the prefixes of run KEY. So those that a killed sweep
left are there for its continuation, and any later sweep deletes them once all these runs are stored. A lost or damaged
file costs time but no result.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from pfl_core.algorithm import Algorithm
from pfl_core.federation import Federation
from pfl_core.files import atomic_write, parsed, remove
from pfl_core.runs.build import build
from pfl_core.runs.spec import RunSpec
from pfl_core.runs.store import Store
from pfl_core.runs.task import Prefix, Task

SUFFIX = ".prefix"


def path_of(store: Store, prefix: Prefix) -> Path:
    """The checkpoint of a shared prefix."""
    return store.root / f"{prefix.key}.{prefix.rounds}{SUFFIX}"


def rounds_of(path: Path) -> int:
    """The number of rounds in the name of a prefix's file."""
    return int(path.name.split(".")[1])


def saved(store: Store, *prefixes: Prefix) -> list[Path]:
    """The files of these prefixes, and of shorter ones of the same runs: those with most rounds first."""
    paths = [
        path
        for prefix in prefixes
        for path in store.root.glob(f"{prefix.key}.*{SUFFIX}")
        if rounds_of(path) <= prefix.rounds
    ]
    return sorted(paths, key=rounds_of, reverse=True)


def plan(missing: Mapping[str, RunSpec], store: Store) -> list[Task]:
    """Tasks for the missing runs (key -> spec): those that compute shared prefixes first."""
    # key of a prefix -> its run, and for each run that starts with it: key, number of shared rounds
    shared: dict[str, tuple[RunSpec, list[tuple[str, int]]]] = {}
    for key, spec in missing.items():
        try:
            run, rounds = _shared_prefix(spec)
            prefix_key = store.key_of(run) if rounds else key
        except Exception:  # data or a user's code may raise anything, and will again when the run is executed
            continue
        if prefix_key != key:
            shared.setdefault(prefix_key, (run, []))[1].append((key, rounds))
    _federation.cache_clear()
    first: list[Task] = []
    later: list[Task] = []
    for key, (run, users) in shared.items():
        prefixes = {user: Prefix(key, rounds) for user, rounds in users}
        if key in missing or len(users) > 1:
            saves, is_wanted = tuple(sorted({rounds for _, rounds in users})), key in missing
            first.append(Task(run, key, saves=saves, until=None if is_wanted else saves[-1], record=is_wanted))
        elif not saved(store, *prefixes.values()):
            continue  # no other run shares the prefix, and a killed sweep left none
        later += [Task(missing[user], user, prefix=prefix) for user, prefix in prefixes.items()]
    planned = {task.key for task in (*first, *later)}
    return first + [Task(spec, key) for key, spec in missing.items() if key not in planned] + later


def _shared_prefix(spec: RunSpec) -> tuple[RunSpec, int]:
    """The run with which this one shares its first rounds, and the number of these rounds."""
    if type(spec.build_method()).shared_prefix is Algorithm.shared_prefix:
        return spec, 0
    without_method = json.dumps({**spec.to_json(), "method": {"name": "local"}})
    method, rounds = spec.build_method().shared_prefix(_federation(without_method))
    named = {"name": spec.method["name"], **dataclasses.asdict(method)}
    return dataclasses.replace(spec, method=named), rounds


@lru_cache(maxsize=1)
def _federation(spec: str) -> Federation:
    """The federation of a spec in JSON; built once for runs that differ only in their method."""
    return build(RunSpec.from_json(json.loads(spec)))[1]


def note_waiting(store: Store, tasks: Sequence[Task]) -> None:
    """Note which runs need prefixes, in addition to what was noted before."""
    for key in {task.prefix.key for task in tasks if task.prefix}:
        note = _note(store, key)
        users = {task.key for task in tasks if task.prefix and task.prefix.key == key}
        atomic_write(note, json.dumps(sorted({*_waiting(note), *users})).encode())


def remove_unneeded(store: Store, failed: Collection[str] = ()) -> None:
    """Delete all prefixes that are needed only by runs that are stored or ``failed``."""
    for note in store.own("*.waiting"):
        before = _waiting(note)
        waiting = [key for key in before if key not in failed and not _is_complete(store, key)]
        if not waiting:
            remove(note)
        elif waiting != before:
            with suppress(OSError):
                atomic_write(note, json.dumps(waiting).encode())
    for path in store.own(f"*{SUFFIX}"):
        if not _note(store, path.name.split(".")[0]).exists():
            remove(path)


def _note(store: Store, key: str) -> Path:
    return store.root / f"{key}.waiting"


def _waiting(note: Path) -> list[str]:
    """Keys of the runs in a note; none if it is missing or damaged."""
    with suppress(OSError, ValueError):
        keys = parsed(note.read_bytes())
        if isinstance(keys, list):
            return [key for key in keys if isinstance(key, str) and key.isalnum()]
    return []


def _is_complete(store: Store, key: str) -> bool:
    record = store.get(key)
    return record is not None and not record.partial

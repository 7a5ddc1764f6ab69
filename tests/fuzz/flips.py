"""Damage in every kind of file that is read: it is noticed, or makes no difference."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import warnings
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from pfl_core.data.npz import read_npz
from pfl_core.notebooks import manifest
from pfl_core.runs import execute
from pfl_core.runs.execute import sample_flops
from pfl_core.runs.prefix import path_of
from pfl_core.runs.store import RESULTS, Store, read_content
from pfl_core.runs.task import Prefix
from pfl_core.study import search
from tests.fuzz.cases import METHODS, NOTICED, SURVIVED, Wrong, check_message, check_record, damaged, specs, store_in
from tests.fuzz.cases import undisturbed as _undisturbed

FIRST, SECOND, SHARED = 5, 4, 2  # two runs of `specs`, and the number of their shared rounds


def record(rng: Random, folder: Path) -> str:
    number, store = rng.randrange(len(METHODS)), store_in(folder)
    content = _record_file(number)
    key = _undisturbed(number).key
    store.root.mkdir()
    store.path(key).write_bytes(damaged(content, rng))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = store.get(key)
        list(store)
    if found is None:
        check_record(execute(specs()[number], store), number)
        return NOTICED
    check_record(found, number)
    if read_content(store.path(key))["spec"] != found.spec.to_json():
        raise Wrong("other settings")
    return SURVIVED


def checkpoint(rng: Random, folder: Path) -> str:
    number, store = rng.randrange(len(METHODS)), store_in(folder)
    content = _checkpoint_file(number)
    key = _undisturbed(number).key
    store.root.mkdir()
    store.checkpoint(key).write_bytes(damaged(content, rng))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_record(execute(specs()[number], store), number)
    return NOTICED if caught else SURVIVED


def prefix(rng: Random, folder: Path) -> str:
    store, content = store_in(folder), _prefix_file()
    shared = Prefix(_undisturbed(FIRST).key, SHARED)
    path = path_of(store, shared)
    store.root.mkdir()
    path.write_bytes(damaged(content, rng))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_record(execute(specs()[SECOND], store, prefix=shared), SECOND)
    return NOTICED if caught else SURVIVED


def cache_file(rng: Random, folder: Path) -> str:
    """Any of the files that runs keep besides records."""
    number, files = 0, _cache_files()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    name = rng.choice([name for name, content in files.items() if content])
    (folder / name).write_bytes(damaged(files[name], rng))
    _undisturbed(number)
    before, os.environ["PFL_DATA_DIR"] = os.environ["PFL_DATA_DIR"], str(folder)
    sample_flops.cache_clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check_record(execute(specs()[number], store_in(folder)), number)
    finally:
        os.environ["PFL_DATA_DIR"] = before
        sample_flops.cache_clear()
    return SURVIVED


def searched(rng: Random, folder: Path) -> str:
    original = search.searched_path("pfedgate")
    path = folder / "searched.json"
    path.write_bytes(damaged(original.read_bytes(), rng))
    try:
        if search.read(path) != search.read(original):
            raise Wrong("other rates were read from searched.json")
    except ValueError as error:
        check_message(str(error))
        return NOTICED
    return SURVIVED


def manifest_file(rng: Random, folder: Path) -> str:
    (folder / manifest.NAME).write_bytes(damaged((RESULTS / manifest.NAME).read_bytes(), rng))
    committed = manifest.read(RESULTS)
    try:
        entries = manifest.read(folder)
        for entry in entries:
            if entry not in committed:
                manifest.check(entry, Store(folder / "runs"))
                raise Wrong(f"the manifest's entry of {entry.notebook} has changed, and passes its check")
    except (ValueError, OSError) as error:
        check_message(str(error))
        return NOTICED
    if len(entries) != len(committed):
        raise Wrong("entries of the manifest are missing")
    return SURVIVED


def npz(rng: Random, folder: Path) -> str:
    content = _npz_file(rng.random() < 0.5)
    good, path = folder / "good.npz", folder / "blobs.npz"
    good.write_bytes(content)
    path.write_bytes(damaged(content, rng))
    try:
        got = read_npz(path, "blobs")
    except (ValueError, OSError) as error:
        check_message(str(error))
        return NOTICED
    wanted = read_npz(good, "blobs")
    for field in dataclasses.fields(wanted):
        one, other = getattr(got, field.name), getattr(wanted, field.name)
        if not (one.equal(other) if hasattr(one, "equal") else one == other):
            raise Wrong(f"{field.name} of a damaged .npz differs")
    return SURVIVED


@cache
def _record_file(number: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        store = store_in(Path(folder))
        return store.put(_undisturbed(number)).read_bytes()


@cache
def _checkpoint_file(number: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        store = store_in(Path(folder))
        execute(specs()[number], store, until=2, keep_state=True)
        return store.checkpoint(_undisturbed(number).key).read_bytes()


@cache
def _prefix_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        store = store_in(Path(folder))
        execute(specs()[FIRST], store, saves=(SHARED,), until=SHARED, record=False)
        return path_of(store, Prefix(_undisturbed(FIRST).key, SHARED)).read_bytes()


@cache
def _cache_files() -> dict[str, bytes]:
    """Name -> content of the files in an otherwise empty data folder after a run, without the record."""
    before = os.environ["PFL_DATA_DIR"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["PFL_DATA_DIR"] = name
        sample_flops.cache_clear()
        try:
            execute(specs()[0], Store(folder / "elsewhere", folder / "results"))
        finally:
            os.environ["PFL_DATA_DIR"] = before
            sample_flops.cache_clear()
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and "elsewhere" not in path.parts]
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@cache
def _npz_file(compressed: bool) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path, images = Path(folder) / "a.npz", np.arange(128, dtype=np.uint8).reshape(8, 4, 4)
        arrays = {f"{part}_images": images for part in ("train", "test")}
        arrays |= {f"{part}_labels": np.arange(8) % 2 for part in ("train", "test")}
        (np.savez_compressed if compressed else np.savez)(path, **arrays, about="eight images")
        return path.read_bytes()

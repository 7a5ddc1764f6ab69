"""Records on disk: one JSON file per run, written atomically and verified by a checksum when read."""

from __future__ import annotations

import json
import os
import re
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pfl_core.data import data_dir
from pfl_core.files import PART, atomic_write, checksum
from pfl_core.options import checked
from pfl_core.plugins import MissingCodeError, MissingCodeWarning
from pfl_core.runs.packing import in_full, listed, packed, ranged, shortened, unpacked
from pfl_core.runs.provenance import ROOT
from pfl_core.runs.record import Record, Series
from pfl_core.runs.spec import RunSpec

RESULTS = ROOT / "data" / "results"  # committed records of long runs
SCHEMA = 3  # format of record files
DEVICES = ("cpu", "cuda", "mps")  # a figure can show records of any of these
LEFT_SECONDS = 3600.0  # temporary files unchanged for so long were left by a killed process
_RECORD = re.compile(r"[0-9a-f]{16}\.json")
_FILES = re.compile(  # of a store's folder; nothing else in it is ever deleted
    r"[0-9a-f]{16}\.(json|damaged|round|waiting|(ckpt|\d+\.prefix)(\.damaged)?)|[0-9a-f]{32}\.sweep"
    r"|\..+\.[0-9a-f]{32}\.part"
)


class DamagedError(ValueError):
    """A record's file is not as it was written."""


class Store:
    """Records in PFL_RUNS_DIR (default: ``runs/`` in the data folder) and, read only, in ``data/results/``.

    The committed records are listed once; a new Store sees those that were added or removed since.
    """

    def __init__(self, root: Path | None = None, results: Path | None = None) -> None:
        self.root = root or Path(os.environ.get("PFL_RUNS_DIR") or data_dir() / "runs")
        self.results = RESULTS if results is None else results
        self.without_code: list[Path] = []  # records that could not be read because of a MissingCodeError

    @cached_property
    def committed(self) -> dict[str, list[Path]]:
        """The files in ``data/results/`` by their keys."""
        files: dict[str, list[Path]] = {}
        for folder, _, names in os.walk(self.results):
            for name in filter(_RECORD.fullmatch, sorted(names)):
                files.setdefault(name.removesuffix(".json"), []).append(Path(folder) / name)
        return files

    def path(self, key: str) -> Path:
        """The file of a record."""
        return self.root / f"{key}.json"

    def checkpoint(self, key: str) -> Path:
        """The checkpoint of an unfinished run."""
        return self.root / f"{key}.ckpt"

    def progress(self, key: str) -> Path:
        """A file with the number of completed rounds, while the run is computed."""
        return self.root / f"{key}.round"

    def locate(self, spec: RunSpec) -> tuple[str, Record | None]:
        """The key under which this run is or would be stored, and its record with this spec, or None.

        The key is ``spec.key()``, unless that record was computed from other data files of the same name. Then the run
        with the files on this machine has the key ``spec.key(checksums)``. A record without the spec's metrics counts
        as missing. Tags of the stored record may differ; if only those of ``spec`` name an unchanged run of a preset,
        the record is stored again with them.
        """
        key = spec.key()
        record = self._tagged(key, spec)
        try:
            checksums = spec.checksums()
        except (FileNotFoundError, ValueError) as error:
            if record is None and isinstance(error, ValueError):  # unknown data set
                raise
            return key, record
        if record is not None and record.data == checksums:
            return key, record
        key_with_data = spec.key(checksums)
        if (other := self._tagged(key_with_data, spec)) is not None:
            return key_with_data, other
        return (key_with_data if record is not None else key), None

    def _tagged(self, key: str, spec: RunSpec) -> Record | None:
        record = self.get(key)
        if record is None or not set(spec.metrics) <= record.series.keys():
            return None
        tagged = replace(record, spec=spec)
        if spec.preset and not spec.changed and (record.spec.changed or not record.spec.preset):
            with suppress(OSError, ValueError):  # the folder is read-only, or the file there is not to be replaced
                self.put(tagged)
        return tagged

    def key_of(self, spec: RunSpec) -> str:
        """The key under which this run is or would be stored, see ``locate``."""
        return self.locate(spec)[0]

    def display_record(self, spec: RunSpec) -> Record | None:
        """The record that a figure shows for a spec: computed from the data on this machine, else a committed one.

        Records of any device are accepted, the spec's own device first.
        """
        for device in dict.fromkeys((spec.device_kind, *DEVICES)):
            candidate = spec if device == spec.device_kind else replace(spec, device=device)
            _, record = self.locate(candidate)
            if record is None:
                record = self._longest(self.committed.get(candidate.key(), ()))
            if record is not None:
                return replace(record, spec=candidate)
        return None

    def get(self, key: str) -> Record | None:
        """The record of that key, or None. A damaged file is renamed with a warning and counts as missing."""
        own = self.path(key)
        return self._longest([*([own] if own.exists() else []), *self.committed.get(key, ())])

    def put(self, record: Record) -> Path:
        """Write a record atomically. Raises as ``check_replaceable``."""
        return write_record(record, self.path(record.key))

    def own(self, pattern: str = "*") -> list[Path]:
        """The files of the folder that this package wrote, by their names; somebody else's are left out."""
        return [path for path in sorted(self.root.glob(pattern)) if _FILES.fullmatch(path.name) and path.is_file()]

    def leftovers(self) -> list[Path]:
        """What killed processes left: temporary files, progress, and leases of sweeps on a cluster.

        Files count if they have not changed for an hour.
        """
        oldest = time.time() - LEFT_SECONDS
        files = [path for pattern in (f"**/{PART}", "*.round", "*.sweep") for path in self.own(pattern)]
        return [path for path in files if path.stat().st_mtime < oldest]

    def files(self) -> dict[str, list[Path]]:
        """The files of each key, the store's own first."""
        paths_of = {name.removesuffix(".json"): [self.root / name] for name in sorted(self.names())}
        for key, paths in self.committed.items():
            paths_of.setdefault(key, []).extend(paths)
        return paths_of

    def names(self) -> set[str]:
        """The names of the record files in the store's own folder."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return {name for name in os.listdir(self.root) if _RECORD.fullmatch(name)}
        return set()

    def __iter__(self) -> Iterator[Record]:
        """All readable records. If two files have the same key, the one with more rounds."""
        for paths in self.files().values():
            if (record := self._longest(paths)) is not None:
                yield record

    def _longest(self, paths: Iterable[Path]) -> Record | None:
        """Of the readable records in these files, the first complete one, else the one with most rounds."""
        longest: Record | None = None
        for path in paths:
            record = self.read(path)
            if record is not None and not record.partial:
                return record
            longest = max(filter(None, (longest, record)), key=lambda found: found.rounds, default=None)
        return longest

    def read(self, path: Path) -> Record | None:
        """The record in a file. None, with a warning, if it is damaged or cannot be read here.

        A damaged file in the store's own folder is renamed.
        """
        kind: type[Warning] = UserWarning
        try:
            content = read_content(path)
            if (key := content.get("key", path.stem)) != path.stem:
                raise DamagedError(f"it belongs to run {key}")
            return record_from_content(content)
        except OSError as error:
            said = f"{path.name} cannot be read and is skipped: {error.strerror or error}"
        except DamagedError as error:
            said = f"record {path.name} is damaged ({error}); the run counts as missing"
            if self.results not in path.parents:
                renamed = path.with_suffix(".damaged")
                with suppress(OSError):  # another process was faster, or has the file open (Windows)
                    os.replace(path, renamed)
                said = f"record {path.name} is damaged ({error}); renamed to {renamed.name}, the run counts as missing"
        except ValueError as error:
            said = f"record {path.name} is skipped, it cannot be read here: {error}"
            if isinstance(error, MissingCodeError):
                kind = MissingCodeWarning
                self.without_code.append(path)
        warnings.warn(said, kind, stacklevel=3)
        return None


def write_record(record: Record, path: Path) -> Path:
    """Write the record as JSON with a checksum, a line per entry and series. Raises as ``check_replaceable``."""
    check_replaceable(path)
    content = {
        "schema": SCHEMA,
        "key": record.key,
        "spec": None,
        "rounds_done": record.rounds_done,
        "data": record.data,
        "versions": record.versions,
        "num_params": record.num_params,
        "flops": record.flops,
        "about": record.about,
        "seconds": record.seconds,
        "state": record.state,
        "provenance": record.provenance,
        "clients": record.clients,
        "arrays": record.arrays,
        "series": record.series,
    }
    content = json.loads(json.dumps(content, default=_to_json), parse_float=_rounded, parse_constant=lambda text: None)
    content["spec"] = record.spec.to_json()  # settings are not rounded
    content["arrays"] = {name: packed(array) for name, array in content["arrays"].items()}
    series = {name: [ranged(rounds), shortened(values)] for name, (rounds, values) in content["series"].items()}
    content["series"] = series
    lines = [f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in content.items() if k != "series"]
    series_lines = [f"  {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in series.items()]
    lines += ['"series": {\n' + ",\n".join(series_lines) + "\n}", f'"sha256": "{checksum(content)}"']
    atomic_write(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    return path


def read_record(path: Path) -> Record:
    """The record in a file. Raises ValueError if it is damaged, or if its method or format is not available here."""
    return record_from_content(read_content(path))


def read_content(path: Path) -> dict[str, Any]:
    """The content of a record's file as plain data. Raises DamagedError if it is not a record, or incomplete."""
    from pydantic_core import from_json  # reads numbers in two thirds of the time of ``json``

    text = path.read_bytes()
    try:
        content = from_json(text)
    except ValueError:
        raise DamagedError("it is not JSON") from None
    if not isinstance(content, dict) or content.pop("sha256", None) != checksum(content):
        raise DamagedError("its checksum does not match")
    return content


def check_replaceable(path: Path) -> None:
    """Raise ValueError if the file has a record that is complete but cannot be read here, e.g. of another format."""
    try:
        read_record(path)
    except (FileNotFoundError, NotADirectoryError, DamagedError):
        return
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not replaced: it cannot be read here ({error}); move it away to do so") from None


def record_from_content(content: dict[str, Any]) -> Record:
    """The record of a file's plain content.

    Raises ValueError if its format or its method is not available here, or if its parts do not fit together.
    """
    if (schema := content.get("schema")) != SCHEMA:
        raise ValueError(f"its format is {schema!r}, this version reads {SCHEMA}")
    try:
        return _record({name: part for name, part in content.items() if name != "schema"})
    except ValueError:
        raise
    except Exception as error:  # its checksum holds, so somebody wrote it in another form
        raise ValueError(f"it is not in the form of format {SCHEMA} ({type(error).__name__}: {error})") from None


def _record(content: dict[str, Any]) -> Record:
    if content["seconds"] is None:  # NaN, the default
        del content["seconds"]
    spec, series, arrays = RunSpec.from_json(content.pop("spec")), content.pop("series"), content.pop("arrays")
    series = {name: _unpacked_series(name, *pair) for name, pair in series.items()}
    arrays = {name: unpacked(array) for name, array in arrays.items()}
    record = Record(spec=spec, series=series, arrays=arrays, **checked(Record, content, "record"))
    _check_series(series, record.clients)
    if not 0 < record.rounds <= spec.rounds:
        raise ValueError(f"it has {record.rounds} of {spec.rounds} rounds")
    return record


def _unpacked_series(name: str, rounds: Any, values: Any) -> tuple[list[int], list]:
    """A series as rounds and a value for each of them. Raises ValueError if there are none, or not as many."""
    rounds = listed(rounds)
    full = in_full(values, rounds)
    if not (rounds and len(rounds) == len(full) and all(type(number) is int and number > 0 for number in rounds)):
        raise ValueError(f"series {name} has not one value for each of its rounds")
    return rounds, full


def _check_series(series: Series, clients: dict[str, list[list[int]]]) -> None:
    """Raise ValueError unless all series are of the same clients, and scores are complete."""
    widths = {name: {len(v) if isinstance(v, list) else 0 for v in values} for name, (_, values) in series.items()}
    num_clients = {len(counts) for counts in clients.values()} | {max(widths[name]) for name in ("correct", "count")}
    for name, width in widths.items():
        if len(num_clients) > 1 or len(width) > 1 or not width <= {0, *num_clients}:
            raise ValueError(f"series {name} is of other clients")
        count = f"count{name.removeprefix('correct')}"
        if name.startswith("correct") and (series[name][0] != series[count][0] or 0 in width | widths[count]):
            raise ValueError(f"series {name} does not fit {count}")
    if "passes" in series and "train" not in clients:
        raise ValueError("it has no class counts of the clients")


def _to_json(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor | np.ndarray | np.generic) else str(value)


def _rounded(text: str) -> float | int:
    """Seven significant digits, about the precision of float32. Whole numbers become integers and are not rounded."""
    value = float(text)
    return int(value) if value.is_integer() else float(f"{value:.7g}")

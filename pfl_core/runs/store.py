"""Records on disk: one JSON file per run, written atomically and verified by a checksum when read."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from operator import is_
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from pfl_core.algorithm import MechanismCheck
from pfl_core.costs import payload_bytes, rounds_to
from pfl_core.data import data_dir
from pfl_core.files import PART, atomic_write, checksum
from pfl_core.registry import METRICS
from pfl_core.runs.provenance import ROOT
from pfl_core.runs.spec import RunSpec

RESULTS = ROOT / "data" / "results"  # committed records of long runs
# Format of record files. Those of format 1 lack this number and have other keys, see ``migrate``. Since format 3 the
# rounds of a series may be stored as a range, and packed numbers without those that are missing.
SCHEMA = 3
KEYED = 2  # the oldest format with the keys of today
DEVICES = ("cpu", "cuda", "mps")  # a figure can show records of any of these
LEFT_SECONDS = 3600.0  # temporary files unchanged for so long were left by a killed process
COARSE = 8  # bits of a float32's 24 that a compressed number loses: it keeps almost five digits
PACKED = 1500  # an array of more numbers is stored as compressed text: a third of the size
SCORES = pd.Index(["acc_mean", "acc_pooled", "acc_bottom_decile"])  # of the clients' accuracies
_RECORD_PATTERN = "[0-9a-f]" * 16 + ".json"
_RECORD = re.compile(r"[0-9a-f]{16}\.json")
_FILES = re.compile(  # of a store's folder; nothing else in it is ever deleted
    r"[0-9a-f]{16}\.(json|damaged|round|branches|(ckpt|\d+\.mark)(\.damaged)?)|[0-9a-f]{32}\.sweep|\..+\.[0-9a-f]{32}\.part"
)


Series = dict[str, tuple[list[int], list]]  # metric -> (rounds, from 1; for each a number, or a list by client)


@dataclass(frozen=True)
class Record:
    """The result of a run, complete or stopped early."""

    key: str
    spec: RunSpec
    series: Series
    arrays: dict[str, Any] = field(default_factory=dict)  # artifacts of the method, for figures
    clients: dict[str, list[list[int]]] = field(default_factory=dict)  # split -> [N][C] samples of each class
    num_params: int = 0  # d
    flops: int = 0  # of one training sample, forward and backward
    about: str = ""  # description of the data set
    seconds: float = math.nan
    state: str = ""  # hash of the final state
    provenance: dict[str, str] = field(default_factory=dict)
    rounds_done: int | None = None  # of a run that was stopped early; None: all
    data: dict[str, str] = field(default_factory=dict)  # data set -> checksum of the files that were read
    versions: dict[str, int | str] = field(default_factory=dict)  # of the components; for information only
    schema: int = SCHEMA

    @property
    def stale(self) -> bool:
        """Whether the current code gives this run another key, e.g. because a version was raised."""
        try:
            return self.key != self.spec.key() and self.key != self.spec.key(self.data)
        except ValueError:  # a user's module that cannot be imported
            return False

    @property
    def rounds(self) -> int:
        """Number of completed rounds."""
        return self.spec.rounds if self.rounds_done is None else self.rounds_done

    @property
    def core_seconds(self) -> float:
        """``seconds`` times the number of cores that the run used."""
        return self.seconds * int(self.provenance.get("client_threads", 1))

    @property
    def partial(self) -> bool:
        """Whether the run was stopped early."""
        return self.rounds < self.spec.rounds

    @property
    def length(self) -> str:
        """The number of rounds as text: "200", or "60 of 200" if the run was stopped early."""
        return f"{self.rounds} of {self.spec.rounds}" if self.partial else str(self.rounds)

    def values(self, metric: str) -> pd.DataFrame:
        """One metric: a row per recorded round (index, from 1), a column per client, or the column 0 for all."""
        return pd.DataFrame(self.array(metric), index=self._index(metric))

    def _index(self, metric: str) -> pd.Index:
        return pd.Index(np.array(self.series[metric][0], dtype=int), name="round")

    def array(self, metric: str) -> np.ndarray:
        """One metric as [rounds, N], or [rounds, 1] if it has one number per round; read-only."""
        return self._arrays[metric]

    @cached_property
    def _arrays(self) -> Arrays:
        return Arrays(self.series, self.arrays)

    def last(self, metric: str) -> np.ndarray:
        """One metric in the last recorded round: [N], or [1] if it has one number per round."""
        return np.atleast_1d(np.array(self.series[metric][1][-1], dtype=float))

    def last_mean(self, metric: str) -> float:
        """Mean of ``last`` over the clients that have a number; NaN if none has."""
        values = self.last(metric)
        present = values[~np.isnan(values)]
        return float(present.mean()) if len(present) else math.nan

    def to_frame(self) -> pd.DataFrame:
        """Long format: a row per (round, client, metric); client is -1 for metrics with one number per round."""
        frames = []
        for metric, (_, values) in self.series.items():
            frame = self.values(metric).reset_index().melt("round", var_name="client", value_name="value")
            clients = frame["client"].astype(int) if isinstance(values[0], list) else -1
            frames.append(frame.assign(metric=metric, client=clients))
        return pd.concat(frames, ignore_index=True)

    def curve(self, trained: bool = False) -> pd.DataFrame:
        """Accuracies in percent by round: acc_mean, acc_pooled, acc_bottom_decile.

        ``trained``: scored after local training, if recorded; else after aggregation.
        """
        trained = trained and "correct_trained" in self.series
        rows, metric = (self._trained, "correct_trained") if trained else (self._merged, "correct")
        return pd.DataFrame(rows, index=self._index(metric), columns=SCORES)

    def reported_curve(self) -> pd.DataFrame:
        """``curve`` where the method reports its scores (``Algorithm.reported``): usually after aggregation."""
        return self.curve(trained=bool(self.reported_suffix))

    def reported_scores(self) -> np.ndarray:
        """SCORES where the method reports them [rounds, 3]; not to be changed."""
        return self._trained if self.reported_suffix else self._merged

    @property
    def reported_suffix(self) -> str:
        """Of the series from which the method's reported scores come: "_trained" after local training, else ""."""
        trained = self.spec.build_method().reported == "after_local_update" and "correct_trained" in self.series
        return "_trained" if trained else ""

    @cached_property
    def _merged(self) -> np.ndarray:
        return scores(self.array("correct"), self.array("count"))

    @cached_property
    def _trained(self) -> np.ndarray:
        return scores(self.array("correct_trained"), self.array("count_trained"))

    def _last_scores(self, suffix: str) -> np.ndarray:
        """SCORES in the last round [3]."""
        if suffix == self.reported_suffix:
            return self.reported_scores()[-1]
        return scores(self.last(f"correct{suffix}")[None], self.last(f"count{suffix}")[None])[0]

    @cached_property
    def mechanism(self) -> list[MechanismCheck]:
        """Checks of whether the method's mechanism acted, see ``Algorithm.mechanism``."""
        return self.spec.build_method().mechanism(self._arrays, self.spec.rounds, self.spec.train)

    def final(self) -> pd.Series:
        """Each client's accuracy in percent in the last round."""
        return 100 * pd.Series(self.last("correct")) / self.last("count")

    def summary(self) -> dict[str, float]:
        """Scalar metrics: accuracies (percent) of the last and the best round, communication, compute, seconds.

        ``acc_*`` is scored where the method reports it (``Algorithm.reported``), usually after aggregation.
        ``acc_*_trained`` is scored after local training, ``acc_*_merged`` after aggregation. With novel clients,
        ``acc_*_novel`` is theirs alone, after they have adapted.
        """
        return dict(self._summary)

    @cached_property
    def _summary(self) -> dict[str, float]:
        reported, scored = self.reported_scores(), self.series[f"correct{self.reported_suffix}"][0]
        trained = "_trained" if "correct_trained" in self.series else ""
        # SCORES of the last round, and the best; NaN only if there is no other number
        last = {"": reported[-1], "_best": np.fmax.reduce(reported)}
        last |= {"_trained": self._last_scores(trained), "_merged": self._last_scores("")}
        novel = self.spec.schedule.novel_clients(len(self.last("count")), self.spec.seed).numpy()
        if len(novel):
            last |= {"_novel": scores(self.last("correct")[None, novel], self.last("count")[None, novel])[0]}
        # sums over all clients and rounds
        upload = np.nansum(self.array("upload")) if "upload" in self.series else math.nan
        bits = np.nansum(self.array("upload_bits")) if "upload_bits" in self.series else 0.0
        reached = rounds_to(reported[:, 0].tolist(), 0.95 * reported[-1, 0])
        optional = [n for n in ("personal_share", "movable_share", *METRICS) if n in self.series]
        numbers = {
            **{n + suffix: value for suffix, values in last.items() for n, value in zip(SCORES, values, strict=True)},
            "loss": self.last_mean("loss"),
            "rounds_to_95": scored[reached - 1] if reached else math.nan,  # to 95 % of the run's last accuracy
            "upload_mb": payload_bytes(upload, bits) / 1e6,
            "train_tflop": (self.flops or math.nan) * self.samples_trained() / 1e12,
            **{n: self.last_mean(n) for n in optional},
            "seconds": self.seconds,
        }
        return {name: float(value) for name, value in numbers.items()}

    def samples_trained(self) -> float:
        """Training samples processed by all clients in all rounds: passes × training samples of the client."""
        if "passes" not in self.series:
            return math.nan
        sizes, schedule = np.array(self.clients["train"]).sum(axis=1), self.spec.schedule  # sizes [N]
        samples = self.array("passes") * sizes  # [rounds, N]
        if schedule.participation < 1 or schedule.novel:
            rounds = self.series["passes"][0]
            sampled = [schedule.clients(len(sizes), self.spec.seed, t - 1).numpy() for t in rounds]
            samples = np.take_along_axis(samples, np.array(sampled), axis=1)
        return float(np.nansum(samples))


def scores(correct: np.ndarray, count: np.ndarray) -> np.ndarray:
    """SCORES in percent [rounds, 3], from the clients' correct and all answers [rounds, N]."""
    with np.errstate(invalid="ignore"):  # 0 / 0: a client without test samples
        accuracy = np.where(count > 0, 100 * correct / count, np.nan)
        scored = np.count_nonzero(~np.isnan(accuracy), axis=1)
        mean = np.nansum(accuracy, axis=1) / scored
        pooled = 100 * np.nansum(correct, axis=1) / np.nansum(count, axis=1)
    # accuracy of the client at index floor(n / 10) in ascending order, of n scored clients; NaN sorts last
    decile = np.sort(accuracy, axis=1)[np.arange(len(accuracy)), scored // 10]
    return np.stack([mean, pooled, decile], axis=1)


class Arrays(Mapping[str, np.ndarray]):
    """A record's series, each as [rounds, N] or [rounds, 1], and its artifacts; converted when they are first read."""

    def __init__(self, series: Series, artifacts: Mapping[str, Any]) -> None:
        self.series, self.artifacts = series, artifacts
        self.converted: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.converted:
            array = self._series(name) if name in self.series else np.array(self.artifacts[name])
            array.setflags(write=False)  # all callers share it
            self.converted[name] = array
        return self.converted[name]

    def _series(self, name: str) -> np.ndarray:
        values = self.series[name][1]
        if values and all(map(is_, values, repeat(values[0]))):  # ``in_full`` repeats one value
            return np.broadcast_to(np.array(values[0], dtype=float), (len(values), np.size(values[0])))
        return np.atleast_2d(np.array(values, dtype=float).T).T

    def __iter__(self) -> Iterator[str]:
        return iter({**self.artifacts, **self.series})

    def __len__(self) -> int:
        return len({**self.artifacts, **self.series})


class DamagedError(ValueError):
    """A record's file is not as it was written."""


class Store:
    """Records in PFL_RUNS_DIR (default: ``runs/`` in the data folder) and, read only, in ``data/results/``."""

    def __init__(self, root: Path | None = None, results: Path | None = None) -> None:
        self.root = root or Path(os.environ.get("PFL_RUNS_DIR") or data_dir() / "runs")
        self.results = RESULTS if results is None else results

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
        """The key under which this run is or would be stored, and its record or None.

        The key is ``spec.key()``, unless that record was computed from other data files of the same name. Then the run
        with the files on this machine has the key ``spec.key(checksums)``.
        """
        key, record = spec.key(), self.get(spec.key(), spec)
        try:
            checksums = spec.checksums()
        except (FileNotFoundError, ValueError) as error:
            if record is None and isinstance(error, ValueError):  # unknown data set
                raise
            return key, record
        if record is not None and record.data == checksums:
            return key, record
        key_with_data = spec.key(checksums)
        if (other := self.get(key_with_data, spec)) is not None:
            return key_with_data, other
        return (key_with_data if record is not None else key), None

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
            for path in self.results.glob(f"**/{candidate.key()}.json") if record is None else ():
                record = self.read(path)
            if record is not None:
                return replace(record, spec=candidate)
        return None

    def get(self, key: str, spec: RunSpec | None = None) -> Record | None:
        """The record of that key, or None. A damaged file is renamed with a warning and counts as missing.

        With a ``spec``, the record gets that spec, whose tags may differ; a record without its metrics counts as
        missing. If the spec is tagged as an unchanged run of a preset and the stored run is not, the record is stored
        again with the tags of the spec.
        """
        record = None
        for path in (self.path(key), *self.results.glob(f"**/{key}.json")):
            if (record is None or record.partial) and path.exists() and (candidate := self.read(path)) is not None:
                record = candidate if record is None or candidate.rounds > record.rounds else record
        if record is None or (spec is not None and not set(spec.metrics) <= record.series.keys()):
            return None
        tagged = record if spec is None else replace(record, spec=spec)
        if tagged.spec.preset and not tagged.spec.changed and (record.spec.changed or not record.spec.preset):
            with suppress(OSError, ValueError):  # the folder is read-only, or the file there is not to be replaced
                self.put(tagged)
        return tagged

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
        """The files of each key."""
        paths_of: dict[str, list[Path]] = {}
        own = map(self.root.joinpath, sorted(self.names()))
        for path in (*own, *sorted(self.results.glob(f"**/{_RECORD_PATTERN}"))):
            paths_of.setdefault(path.stem, []).append(path)
        return paths_of

    def names(self) -> set[str]:
        """The names of the record files in the store's own folder."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return {name for name in os.listdir(self.root) if _RECORD.fullmatch(name)}
        return set()

    def __iter__(self) -> Iterator[Record]:
        """All readable records. If two files have the same key, the one with more rounds."""
        for paths in self.files().values():
            records = [record for path in paths if (record := self.read(path)) is not None]
            if records:
                yield max(records, key=lambda record: record.rounds)

    def read(self, path: Path) -> Record | None:
        """The record in a file. None, with a warning, if it is damaged or its method is not available here."""
        try:
            content = read_content(path)
            if (key := content.get("key", path.stem)) != path.stem:
                raise ValueError(f"it belongs to run {key}")
        except OSError as error:
            warnings.warn(f"{path.name} cannot be read and is skipped: {error.strerror or error}", stacklevel=2)
            return None
        except ValueError as error:
            if self.results in path.parents:
                warnings.warn(f"record {path.name} is damaged ({error}); the run counts as missing", stacklevel=3)
                return None
            renamed = path.with_suffix(".damaged")
            with suppress(OSError):  # another process was faster, or has the file open (Windows)
                os.replace(path, renamed)
            warnings.warn(
                f"record {path.name} is damaged ({error}); renamed to {renamed.name}, the run counts as missing",
                stacklevel=3,
            )
            return None
        try:
            return record_from_content(content)
        except ValueError as error:
            warnings.warn(f"record {path.name} is skipped, its run is not available here: {error}", stacklevel=2)
            return None


def write_record(record: Record, path: Path) -> Path:
    """Write the record as JSON, see ``write_content``."""
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
        "series": {name: list(pair) for name, pair in record.series.items()},
    }
    content = json.loads(json.dumps(content, default=_to_json), parse_float=_rounded, parse_constant=lambda text: None)
    content["spec"] = record.spec.to_json()  # settings are not rounded
    return write_content(content, path)


def write_content(content: dict[str, Any], path: Path) -> Path:
    """Write a record's plain content as JSON, a line per entry, with a checksum.

    Large arrays are ``packed``, rounds stored as ``ranged`` and series ``shortened``, also those of a file that was
    written without. Raises as ``check_replaceable``.
    """
    check_replaceable(path)
    arrays = {name: packed(unpacked(array)) for name, array in content.get("arrays", {}).items()}
    pairs = {name: (listed(rounds), values) for name, (rounds, values) in content["series"].items()}
    series = {name: [ranged(rounds), shortened(in_full(values, rounds))] for name, (rounds, values) in pairs.items()}
    schema = {"schema": SCHEMA} if content.get("schema", 1) >= KEYED else {}
    content = {**content, **schema, "arrays": arrays, "series": series}
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
    """Raise ValueError if the file has a record that is complete but cannot be read here, e.g. of a newer format."""
    try:
        record_from_content(read_content(path))
    except (FileNotFoundError, NotADirectoryError, DamagedError):
        return
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not replaced: it cannot be read here ({error}); move it away to do so") from None


def record_from_content(content: dict[str, Any]) -> Record:
    """The record of a file's plain content. Raises ValueError if its method or format is not available here."""
    if (schema := content.get("schema", 1)) not in range(1, SCHEMA + 1):
        raise ValueError(f"its format is {schema}, this version reads up to {SCHEMA}; update the project")
    try:
        return _record(dict(content))
    except ValueError:
        raise
    except Exception as error:  # its checksum holds, so somebody wrote it in another form
        raise ValueError(f"it is not in the form of format {schema} ({type(error).__name__}: {error})") from None


def _record(content: dict[str, Any]) -> Record:
    pairs = {name: (listed(rounds), values) for name, (rounds, values) in content.pop("series").items()}
    series = {name: (rounds, in_full(values, rounds)) for name, (rounds, values) in pairs.items()}
    seconds, spec = content.pop("seconds"), RunSpec.from_json(content.pop("spec"))
    content["arrays"] = {name: unpacked(array) for name, array in content.get("arrays", {}).items()}
    content.setdefault("schema", 1)
    return Record(spec=spec, series=series, seconds=math.nan if seconds is None else seconds, **content)


def packed(array: Any) -> Any:
    """A rectangular array of more than PACKED numbers as {"dtype", "shape", "data"}; anything else as it is.

    ``data`` is base64 text of zlib's compression. If numbers are missing (NaN), it has only the others, and ``present``
    has a bit for each number. Numbers are int32 or float32, with COARSE fewer bits if they are not whole. The last axis
    of ``shape`` comes first and bytes of equal place stand together: neighbours in time compress well.
    """
    try:
        values = np.asarray(array)
        exact = values if values.dtype.kind == "i" else np.asarray(array, dtype=np.float64)  # None becomes NaN
    except (TypeError, ValueError):  # not rectangular, or no numbers
        return array
    if exact.size <= PACKED:
        return array
    with np.errstate(over="ignore"):
        values = exact.astype(np.int32 if exact.dtype.kind == "i" else np.float32)
    whole = exact == np.round(exact)
    if (values[whole] != exact[whole]).any():  # counts are never rounded
        return array
    if values.dtype.kind == "f":
        values = np.where(whole, values, _coarse(values))
    content = {"dtype": values.dtype.name, "shape": list(values.shape)}
    kept, present = values.T, ~np.isnan(exact.T)
    if not present.all():
        kept, content["present"] = kept[present], _as_text(np.packbits(present))
    places = np.ascontiguousarray(kept).view(np.uint8).reshape(-1, values.itemsize).T
    return {**content, "data": _as_text(places)}


def unpacked(array: Any) -> Any:
    """The array that ``packed`` made text of, as int64 or float64; anything else as it is."""
    if not (isinstance(array, dict) and array.keys() - {"present"} == {"dtype", "shape", "data"}):
        return array
    dtype, shape = np.dtype(array["dtype"]), array["shape"][::-1]
    values = np.ascontiguousarray(_as_bytes(array["data"]).reshape(dtype.itemsize, -1).T).view(dtype).ravel()
    if "present" in array:
        present = np.unpackbits(_as_bytes(array["present"]), count=math.prod(shape)).astype(bool)
        kept, values = values, np.full(len(present), np.nan, dtype)
        values[present] = kept
    return values.reshape(shape).T.astype(np.int64 if dtype.kind == "i" else np.float64)


def _coarse(values: np.ndarray) -> np.ndarray:
    """float32 values rounded so that their last COARSE bits are 0. Infinite values and NaN stay."""
    bits = (values.view(np.uint32) + np.uint32(1 << (COARSE - 1))) >> COARSE << COARSE
    rounded = bits.view(np.float32)
    return np.where(np.isfinite(values) & np.isfinite(rounded), rounded, values)


def _as_text(data: np.ndarray) -> str:
    """Base64 text of the compressed bytes."""
    return base64.b64encode(zlib.compress(data.tobytes(), 9)).decode()


def _as_bytes(text: str) -> np.ndarray:
    """The bytes [n] uint8 that ``_as_text`` made text of."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)


def ranged(rounds: list[int]) -> Any:
    """More than three equally spaced rounds as {"first", "last", "step"}; other rounds as they are."""
    step = rounds[1] - rounds[0] if len(rounds) > 3 else 0
    if step <= 0 or rounds != list(range(rounds[0], rounds[-1] + 1, step)):
        return rounds
    return {"first": rounds[0], "last": rounds[-1], "step": step}


def listed(rounds: Any) -> list[int]:
    """The list of rounds that ``ranged`` made a range of."""
    return list(range(rounds["first"], rounds["last"] + 1, rounds["step"])) if isinstance(rounds, dict) else rounds


def shortened(values: list) -> Any:
    """The values of a series as they are stored: one if all are equal, ``packed`` if they are many numbers."""
    if len(values) > 1 and all(value == values[0] for value in values):
        return values[:1]
    return packed(values)


def in_full(values: Any, rounds: list[int]) -> list:
    """The values of a series, one for each of its rounds, from what ``shortened`` made of them."""
    found = unpacked(values)
    if isinstance(found, np.ndarray):
        missing = np.isnan(found)  # an absent client, or no number
        if missing.any():
            found = found.astype(object)
            found[missing] = None
        return found.tolist()
    return found * len(rounds) if len(found) == 1 else found


def _to_json(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor | np.ndarray | np.generic) else str(value)


def _rounded(text: str) -> float | int:
    """Seven significant digits, about the precision of float32. Whole numbers become integers and are not rounded."""
    value = float(text)
    return int(value) if value.is_integer() else float(f"{value:.7g}")

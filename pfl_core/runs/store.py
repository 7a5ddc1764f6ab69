"""Records on disk: one JSON file per run, written at once or not at all, checked when read."""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from pfl_core.algorithm import MechanismCheck
from pfl_core.costs import payload_bytes, rounds_to
from pfl_core.data import data_dir
from pfl_core.runs.provenance import ROOT
from pfl_core.runs.spec import RunSpec

RESULTS = ROOT / "data" / "results"  # committed records of runs that took long
SCHEMA = 2  # of a record's file; 1, without this number, had keys that hashed code: see ``migrate``
DEVICES = ("cpu", "cuda", "mps")  # of which a display takes any
_NAME = "[0-9a-f]" * 16 + ".json"


@dataclass(frozen=True)
class Record:
    """A run, finished or stopped early. ``series``: metric -> (rounds from 1, values: numbers, or one per client)."""

    key: str
    spec: RunSpec
    series: dict[str, tuple[list[int], list]]
    arrays: dict[str, Any] = field(default_factory=dict)  # what the method keeps for figures
    clients: dict[str, list[list[int]]] = field(default_factory=dict)  # split -> [N][C] samples of each class
    num_params: int = 0  # d
    flops: int = 0  # of one training sample, forward and backward
    about: str = ""  # the data set's own text
    seconds: float = math.nan
    state: str = ""  # hash of the final state's bits
    provenance: dict[str, str] = field(default_factory=dict)
    rounds_done: int | None = None  # of a run that was stopped early; None: all
    data: dict[str, str] = field(default_factory=dict)  # data set -> checksum of the files that were read
    versions: dict[str, int | str] = field(default_factory=dict)  # of all that computed it; for information
    schema: int = SCHEMA

    @property
    def stale(self) -> bool:
        """Whether today's code would make this run under another key: a version was raised, or it was never shown."""
        try:
            return self.key not in (self.spec.key(), self.spec.key(self.data))
        except ValueError:  # code from outside that is not here
            return False

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return self.spec.rounds if self.rounds_done is None else self.rounds_done

    @property
    def partial(self) -> bool:
        """Whether the run was stopped early."""
        return self.rounds < self.spec.rounds

    @property
    def length(self) -> str:
        """ "200", or "60 of 200" of a run that was stopped early."""
        return f"{self.rounds} of {self.spec.rounds}" if self.partial else str(self.rounds)

    def values(self, metric: str) -> pd.DataFrame:
        """One metric as a frame: a row per noted round (index, from 1), a column per client (or the column 0)."""
        return pd.DataFrame(self._numbers(metric), index=pd.Index(self.series[metric][0], name="round"))

    def _numbers(self, metric: str) -> np.ndarray:
        """[rounds, N], or [rounds, 1] of the whole."""
        return np.atleast_2d(np.array(self.series[metric][1], dtype=float).T).T

    def to_frame(self) -> pd.DataFrame:
        """A row per (round, client, metric); client -1 for numbers of the whole round."""
        frames = []
        for metric, (_, values) in self.series.items():
            frame = self.values(metric).reset_index().melt("round", var_name="client", value_name="value")
            clients = frame["client"].astype(int) if isinstance(values[0], list) else -1
            frames.append(frame.assign(metric=metric, client=clients))
        return pd.concat(frames, ignore_index=True)

    def curve(self, trained: bool = False) -> pd.DataFrame:
        """Percent, by round: acc_mean, acc_pooled, acc_bottom_decile; after aggregation, or after local training."""
        return (self._trained if trained and "correct_trained" in self.series else self._merged).copy()

    @cached_property
    def _merged(self) -> pd.DataFrame:
        return self._accuracies("")

    @cached_property
    def _trained(self) -> pd.DataFrame:
        return self._accuracies("_trained")

    def _accuracies(self, suffix: str) -> pd.DataFrame:
        correct, count = self._numbers(f"correct{suffix}"), self._numbers(f"count{suffix}")
        with np.errstate(invalid="ignore"):  # 0 of 0
            accuracy = np.where(count > 0, 100 * correct / count, np.nan)
            scored = np.count_nonzero(~np.isnan(accuracy), axis=1)
            mean = np.nansum(accuracy, axis=1) / scored
            pooled = 100 * np.nansum(correct, axis=1) / np.nansum(count, axis=1)
        decile = np.sort(accuracy, axis=1)[np.arange(len(accuracy)), scored // 10]  # NaN sorts last
        rounds = pd.Index(self.series[f"correct{suffix}"][0], name="round")
        return pd.DataFrame({"acc_mean": mean, "acc_pooled": pooled, "acc_bottom_decile": decile}, index=rounds)

    @cached_property
    def mechanism(self) -> list[MechanismCheck]:
        """Whether the method's mechanism acted, see ``Algorithm.mechanism``."""
        series = {name: np.array(array) for name, array in self.arrays.items()}
        series |= {name: self._numbers(name) for name in self.series}
        return self.spec.build_method().mechanism(series, self.spec.rounds, self.spec.train)

    def final(self) -> pd.Series:
        """Each client's accuracy in percent in the last round."""
        return 100 * self.values("correct").iloc[-1] / self.values("count").iloc[-1]

    def summary(self) -> dict[str, float]:
        """The run in a few numbers: accuracies (percent) of the last and the best round, traffic, compute, seconds.

        ``acc_*`` are the scores that the method reports (``Algorithm.reported``), as a rule those after aggregation;
        ``_trained`` and ``_merged`` name theirs.
        """
        return dict(self._summary)

    @cached_property
    def _summary(self) -> dict[str, float]:
        merged, trained = self.curve(), self.curve(trained=True)
        curve = trained if self.spec.build_method().reported == "after_local_update" else merged
        upload = np.nansum(self._numbers("upload")) if "upload" in self.series else math.nan
        bits = np.nansum(self._numbers("upload_bits")) if "upload_bits" in self.series else 0.0
        reached = rounds_to(curve["acc_mean"].tolist(), 0.95 * curve["acc_mean"].iloc[-1])
        shares = {n: self.values(n).iloc[-1].mean() for n in ("personal_share", "movable_share") if n in self.series}
        numbers = {
            **curve.iloc[-1],
            **{f"{name}_best": value for name, value in curve.max().items()},
            **{f"{name}_trained": value for name, value in trained.iloc[-1].items()},
            **{f"{name}_merged": value for name, value in merged.iloc[-1].items()},
            "loss": self.values("loss").iloc[-1].mean(),
            "rounds_to_95": curve.index[reached - 1] if reached else math.nan,  # to 95 % of its own last accuracy
            "upload_mb": payload_bytes(upload, bits) / 1e6,  # all clients, all rounds
            "train_tflop": self.flops * self.samples_trained() / 1e12,
            **shares,
            "seconds": self.seconds,
        }
        return {name: float(value) for name, value in numbers.items()}

    def samples_trained(self) -> float:
        """Samples that went through training, all clients and rounds: passes times training samples."""
        if "passes" not in self.series:
            return math.nan
        sizes = np.array(self.clients["train"]).sum(axis=1)
        total = 0.0
        for number, row in zip(self.series["passes"][0], self._numbers("passes"), strict=True):
            took_part = self.spec.schedule.clients(len(sizes), self.spec.seed, number - 1).numpy()
            total += np.nansum((np.broadcast_to(row, sizes.shape) * sizes)[took_part])
        return float(total)


class Store:
    """Records under ``<data>/runs`` (else PFL_RUNS_DIR) and, read only, those committed under ``data/results``."""

    def __init__(self, root: Path | None = None, results: Path | None = None) -> None:
        self.root = root or Path(os.environ.get("PFL_RUNS_DIR") or data_dir() / "runs")
        self.results = RESULTS if results is None else results

    def path(self, key: str) -> Path:
        return self.root / f"{key}.json"

    def checkpoint(self, key: str) -> Path:
        return self.root / f"{key}.ckpt"

    def progress(self, key: str) -> Path:
        return self.root / f"{key}.round"

    def locate(self, spec: RunSpec) -> tuple[str, Record | None]:
        """The key under which this run is stored or would be, and its record if there is one.

        As a rule ``spec.key()``. If a record of that key was made with other files of the data's name, the run with the
        files that are here has a key of its own.
        """
        key, record = spec.key(), self.get(spec.key(), spec)
        try:
            here = spec.checksums()
        except (FileNotFoundError, ValueError) as error:
            if record is None and isinstance(error, ValueError):  # no such data set
                raise
            return key, record
        if record is not None and record.data == here:
            return key, record
        other = spec.key(here)
        if (own := self.get(other, spec)) is not None:
            return other, own
        return (other if record is not None else key), None

    def key_of(self, spec: RunSpec) -> str:
        """See ``locate``."""
        return self.locate(spec)[0]

    def drawn(self, spec: RunSpec) -> Record | None:
        """The record that a figure shows for a spec: made with the data that are here, else a committed one.

        Its ``about`` text and caption name its data, and its device if that is another.
        """
        for device in dict.fromkeys((spec.device_kind, *DEVICES)):
            told = spec if device == spec.device_kind else replace(spec, device=device)
            _, record = self.locate(told)
            for path in self.results.glob(f"**/{told.key()}.json") if record is None else ():
                record = self._read(path)
            if record is not None:
                return replace(record, spec=told)
        return None

    def get(self, key: str, spec: RunSpec | None = None) -> Record | None:
        """The record of that key, or None; a damaged file is set aside with a warning and counts as missing.

        With a ``spec`` it is told as that one's run; one that was computed for something else (no preset, or a changed
        one) and turns out to be a preset's own is from then on stored as such.
        """
        record = None
        for path in (self.path(key), *self.results.glob(f"**/{key}.json")):
            if (record is None or record.partial) and path.exists() and (found := self._read(path)) is not None:
                record = found if record is None or found.rounds > record.rounds else record
        if record is None:
            return None
        told = record if spec is None else replace(record, spec=spec)
        if told.spec.preset and not told.spec.changed and (record.spec.changed or not record.spec.preset):
            with suppress(OSError):  # a folder that cannot be written
                self.put(told)
        return told

    def put(self, record: Record) -> Path:
        """Write at once or not at all."""
        return write_record(record, self.path(record.key))

    def __iter__(self) -> Iterator[Record]:
        """All readable records, each once: of two with one key the longer."""
        paths: dict[str, list[Path]] = {}
        for path in sorted((*self.root.glob(_NAME), *self.results.glob(f"**/{_NAME}"))):
            paths.setdefault(path.stem, []).append(path)
        for several in paths.values():
            found = [record for path in several if (record := self._read(path)) is not None]
            if found:
                yield max(found, key=lambda record: record.rounds)

    def _read(self, path: Path) -> Record | None:
        """The record in a file; None, with a warning, if it is damaged or its method is not available here."""
        try:
            content = whole(path)
            if content["key"] != path.stem:
                raise ValueError(f"it is of the run {content['key']}")
        except OSError as error:
            warnings.warn(f"{path.name} cannot be read ({error.strerror or error}); it is passed over", stacklevel=3)
            return None
        except ValueError as error:
            if self.results in path.parents:
                warnings.warn(f"record {path.name} is damaged ({error}); the run counts as missing", stacklevel=3)
                return None
            aside = path.with_suffix(".damaged")
            with suppress(FileNotFoundError):  # another process was faster
                os.replace(path, aside)
            warnings.warn(
                f"record {path.name} is damaged ({error}); set aside as {aside.name}, the run counts as missing",
                stacklevel=3,
            )
            return None
        try:
            return from_content(content)
        except (ValueError, KeyError, TypeError) as error:
            warnings.warn(f"record {path.name} is passed over, its run cannot be made here: {error}", stacklevel=3)
            return None


def write_record(record: Record, path: Path) -> Path:
    """The record as JSON, a line per entry, with a checksum over its content."""
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
    content = json.loads(json.dumps(content, default=_listed), parse_float=_short, parse_constant=lambda text: None)
    content["spec"] = record.spec.to_json()  # settings are never shortened
    lines = [f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in content.items() if k != "series"]
    series = [f"  {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in content["series"].items()]
    lines += ['"series": {\n' + ",\n".join(series) + "\n}", f'"sha256": "{_checksum(content)}"']
    atomic_write(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    return path


def read_record(path: Path) -> Record:
    """The record in a file; raises ValueError if it is damaged, or if its run cannot be made here."""
    return from_content(whole(path))


def whole(path: Path) -> dict[str, Any]:
    """A record's plain content; raises ValueError if it is not one, or not whole."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        raise ValueError("it is not JSON") from None
    if not isinstance(content, dict) or content.pop("sha256", None) != _checksum(content):
        raise ValueError("its checksum does not match")
    return content


def from_content(content: dict[str, Any]) -> Record:
    """The record of a file's plain content; raises ValueError if its run or its format is unknown here."""
    content = dict(content)
    series = {name: (rounds, values) for name, (rounds, values) in content.pop("series").items()}
    seconds, spec = content.pop("seconds"), RunSpec.from_json(content.pop("spec"))
    content.setdefault("schema", 1)
    if content["schema"] > SCHEMA:
        raise ValueError(f"its format is {content['schema']}, this version reads {SCHEMA}; update the project")
    return Record(spec=spec, series=series, seconds=math.nan if seconds is None else seconds, **content)


def atomic_write(path: Path, content: bytes) -> None:
    """Write beside, then rename: a reader sees the old file or the new one. Raises OSError, in one line."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        os.replace(part, path)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor | np.ndarray | np.generic) else str(value)


def _short(text: str) -> float | int:
    """Seven digits, about what a float32 holds; whole numbers as such."""
    value = float(text)
    return int(value) if value.is_integer() else float(f"{value:.7g}")


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

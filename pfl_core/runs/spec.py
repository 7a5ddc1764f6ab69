"""RunSpec: a run as plain data. Equal specs are one run, whoever asks for it."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch

from pfl_core import algorithm, data, models, partition
from pfl_core.engine import Schedule
from pfl_core.options import check_options, checked
from pfl_core.plugins import find
from pfl_core.runs.versions import versions
from pfl_core.training import Training

ComponentSpec = Mapping[str, Any]  # {"name": ..., and its options}
OWN = ("train", "val", "test", "public")  # splits of the clients' data
TAGS = ("paper", "preset", "setting", "changed")  # what a run is made for; no part of its identity
CORRUPT = {"corrupt": False, "corrupt_severity": 3}  # options of the data that ``build`` knows, with their defaults
DATA_DEFAULTS = {
    **{n: inspect.signature(data.load).parameters[n].default for n in ("normalise", "resize", "channels")},
    **CORRUPT,
}

# Fields and options that are gone or have another name today, for specs that were stored before:
# (what they belonged to, old name) -> new name, or None where the option is gone. Part: "run", "training", or a kind
# and a name such as "method fedselect".
RENAMED: dict[tuple[str, str], str | None] = {}


@dataclass(frozen=True)
class RunSpec:
    """Everything that decides a run's numbers, and (TAGS, not part of its identity) what it is made for.

    ``method``, ``data``, ``partition`` and ``model`` are parts: a name and its options, e.g.
    ``{"name": "fedselect", "alpha": 0.3}``; ``method`` may have a ``reading``. Raises ValueError, in one line, for
    unknown names, unknown options and values out of range.
    """

    method: ComponentSpec
    data: ComponentSpec = field(default_factory=lambda: {"name": "digits"})
    partition: ComponentSpec = field(default_factory=lambda: {"name": "shards", "classes_per_client": 2})
    model: ComponentSpec = field(default_factory=lambda: {"name": "cnn_small"})
    train: Training = Training()
    clients: int = 10
    rounds: int = 20
    participation: float = 1.0
    sampling: str = "each_round"
    eval_every: int = 1
    novel: float = 0.0
    seed: int = 0
    device: str = "cpu"
    paper: str = ""
    preset: str = ""
    setting: str = ""  # which of the paper's experiments, as presets names it
    changed: bool = False  # something of the preset's was replaced: no result of that preset

    def __post_init__(self) -> None:
        for kind in ("method", "data", "partition", "model"):
            part = getattr(self, kind)
            if not isinstance(part, Mapping) or not isinstance(part.get("name"), str):
                raise ValueError(f"{kind}={part!r}: a part is a name and its options, e.g. {{'name': ...}}")
        if not isinstance(self.train, Training):
            raise ValueError(f"run: train={self.train!r} is no Training; give e.g. Training(lr=0.05)")
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "train"}
        for name, value in checked(type(self), own, "run").items():
            object.__setattr__(self, name, value)
        self.build_method()
        _ = self.schedule
        if self.clients < 1:
            raise ValueError(f"clients={self.clients}: at least 1 is needed")
        check_part("partition", self.partition, partition.PARTITIONS, 3, "seed")
        check_part("model", self.model, models.MODELS, 2)
        if self.data.get("corrupt", False) not in (True, False):
            raise ValueError(
                f"data: corrupt={self.data['corrupt']!r} is neither true nor false; each client has its own kind"
            )

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> RunSpec:
        """The spec that ``to_json`` wrote, today or before a field of RENAMED changed.

        Raises ValueError for unknown or wrong fields.
        """
        if not isinstance(stored, Mapping) or "method" not in stored:
            raise ValueError(f"run {stored!r} names no method; give e.g. {{'method': {{'name': 'fedavg'}}}}")
        given = _renamed(stored, RENAMED)
        values = checked(cls, {k: v for k, v in given.items() if k != "train"}, "run")
        train = given.get("train", {})
        if not isinstance(train, Mapping):
            raise ValueError(f"run: train={train!r} is no dictionary; give e.g. {{'lr': 0.05}}")
        return cls(**values, train=Training(**checked(Training, train, "training")))

    def to_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(dataclasses.asdict(self), default=lambda value: value.item()))  # numpy's numbers

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.rounds, self.participation, self.sampling, self.eval_every, self.novel)

    def build_method(self) -> algorithm.Algorithm:
        return self._method

    @cached_property
    def _method(self) -> algorithm.Algorithm:
        return algorithm.build(
            self.method["name"], options(self.method, "reading"), self.method.get("reading", "paper")
        )

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: the fields alone."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def identity(self, written_out: bool = False) -> dict[str, Any]:
        """What decides the run's numbers, as plain data: every field that is not at its default, and no tags.

        So a field or option that is added later changes no run that is stored; one that has a new name counts under its
        old one (RENAMED). The device counts by its kind ("cuda", not "cuda:1"); where the data lie and how they come
        here do not count. ``written_out``: defaults as well, under today's names.
        """

        def part(given: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
            values = plain(given)
            if written_out:
                return {**default, **values}
            return {k: v for k, v in values.items() if k not in default or default[k] != v}

        method, division = self._method, find("partition", self.partition["name"], partition.PARTITIONS)
        network = find("model", self.model["name"], models.MODELS)
        own = {name: getattr(self, name) for name in _RUN} | {"device": self.device_kind}
        today = {
            "method": {"name": self.method["name"], **part(dataclasses.asdict(method), defaults(type(method)))},
            "data": {"name": self.data["name"], **part(options(self.data, "folder", "offline"), DATA_DEFAULTS)},
            "partition": {"name": self.partition["name"], **part(options(self.partition), defaults(division))},
            "model": {"name": self.model["name"], **part(options(self.model), defaults(network))},
            "train": part(dataclasses.asdict(self.train), defaults(Training)),
            **part(own, {name: value for name, value in defaults(RunSpec).items() if name in _RUN}),
        }
        return today if written_out else _renamed(today, {(of, new): old for (of, old), new in RENAMED.items() if new})

    @property
    def device_kind(self) -> str:
        """ "cpu", "cuda", ..."""
        return self.device.partition(":")[0]

    def checksums(self) -> dict[str, str]:
        """Data set -> checksum of the files that the run reads here; generated sets have none.

        Raises FileNotFoundError if data are not here.
        """
        name = self.data["name"]
        sums = {name: data.checksum(name, **options(self.data, *CORRUPT))}
        sums |= {name: data.checksum(name) for name in self.public_sets()}
        return {name: value for name, value in sums.items() if value}

    def public_sets(self) -> tuple[str, ...]:
        """Data sets that the method reads beside the clients' own (FedMD's ``public``)."""
        name = getattr(self.build_method(), "public", "train")
        return () if name in OWN else (name,)

    def key(self, checksums: Mapping[str, str] | None = None) -> str:
        """16 hex digits: the identity, and the versions of all that computes it (those above 1; see ``versions``).

        Data sets count by name, so no file is read. With ``checksums`` it is the key of the same run on other files of
        that name.
        """
        content: dict[str, Any] = {
            "spec": self.identity(),
            "versions": {name: version for name, version in versions(self).items() if version != 1},
        }
        if checksums is not None:
            content["data"] = dict(checksums)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def made_for(self) -> str:
        """The preset, "real"; "real, changed" where something of it was replaced."""
        return f"{self.preset}, changed" if self.preset and self.changed else self.preset

    def label(self) -> str:
        """Short, for progress and errors: the method, its options, and the seed."""
        settings = ", ".join(f"{k}={v}" for k, v in self.method.items() if k != "name")
        return f"{self.method['name']}({settings}) on {self.data['name']}, seed {self.seed}"


_PARTS = ("method", "data", "partition", "model")
_RUN = [f.name for f in dataclasses.fields(RunSpec) if f.name not in (*_PARTS, *TAGS, "train")]


@cache
def defaults(owner: type | Callable) -> dict[str, Any]:
    """Field of a dataclass, or option of a function -> its default, as plain data."""
    if dataclasses.is_dataclass(owner):
        fields = [f for f in dataclasses.fields(owner) if f.name != "train"]
        found = {f.name: f.default for f in fields} | {
            f.name: f.default_factory() for f in fields if f.default_factory is not dataclasses.MISSING
        }
    else:
        found = {name: parameter.default for name, parameter in inspect.signature(owner).parameters.items()}
    known = {k: v for k, v in found.items() if v is not dataclasses.MISSING and v is not inspect.Parameter.empty}
    return plain({k: v for k, v in known.items() if _is_json(v)})


def _is_json(value: Any) -> bool:
    """Whether a default of somebody's network, say, can be held against an option; a class cannot."""
    try:
        plain({"": value})
    except ValueError:
        return False
    return True


def plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON has it: tuples are lists, numbers of numpy plain ones, and 1.0 is 1, for they are one setting.

    Raises ValueError for a value that JSON does not know.
    """

    def of_numpy(value: Any) -> Any:
        if not hasattr(value, "item") or isinstance(value, type):
            raise ValueError(f"{value!r} is no number, text, list or dictionary, and cannot be part of a run")
        return value.item()

    return json.loads(json.dumps(given, default=of_numpy), parse_float=_number)


def _renamed(spec: Mapping[str, Any], names: Mapping[tuple[str, str], str | None]) -> dict[str, Any]:
    """A spec with other names for fields; (owner, name) -> the other name, or None: the field is left out."""
    out = dict(spec)
    for kind in (*_PARTS, "train", "run"):
        part = out if kind == "run" else out.get(kind)
        if isinstance(part, Mapping):
            owner = {"train": "training", "run": "run"}.get(kind, f"{kind} {part.get('name')}")
            here = {name: names.get((owner, name), name) for name in part}
            changed = {here[name]: value for name, value in part.items() if here[name] is not None}
            out = changed if kind == "run" else {**out, kind: changed}
    return out


def _number(text: str) -> float | int:
    return int(float(text)) if float(text).is_integer() else float(text)


def options(part: ComponentSpec, *without: str) -> dict[str, Any]:
    """A part's options: everything but its name and ``without``."""
    return {k: v for k, v in part.items() if k not in ("name", *without)}


def check_part(kind: str, part: ComponentSpec, table: Mapping, reserved: int, *own: str) -> None:
    """Raise ValueError if the part's name or one of its options, but for ``own``, does not exist."""
    check_options(f"{kind} {part['name']!r}", find(kind, part["name"], table), options(part, *own), reserved)


def check_device(name: str) -> None:
    """Raise ValueError if torch does not know the device or this machine does not have it."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device={name!r} cannot be used here ({reason}); use cpu, or cuda where there is a GPU"
        ) from None

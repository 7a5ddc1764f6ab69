"""RunSpec: a run as plain data. Equal specs are one run, whoever asks for it."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from pfl_core import algorithm, data, models, partition
from pfl_core.engine import Schedule
from pfl_core.outside import check_options, find
from pfl_core.provenance import code_hash
from pfl_core.training import Training

Part = Mapping[str, Any]  # {"name": ..., and its options}
OWN = ("train", "val", "test", "public")  # splits of the clients' data
TAGS = ("paper", "preset", "setting", "changed")  # what a run is made for; no part of its identity
DATA_DEFAULTS = {  # of ``data.load`` and of ``build``, for a run's identity
    **{n: inspect.signature(data.load).parameters[n].default for n in ("normalise", "resize", "channels")},
    "corrupt": False,
    "corrupt_severity": 3,
}


@dataclass(frozen=True)
class RunSpec:
    """Everything that decides a run's numbers, and (TAGS, not part of its identity) what it is made for.

    ``method``, ``data``, ``partition`` and ``model`` are parts: a name and its options, e.g.
    ``{"name": "fedselect", "alpha": 0.3}``; ``method`` may have a ``reading``. Raises ValueError, in one line, for
    unknown names, unknown options and values out of range.
    """

    method: Part
    data: Part = field(default_factory=lambda: {"name": "digits"})
    partition: Part = field(default_factory=lambda: {"name": "shards", "classes_per_client": 2})
    model: Part = field(default_factory=lambda: {"name": "cnn_small"})
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
        for name, value in algorithm.checked(type(self), own, "run").items():
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
    def from_json(cls, plain: Mapping[str, Any]) -> RunSpec:
        """The spec that ``to_json`` wrote; raises ValueError for unknown or wrong fields."""
        if not isinstance(plain, Mapping) or "method" not in plain:
            raise ValueError(f"run {plain!r} names no method; give e.g. {{'method': {{'name': 'fedavg'}}}}")
        values = algorithm.checked(cls, {k: v for k, v in plain.items() if k != "train"}, "run")
        train = plain.get("train", {})
        if not isinstance(train, Mapping):
            raise ValueError(f"run: train={train!r} is no dictionary; give e.g. {{'lr': 0.05}}")
        return cls(**values, train=Training(**algorithm.checked(Training, train, "training")))

    def to_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(dataclasses.asdict(self), default=lambda value: value.item()))  # numpy's numbers

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.rounds, self.participation, self.sampling, self.eval_every, self.novel)

    def build_method(self) -> algorithm.Algorithm:
        return algorithm.build(
            self.method["name"], options(self.method, "reading"), self.method.get("reading", "paper")
        )

    def identity(self) -> dict[str, Any]:
        """The spec with every default written out and without its tags; what is equal here gives equal numbers.

        An option that a method got later (``metadata={"added": True}``) is left out where it has its default.
        """
        plain = self.to_json()
        for tag in TAGS:
            del plain[tag]
        method = self.build_method()
        fields = dataclasses.asdict(method)
        for option in dataclasses.fields(method):
            if option.metadata.get("added") and fields[option.name] == option.default:
                del fields[option.name]
        plain["method"] = {"name": self.method["name"], **fields}
        for kind, table in (("partition", partition.PARTITIONS), ("model", models.MODELS)):
            function = find(kind, plain[kind]["name"], table)
            defaults = {n: p.default for n, p in inspect.signature(function).parameters.items()}
            plain[kind] = {n: v for n, v in defaults.items() if v is not inspect.Parameter.empty} | plain[kind]
        plain["data"] = DATA_DEFAULTS | {k: v for k, v in plain["data"].items() if k not in ("folder", "offline")}
        return json.loads(json.dumps(plain), parse_float=_number)

    def public_sets(self) -> tuple[str, ...]:
        """Data sets that the method reads beside the clients' own (FedMD's ``public``)."""
        name = getattr(self.build_method(), "public", "train")
        return () if name in OWN else (name,)

    def key(self) -> str:
        """16 hex digits: the identity, the data's checksums, and the code that computes it.

        Raises FileNotFoundError if data are not here.
        """
        where = [
            find("partition", self.partition["name"], partition.PARTITIONS),
            find("model", self.model["name"], models.MODELS),
        ]
        method = self.build_method()
        bases = [c for part in (method, *method.wraps) for c in type(part).__mro__]
        lineage = {c.__module__ for c in bases if issubclass(c, algorithm.Algorithm)}
        code = code_hash(
            ["pfl_core.engine", *lineage, *(function.__module__ for function in where)],
            alone=["pfl_core.runs.build", "pfl_core.data.dataset", "pfl_core.data.combine", "pfl_core.data.corrupt"],
        )
        content = [
            self.identity(),
            data.checksum(self.data["name"], **options(self.data, "corrupt", "corrupt_severity")),
            code,
            *(data.checksum(name) for name in self.public_sets()),
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def made_for(self) -> str:
        """The preset, "real"; "real, changed" where something of it was replaced."""
        return f"{self.preset}, changed" if self.preset and self.changed else self.preset

    def label(self) -> str:
        """Short, for progress and errors: the method, its options, and the seed."""
        settings = ", ".join(f"{k}={v}" for k, v in self.method.items() if k != "name")
        return f"{self.method['name']}({settings}) on {self.data['name']}, seed {self.seed}"


def _number(text: str) -> float | int:
    """1.0 as 1: they are one setting."""
    return int(float(text)) if float(text).is_integer() else float(text)


def options(part: Part, *without: str) -> dict[str, Any]:
    """A part's options: everything but its name and ``without``."""
    return {k: v for k, v in part.items() if k not in ("name", *without)}


def check_part(kind: str, part: Part, table: Mapping, reserved: int, *own: str) -> None:
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

"""RunSpec: a run as plain data. Equal specs are one run, whoever asks for it."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pfl_core import algorithm, data, models, partition
from pfl_core.engine import Schedule
from pfl_core.outside import check_options, find
from pfl_core.provenance import code_hash
from pfl_core.training import Training

Part = Mapping[str, Any]  # {"name": ..., and its options}


@dataclass(frozen=True)
class RunSpec:
    """Everything that decides a run's numbers, and (not part of its identity) for which paper and preset it is made.

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
    seed: int = 0
    device: str = "cpu"
    paper: str = ""
    preset: str = ""

    def __post_init__(self) -> None:
        self.build_method()
        _ = self.schedule
        if self.clients < 1:
            raise ValueError(f"clients={self.clients}: at least 1 is needed")
        check_part("partition", self.partition, partition.PARTITIONS, reserved=3)
        check_part("model", self.model, models.MODELS, reserved=2)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> RunSpec:
        """The spec that ``to_json`` wrote; raises ValueError for unknown or wrong fields."""
        values = algorithm.checked(cls, {k: v for k, v in plain.items() if k != "train"}, "run")
        train = plain.get("train", {})
        return cls(**values, train=Training(**algorithm.checked(Training, train, "training")))

    def to_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.rounds, self.participation, self.sampling, self.eval_every)

    def build_method(self) -> algorithm.Algorithm:
        return algorithm.build(
            self.method["name"], options(self.method, "reading"), self.method.get("reading", "paper")
        )

    def identity(self) -> dict[str, Any]:
        """The spec with every default written out and without its tags; what is equal here gives equal numbers."""
        plain = self.to_json()
        for tag in ("paper", "preset"):
            del plain[tag]
        plain["method"] = {"name": self.method["name"], **dataclasses.asdict(self.build_method())}
        for kind, table in (("partition", partition.PARTITIONS), ("model", models.MODELS)):
            function = find(kind, plain[kind]["name"], table)
            defaults = {n: p.default for n, p in inspect.signature(function).parameters.items()}
            plain[kind] = {n: v for n, v in defaults.items() if v is not inspect.Parameter.empty} | plain[kind]
        return json.loads(json.dumps(plain))

    def key(self) -> str:
        """16 hex digits: the identity, the data's checksum, and the code that computes it."""
        where = [
            find("partition", self.partition["name"], partition.PARTITIONS),
            find("model", self.model["name"], models.MODELS),
        ]
        lineage = [c.__module__ for c in type(self.build_method()).__mro__ if issubclass(c, algorithm.Algorithm)]
        code = code_hash(
            ["pfl_core.engine", *lineage, *(function.__module__ for function in where)],
            alone=["pfl_core.runs.build", "pfl_core.data.dataset", "pfl_core.data.combine", "pfl_core.data.corrupt"],
        )
        content = [
            self.identity(),
            data.checksum(self.data["name"], **options(self.data, "corrupt", "corrupt_severity")),
            code,
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def label(self) -> str:
        """Short, for progress and errors: the method, its options, and the seed."""
        settings = ", ".join(f"{k}={v}" for k, v in self.method.items() if k != "name")
        return f"{self.method['name']}({settings}) on {self.data['name']}, seed {self.seed}"


def options(part: Part, *without: str) -> dict[str, Any]:
    """A part's options: everything but its name and ``without``."""
    return {k: v for k, v in part.items() if k not in ("name", *without)}


def check_part(kind: str, part: Part, table: Mapping, reserved: int) -> None:
    """Raise ValueError if the part's name or one of its options does not exist."""
    if "name" not in part:
        raise ValueError(f"{kind}={dict(part)} has no name; give e.g. {{'name': {next(iter(table))!r}}}")
    check_options(f"{kind} {part['name']!r}", find(kind, part["name"], table), options(part, "seed"), reserved)

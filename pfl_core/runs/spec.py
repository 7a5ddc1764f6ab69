"""RunSpec: the full description of a run as plain data. Equal specs describe the same run."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import MappingProxyType
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le

from pfl_core import algorithm, data, models, partition
from pfl_core.engine import Sampling, Schedule
from pfl_core.files import checksum
from pfl_core.options import PositiveInt, check_options, checked, choices, field_types, shown
from pfl_core.plugins import find
from pfl_core.registry import METRICS
from pfl_core.runs import versions
from pfl_core.training import Training

ComponentSpec = Mapping[str, Any]  # {"name": ..., option: value, ...}
CLIENT_SPLITS = ("train", "val", "test", "public")  # splits of the clients' data
TAGS = ("paper", "preset", "setting", "changed", "metrics")  # what a run is used for; not part of its identity
CORRUPT = {"corrupt": False, "corrupt_severity": 3}  # data options that ``build`` applies, with their defaults
CORRUPT_TYPES = {"corrupt": bool, "corrupt_severity": Annotated[int, Ge(1), Le(5)]}
DATA_DEFAULTS = {
    **{n: inspect.signature(data.load).parameters[n].default for n in ("normalise", "resize", "channels")},
    **CORRUPT,
}


@dataclass(frozen=True)
class RunSpec:
    """Everything that determines a run's results, plus tags (TAGS) that are not part of its identity.

    ``method``, ``data``, ``partition`` and ``model`` are components: a name and its options, e.g.
    ``{"name": "fedselect", "alpha": 0.3}``. ``method`` may also have a ``reading``. Raises ValueError with a one-line
    message for unknown names, unknown options and values out of range.
    """

    method: ComponentSpec
    data: ComponentSpec = field(default_factory=lambda: {"name": "digits"})
    partition: ComponentSpec = field(default_factory=lambda: {"name": "shards", "classes_per_client": 2})
    model: ComponentSpec = field(default_factory=lambda: {"name": "cnn_small"})
    train: Training = Training()
    clients: PositiveInt = 10
    rounds: int = 20
    participation: float = 1.0
    sampling: Sampling = "each_round"
    eval_every: int = 1
    novel: float = 0.0
    seed: int = 0
    device: str = "cpu"
    paper: str = ""
    preset: str = ""
    setting: str = ""  # name of the paper's setting, e.g. its data set
    changed: bool = False  # differs from the preset, so it is not shown as the preset's result
    metrics: tuple[str, ...] = ()  # scores of each client after the last round, see ``pfl_core.metrics``

    def __post_init__(self) -> None:
        for kind in _COMPONENTS:
            _check_form(kind, getattr(self, kind))
        if not isinstance(self.train, Training):
            raise ValueError(f"run: train={shown(self.train)} is not a Training; give e.g. Training(lr=0.05)")
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "train"}
        for name, value in checked(type(self), values, "run").items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "partition", partition.with_checksum(self.partition))
        for name in ("paper", "preset"):  # names of folders, see `pfl runs export --results`
            if not re.fullmatch("[A-Za-z0-9_-]*", getattr(self, name)):
                raise ValueError(
                    f"run: {name}={shown(getattr(self, name))} is not a name; give letters, digits, _ or -"
                )
        for name in self.metrics:
            if name not in METRICS:
                raise ValueError(f"unknown metric {name!r}{choices(name, METRICS)}")
        self.build_method()  # these two check the fields of the method and of the schedule
        _ = self.schedule
        data.check_load(self.data["name"], options(self.data), CORRUPT_TYPES)
        # reserved parameters: partition(dataset, clients, seed, ...), model(shape, num_classes, ...)
        check_component("partition", self.partition, partition.PARTITIONS, 3, {"seed": int})
        check_component("model", self.model, models.MODELS, 2)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> RunSpec:
        """The spec that ``to_json`` wrote. Raises ValueError for unknown or wrong fields."""
        if not isinstance(stored, Mapping) or "method" not in stored:
            raise ValueError(f"run {stored!r} has no method; give e.g. {{'method': {{'name': 'fedavg'}}}}")
        given = dict(stored)
        train = given.pop("train", {})
        if not isinstance(train, Mapping):
            raise ValueError(f"run: train={train!r} is not a dictionary; give e.g. {{'lr': 0.05}}")
        for owner, name, values in ((cls, "run", given), (Training, "training", train)):
            checked(owner, {k: v for k, v in values.items() if k not in field_types(owner)}, name)  # unknown names
        return cls(**given, train=Training(**train))

    def to_json(self) -> dict[str, Any]:
        """The spec as plain JSON data, with NumPy scalars converted."""
        return json.loads(json.dumps(dataclasses.asdict(self), default=lambda value: value.item()))

    @cached_property
    def schedule(self) -> Schedule:
        """Rounds, participation and evaluation, as the engine takes them."""
        return Schedule(self.rounds, self.participation, self.sampling, self.eval_every, self.novel)

    def build_method(self) -> algorithm.Algorithm:
        """The method object; built once."""
        return self._method

    @cached_property
    def _method(self) -> algorithm.Algorithm:
        return algorithm.build(
            self.method["name"], options(self.method, "reading"), self.method.get("reading", "paper")
        )

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fields only, without the cached method object."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def identity(self, written_out: bool = False) -> dict[str, Any]:
        """What determines the run's results, as plain data: all fields that differ from their defaults, without tags.

        Defaults are left out so that adding a field or option does not change the keys of stored runs. Of the device
        only the kind counts ("cuda", not "cuda:1"). The data folder, downloading and the path of a partition's file do
        not count. ``written_out``: include the defaults.
        """
        return self._written(True) if written_out else json.loads(self._identity)

    @cached_property
    def _identity(self) -> str:
        return json.dumps(self._written(False))

    def _written(self, written_out: bool) -> dict[str, Any]:
        """``identity``. It takes a quarter of a millisecond, so that of a spec is kept."""

        def without_defaults(given: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
            values = plain(given)
            if written_out:
                return {**default, **values}
            return {k: v for k, v in values.items() if k not in default or default[k] != v}

        method = self._method
        assign = find("partition", self.partition["name"], partition.PARTITIONS)
        network = find("model", self.model["name"], models.MODELS)
        run_fields = {name: getattr(self, name) for name in _RUN_FIELDS} | {"device": self.device_kind}
        run_defaults = {name: value for name, value in defaults(RunSpec).items() if name in _RUN_FIELDS}
        # {"name": ..., options that differ from their defaults} for each component
        chosen = {
            # mypy checks the hash of an instance where the class itself is hashed
            "method": without_defaults(_fields(method), defaults(type(method))),  # type: ignore[arg-type]
            "data": without_defaults(options(self.data, "folder", "offline"), DATA_DEFAULTS),
            "partition": without_defaults(options(self.partition, *_place(self.partition)), defaults(assign)),
            "model": without_defaults(options(self.model), defaults(network)),
        }
        return {
            # the name stands first, and wins over an option that is called so
            **{kind: {"name": ""} | values | {"name": getattr(self, kind)["name"]} for kind, values in chosen.items()},
            "train": without_defaults(_fields(self.train), defaults(Training)),
            **without_defaults(run_fields, run_defaults),
        }

    @property
    def device_kind(self) -> str:
        """The device type: "cpu", "cuda", ..."""
        return self.device.partition(":")[0]

    def checksums(self) -> dict[str, str]:
        """Data set -> checksum of the files on this machine that the run reads. Generated data sets are left out.

        Raises FileNotFoundError if a file is missing.
        """
        name = self.data["name"]
        sums = {name: data.checksum(name, **options(self.data, *CORRUPT))}
        sums |= {name: data.checksum(name) for name in self.public_sets()}
        return {name: value for name, value in sums.items() if value}

    def public_sets(self) -> tuple[str, ...]:
        """Data sets that the method reads in addition to the clients' data (FedMD's ``public``)."""
        name = getattr(self.build_method(), "public", "train")
        return () if name in CLIENT_SPLITS else (name,)

    def versions(self) -> dict[str, int | str]:
        """Version of every component that the results depend on; for a user's code, the hash of its files."""
        out: dict[str, int | str] = {"engine": versions.ENGINE}
        method = self.build_method()
        for part in (method, *method.inner_algorithms):
            out |= versions.of_class(type(part))
        out |= versions.named("network", self.model["name"], models.MODELS, models.VERSIONS)
        out |= versions.named("partition", self.partition["name"], partition.PARTITIONS, partition.VERSIONS)
        for name in (self.data["name"], *self.public_sets()):
            out |= {f"data {reader}": version for reader, version in data.versions(name).items()}
        if self.data.get("corrupt"):
            out["data corrupt"] = data.VERSIONS.get("corrupt", 1)
        return out

    def key(self, checksums: Mapping[str, str] | None = None) -> str:
        """16 hex digits: hash of the identity and of the component versions above 1.

        Data sets count by name, so no file is read. With ``checksums``, it is the key of the same run on other data
        files of the same name.
        """
        content: dict[str, Any] = {
            "spec": self.identity(),
            "versions": {name: version for name, version in self.versions().items() if version != 1},
        }
        if checksums is not None:
            content["data"] = dict(checksums)
        return checksum(content)[:16]

    def tagged(self, **tags: Any) -> RunSpec:
        """The same run with other tags, whose values are not checked: its key is not computed again."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__ | tags)
        return other

    @property
    def preset_label(self) -> str:
        """The preset, e.g. "real", or "real, changed" if the run differs from it."""
        return f"{self.preset}, changed" if self.preset and self.changed else self.preset

    def label(self) -> str:
        """Short text for progress and errors: the method with its options, the data set and the seed."""
        settings = ", ".join(f"{k}={v}" for k, v in self.method.items() if k != "name")
        return f"{self.method['name']}({settings}) on {self.data['name']}, seed {self.seed}"


_COMPONENTS = ("method", "data", "partition", "model")
_RUN_FIELDS = [f.name for f in dataclasses.fields(RunSpec) if f.name not in (*_COMPONENTS, *TAGS, "train")]


@cache
def defaults(owner: Callable) -> dict[str, Any]:
    """Defaults of a dataclass's fields or a function's parameters, as plain data; what has no default is left out."""
    values: dict[str, Any]
    if dataclasses.is_dataclass(owner):
        fields = [f for f in dataclasses.fields(owner) if f.name != "train"]
        values = {f.name: f.default for f in fields}
        values |= {f.name: f.default_factory() for f in fields if f.default_factory is not dataclasses.MISSING}
    else:
        values = {name: parameter.default for name, parameter in inspect.signature(owner).parameters.items()}
    known: dict[str, Any] = {}
    for name, value in values.items():
        with suppress(ValueError):  # a default of a user's function may be anything, e.g. a class
            known[name] = plain_value(value)
    return known


def plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping with each value as JSON data, see ``plain_value``. Equal settings are then equal in JSON."""
    return {name: plain_value(value) for name, value in given.items()}


def plain_value(given: Any) -> Any:
    """A value as JSON data: tuples become lists, NumPy scalars become Python numbers, and 1.0 becomes 1.

    Raises ValueError for a value that JSON cannot represent, such as NaN.
    """

    def from_numpy(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.asdict(value)
        if not hasattr(value, "item") or isinstance(value, type):
            raise ValueError(f"an object of type {type(value).__name__}")
        return value.item()

    # most values need no detour by text
    if given is None or type(given) in (bool, int, str):
        return given
    if type(given) is float and math.isfinite(given):
        return int(given) if given.is_integer() else given
    try:
        text = json.dumps(given, default=from_numpy, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        reason = str(error).partition(":")[0]
        raise ValueError(f"not possible in a run ({reason}); give finite numbers, text, lists, dictionaries") from None
    return json.loads(text, parse_float=_number)


def _number(text: str) -> float | int:
    """An integer if the value is whole, so that 1.0 and 1 are equal in JSON."""
    return int(float(text)) if float(text).is_integer() else float(text)


def _fields(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass; ``dataclasses.asdict`` takes ten times as long."""
    return {name: getattr(instance, name) for name in field_types(type(instance))}


def options(component: ComponentSpec, *without: str) -> dict[str, Any]:
    """A component's options: everything except its name and ``without``."""
    return {k: v for k, v in component.items() if k not in ("name", *without)}


def _check_form(kind: str, component: Any) -> None:
    """Raise ValueError if a component has no name, or an option that JSON cannot represent."""
    if not isinstance(component, Mapping) or not isinstance(component.get("name"), str):
        raise ValueError(f"{kind}={component!r} has no name; give a name and options, e.g. {{'name': ...}}")
    for name, value in component.items():
        if not isinstance(name, str):
            raise ValueError(f"{kind}: the option {name!r} is not text; give names of options as text")
        try:
            plain_value(value)
        except ValueError as error:
            raise ValueError(f"{kind}: {name}={shown(value)}: {error}") from None


def _place(component: ComponentSpec) -> tuple[str, ...]:
    """Options that say where a partition's file lies; its content counts (``partition.with_checksum``)."""
    return ("file",) if component["name"] == "csv" else ()


def check_component(
    kind: str, component: ComponentSpec, table: Mapping, reserved: int, more: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Raise ValueError for an unknown name, and for unknown or wrong options. ``more``: further options and types."""
    function = find(kind, component["name"], table)
    check_options(f"{kind} {component['name']!r}", function, options(component), reserved, more)


def check_device(name: str) -> None:
    """Raise ValueError if torch cannot use the device on this machine."""
    try:
        torch.zeros(1, device=name).item()  # reads a value back, which "meta" cannot
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device={name!r} cannot be used on this machine ({reason}); use cpu, or cuda on a machine with a GPU"
        ) from None

"""Which versions a run's key takes in.

The engine and each method, network, partition and data set have a version, a whole number from 1. It is raised when
the results of stored specs change beyond rounding, and never for a move, a new name or a faster way to the same
numbers. A change that concerns some settings only is a new value of a field instead, with the old value as its default.
The golden results (``tests/golden/``) show which version a change has to raise.

| version of | stands in |
| --- | --- |
| the engine: federation, operations on rows, training, seeding, the loop | ``ENGINE`` below |
| a method, or a class that methods share | ``version``, an attribute of the class |
| a network | ``VERSIONS`` in ``pfl_core/models.py`` |
| a partition | ``VERSIONS`` in ``pfl_core/partition/__init__.py`` |
| a data set's reader, ``combine`` and ``corrupt`` | ``VERSIONS`` in ``pfl_core/data/catalogue.py`` |

Code from outside the package has no version: the bytes of its files take its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pfl_core import algorithm, data, models, partition
from pfl_core.plugins import PACKAGE, code_of

if TYPE_CHECKING:
    from pfl_core.runs.spec import RunSpec

ENGINE = 1


def versions(spec: RunSpec) -> dict[str, int | str]:
    """Component -> version, or the hash of a user's code; every component that the run's numbers depend on."""
    found: dict[str, int | str] = {"engine": ENGINE}
    method = spec.build_method()
    for part in (method, *method.inner_algorithms):
        found |= _of_class(type(part))
    found |= named("network", spec.model["name"], models.MODELS, models.VERSIONS)
    found |= named("partition", spec.partition["name"], partition.PARTITIONS, partition.VERSIONS)
    for name in (spec.data["name"], *spec.public_sets()):
        found |= {f"data {part}": value for part, value in data.versions(name).items()}
    if spec.data.get("corrupt"):
        found["data corrupt"] = data.VERSIONS.get("corrupt", 1)
    return found


def named(kind: str, name: str, table: Mapping[str, Callable], raised: Mapping[str, int]) -> dict[str, int | str]:
    """The version of a name that this package registers, 1 unless it was raised; else the hash of the user's module."""
    module = name.partition(":")[0] if ":" in name else table[name].__module__
    own = ":" not in name and module.partition(".")[0] == PACKAGE
    return {f"{kind} {name}": raised.get(name, 1) if own else code_of(module)}


def _of_class(cls: type) -> dict[str, int | str]:
    """A method's class and its bases."""
    found: dict[str, int | str] = {}
    for base in cls.__mro__:
        if base is algorithm.Algorithm or not issubclass(base, algorithm.Algorithm):
            continue
        if base.__module__.partition(".")[0] == PACKAGE:
            found[f"method {algorithm.name_of(base)}"] = vars(base).get("version", 1)
        else:
            found[f"code {base.__module__}"] = code_of(base.__module__)
    return found

"""The component versions that are part of a run's key.

The engine and each method, network, partition and data set have an integer version, starting at 1. A version is raised
when the results of stored specs change beyond rounding. It is not raised for a moved or renamed module or a faster
implementation. A change that affects only some settings becomes a new value of a field, with the old value as default.
The golden results (``tests/golden/``) show which version a change must raise.

| version of | defined in |
| --- | --- |
| the engine: federation, operations on rows, training, seeding, the loop | ``ENGINE`` below |
| a method, or a class that methods share | ``version``, an attribute of the class |
| a network | ``VERSIONS`` in ``pfl_core/models.py`` |
| a partition | ``VERSIONS`` in ``pfl_core/partition/__init__.py`` |
| a data set's reader, ``combine`` and ``corrupt`` | ``VERSIONS`` in ``pfl_core/data/catalogue.py`` |

Code from outside the package has no version. The hash of its files is used instead, with the files that a function or
class names in its attribute ``files``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pfl_core import algorithm
from pfl_core.plugins import PACKAGE, find, version_of

ENGINE = 1


def named(kind: str, name: str, table: Mapping[str, Callable], raised: Mapping[str, int]) -> dict[str, int | str]:
    """The version of a component by name. A name of this package has version 1 or an entry in ``raised``; for a user's
    code it is the hash of the module.
    """
    owner = find(kind, name, table)
    module = name.partition(":")[0] if ":" in name else owner.__module__
    in_package = ":" not in name and module.partition(".")[0] == PACKAGE
    return {f"{kind} {name}": raised.get(name, 1) if in_package else version_of(module, owner)}


def of_class(cls: type) -> dict[str, int | str]:
    """Versions of a method's class and of its base classes."""
    out: dict[str, int | str] = {}
    # Algorithm itself and mixins that are not methods have no version
    for base in cls.__mro__:
        if base is algorithm.Algorithm or not issubclass(base, algorithm.Algorithm):
            continue
        if base.__module__.partition(".")[0] == PACKAGE:
            out[f"method {algorithm.name_of(base)}"] = vars(base).get("version", 1)
        else:
            out[f"code {base.__module__}"] = version_of(base.__module__, cls)
    return out

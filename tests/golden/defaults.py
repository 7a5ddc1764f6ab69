"""The defaults of everything that a spec names: they are left out of keys, so a changed one has to raise a version.

A field that is added raises none: `make golden` writes it down.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from pfl_core import algorithm, data, models, partition
from pfl_core.runs.spec import DATA_DEFAULTS, RunSpec, defaults
from pfl_core.training import Training
from tests.golden.digest import Numbers


def owners() -> dict[str, type | Callable]:
    """Case -> the class or function that has the defaults; a case begins with the component."""
    found: dict[str, type | Callable] = {
        "engine, training": Training,
        "engine, run": RunSpec,
        "engine, data": data.load,
    }
    found |= {f"method {name}": cls for name, cls in algorithm.registered().items()}
    for kind, table in (("partition", partition.PARTITIONS), ("network", models.MODELS)):
        found |= {f"{kind} {name}": function for name, function in table.items()}
    return found


def wanted() -> tuple[str, ...]:
    return tuple(owners())


def numbers(case: str) -> Numbers:
    own = DATA_DEFAULTS if case == "engine, data" else defaults(owners()[case])
    return {name: json.dumps(value, sort_keys=True) for name, value in own.items()}


def component(case: str) -> str:
    return case.partition(",")[0]

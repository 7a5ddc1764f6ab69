"""A small run that takes a few hundredths of a second, and what must be equal of two runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

from pfl_core.runs import Record, RunSpec
from pfl_core.training import Training
from tests.runs.outside import HERE

SMALL = {
    "data": {"name": f"{HERE}:blobs"},
    "partition": {"name": "shards", "classes_per_client": 2},
    "model": {"name": "mlp", "hidden": [6]},
    "train": Training(lr=0.1, epochs=1, batch_size=8),
    "clients": 4,
    "rounds": 4,
}


def bits(record: Record) -> tuple:
    """All but times and the machine; numbers as text, so that NaN equals itself."""
    series = {name: str(pair) for name, pair in record.series.items() if name != "seconds"}
    arrays = {name: str(x.tolist() if isinstance(x, Tensor) else x) for name, x in record.arrays.items()}
    return record.key, record.state, series, arrays, record.clients


@pytest.fixture
def spec() -> Callable[..., RunSpec]:
    """``spec("fedselect", alpha=0.3, rounds=2)``: fields of the run by their names, all others are the method's."""

    def make(method: str = "fedavg", **changes) -> RunSpec:
        fields = {k: changes.pop(k) for k in list(changes) if k in RunSpec.__dataclass_fields__}
        return RunSpec(**{**SMALL, "method": {"name": method, **changes}, **fields})

    return make

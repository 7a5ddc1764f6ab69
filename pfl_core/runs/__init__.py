"""Runs: from a spec to a stored record. A stored run is not computed again."""

from pfl_core.deadline import SweepError
from pfl_core.runs.build import assign, build, load_data
from pfl_core.runs.execute import execute
from pfl_core.runs.record import Record
from pfl_core.runs.spec import RunSpec
from pfl_core.runs.store import RESULTS, Store, read_record, write_record
from pfl_core.runs.sweep import sweep

__all__ = [
    "RESULTS",
    "Record",
    "RunSpec",
    "Store",
    "SweepError",
    "build",
    "assign",
    "execute",
    "load_data",
    "read_record",
    "sweep",
    "write_record",
]

"""What must stay the same while the code behind notebooks and claims moves. Deleted once the notebooks are redone.

- ``keys.json``: for each notebook and preset the number of its runs and a digest of their keys;
- ``records.json``: the keys of the records that count here; records that are added later change nothing;
- ``cells.json``: the rows of ``pfl compare`` from these records;
- ``words.json``: what the checks before the engine of claims said by the numbers of these records alone, by preset.

The CSV files beside the committed figures need no copy: they are in the repository themselves.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from pfl_core import papers
from pfl_core.runs import Store
from pfl_core.study import frame
from pfl_core.study.presets import PRESETS

HERE = Path(__file__).parent


def read(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text())


def keys() -> dict[str, list]:
    """Notebook and preset -> number of runs, digest of their keys."""
    found = {}
    for name in papers.STUDIES:
        study = papers.study(name)
        for notebook in study.experiments:
            for preset in (preset for preset in PRESETS if preset in study.presets):
                of_runs = [spec.key() for spec in study.specs(notebook, preset)]
                digest = hashlib.sha256("".join(of_runs).encode()).hexdigest()[:16]
                found[f"{name}/{notebook} {preset}"] = [len(of_runs), digest]
    return found


@cache
def runs(name: str) -> pd.DataFrame:
    """The frame of the records of a paper that count here."""
    store, counted, paper = Store(root=Path(os.devnull)), set(read("records")), papers.paper(name)
    records = [store.get(key) for key, paths in store.files().items() if key in counted]
    return paper.frame(record for record in records if record is not None and record.spec.paper == name)


def measured(name: str) -> pd.DataFrame:
    """The frame with the committed measurements."""
    return pd.concat([runs(name), frame.frame(papers.paper(name).measured_rows())])


def plain(value: Any) -> Any:
    """JSON data without NaN and with ten digits."""
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.10g}")
    return value

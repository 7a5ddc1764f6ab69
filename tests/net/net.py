"""What must stay the same while the code behind notebooks and claims moves. Deleted once the notebooks are redone.

``python -m tests.net.net`` writes the files that ``test_net`` compares with:

- ``keys.json``: for each notebook and preset the number of its runs and a digest of their keys;
- ``records.json``: the keys of the records that count here; records that are added later change nothing;
- ``cells.json``: the rows of ``pfl compare`` from these records;
- ``words.json``: what the former checks said of each claim by the numbers of these records alone, by preset.

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

from pfl_core import papers
from pfl_core.runs import Record, Store
from pfl_core.study.presets import PRESETS

HERE = Path(__file__).parent


def read(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text())


def write(name: str, content: dict | list) -> None:
    rows = content.items() if isinstance(content, dict) else [(None, row) for row in content]
    lines = [("" if key is None else f"{json.dumps(key)}: ") + json.dumps(value) for key, value in rows]
    first, last = "{}" if isinstance(content, dict) else "[]"
    (HERE / f"{name}.json").write_text(f"{first}\n" + ",\n".join(lines) + f"\n{last}\n")


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
def records() -> dict[str, list[Record]]:
    """Paper -> the records that count here."""
    store, of_paper = Store(root=Path(os.devnull)), {}
    counted = set(read("records")) if (HERE / "records.json").exists() else None
    for record in store:
        if counted is None or record.key in counted:
            of_paper.setdefault(record.spec.paper, []).append(record)
    return of_paper


def plain(value: Any) -> Any:
    """JSON data without NaN and with ten digits."""
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.10g}")
    return value


if __name__ == "__main__":
    from pfl_core.study.claims import claims
    from pfl_core.study.compare import compare

    write("keys", keys())
    write("records", sorted(record.key for own in records().values() for record in own))
    cells, words = [], {}
    for name in papers.PAPERS:
        paper = papers.paper(name)
        frame = paper.metrics_frame(records()[name])
        rows = compare(paper.comparison, frame)
        cells += [{column: plain(value) for column, value in {"of": name, **row}.items()} for row in rows]
        frame = frame[~frame["partial"].eq(True)]
        for preset in ("paper", "real"):
            results = frame[frame["preset"] == preset]
            if paper.measured and len(measured := paper.measured.committed(preset)):
                checked = {n: measured for n in paper.measured.claims}
            else:
                checked = {}
            for claim in claims(paper.claims):
                words[f"{name} {claim.number} {preset}"] = claim.check(checked.get(claim.number, results))
    write("cells", cells)
    write("words", words)

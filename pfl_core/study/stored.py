"""The runs of a notebook: stored records, and missing ones computed or listed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from pfl_core.runs import Record, RunSpec, Store, sweep
from pfl_core.study.conditions import failed_line
from pfl_core.study.methods import NAMES
from pfl_core.study.presets import DECIDING


def read_or_compute(
    specs: Sequence[RunSpec], train: bool = False, store: Store | None = None, notebook: str = ""
) -> list[Record]:
    """The stored records of these runs, for a notebook. At presets ci and quick, missing runs are computed.

    At real and paper, missing runs are listed. They are computed only with ``train`` or if the environment has
    PFL_TRAIN=1, as ``pfl figures`` sets it; runs that were stopped early are then continued. With PFL_TRAIN=0 nothing
    is computed. Committed records are used even if they were computed from other data files than those on this machine,
    see ``Store.display_record``. Runs without record whose data are not on this machine are left out, with a line. Runs
    whose training failed are listed, too. Raises FileNotFoundError if there is no record.

    ``notebook``: of the command that computes missing runs.
    """
    store, slow = store or Store(), any(spec.preset in DECIDING for spec in specs)
    asked = os.environ.get("PFL_TRAIN")
    train = asked != "0" and (train or asked == "1" or not slow)
    stored: list[tuple[RunSpec, Record | None]] = []
    unusable: Counter[str] = Counter()  # runs by reason
    for spec in specs:
        try:
            record = store.display_record(spec)
            if record is None and asked != "0":
                spec.checksums()
            stored.append((spec, record))
        except (FileNotFoundError, ValueError) as error:  # ValueError: the user's own data file was deleted
            unusable[str(error)] += 1
    command = f"`pfl figures {notebook} --preset {specs[0].preset}`" if notebook and specs else "`pfl figures`"
    if not stored:
        raise FileNotFoundError(next(iter(unusable), "there are no runs to show"))
    for reason, left_out in unusable.items():
        print(f"left out, {left_out} runs: {reason}")
    found = [record for _, record in stored]
    missing = [i for i, (_, record) in enumerate(stored) if record is None or record.partial and train]
    if train:
        jobs = 1 if all(spec.preset == "ci" for spec in specs) else None
        for i, record in zip(missing, sweep([stored[i][0] for i in missing], jobs=jobs, store=store), strict=True):
            found[i] = record
    elif missing:
        of_method = Counter(stored[i][0].method["name"] for i in missing)
        named = ", ".join(f"{NAMES[name]} {count}" for name, count in of_method.items())
        print(f"not stored, so not drawn: {len(missing)} of {len(stored)} runs ({named}); compute with {command}")
    records = [record for record in found if record is not None]
    if not records:
        raise FileNotFoundError(
            f"none of these {len(stored)} runs is stored; compute them with {command}, or set TRAIN = True here"
        )
    if lines := failed_line(records):
        print(lines)
    return records

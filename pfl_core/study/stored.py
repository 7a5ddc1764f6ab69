"""The runs of a notebook: which of them are available, and their records."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from pfl_core.runs import Record, RunSpec, Store, sweep
from pfl_core.study.conditions import failed_line
from pfl_core.study.methods import NAMES


def available(specs: Sequence[RunSpec], store: Store | None = None) -> list[RunSpec]:
    """The runs that are stored or whose data are on this machine. Prints a line about the others.

    With PFL_TRAIN=0 nothing is computed, so the data do not matter, and all runs are returned.
    Raises FileNotFoundError if no run is available.
    """
    if os.environ.get("PFL_TRAIN") == "0":
        return list(specs)
    store = store or Store()
    usable: list[RunSpec] = []
    unusable: dict[str, list[RunSpec]] = {}  # by reason
    for spec in specs:
        try:
            if store.display_record(spec) is None:
                spec.checksums()
            usable.append(spec)
        except (FileNotFoundError, ValueError) as error:  # ValueError: the user's own data file was deleted
            unusable.setdefault(str(error), []).append(spec)
    if not usable:
        raise FileNotFoundError(next(iter(unusable), "there are no runs to show"))
    for reason, left_out in unusable.items():
        print(f"left out, {len(left_out)} runs: {reason}")
    return usable


def read_or_compute(specs: Sequence[RunSpec], train: bool = False, store: Store | None = None) -> list[Record]:
    """The stored records of these runs, for a notebook. At presets ci and quick, missing runs are computed.

    At real and paper, missing runs are listed. They are computed only with ``train`` or if the environment has
    PFL_TRAIN=1, as ``pfl figures`` sets it; runs that were stopped early are then continued. Committed records are used
    even if they were computed from other data files than those on this machine, see ``Store.display_record``.
    Runs whose training failed are listed, too. Raises FileNotFoundError if there is no record.
    """
    store, slow = store or Store(), any(spec.preset in ("real", "paper") for spec in specs)
    train = train or os.environ.get("PFL_TRAIN") == "1" or not slow
    stored = [store.display_record(spec) for spec in specs]
    missing = [i for i, record in enumerate(stored) if record is None or record.partial and train]
    if train:
        jobs = 1 if all(spec.preset == "ci" for spec in specs) else None
        for i, record in zip(missing, sweep([specs[i] for i in missing], jobs=jobs, store=store), strict=True):
            stored[i] = record
    elif missing:
        of_method = Counter(specs[i].method["name"] for i in missing)
        named = ", ".join(f"{NAMES.get(name, name)} {count}" for name, count in of_method.items())
        print(f"not stored, so not drawn: {len(missing)} of {len(specs)} runs ({named}); compute with `pfl figures`")
    found = [record for record in stored if record is not None]
    if not found:
        raise FileNotFoundError(
            f"none of these {len(specs)} runs is stored; compute them with `pfl figures`, or set TRAIN = True here"
        )
    if lines := failed_line(found):
        print(lines)
    return found

"""The runs behind a notebook: which of them can be had, and their records."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pfl_core.runs import Record, RunSpec, Store, sweep

SHOWN = 10  # missing runs that are listed by name


def available(wanted: Sequence[RunSpec], store: Store | None = None) -> list[RunSpec]:
    """Those of the runs that are stored, or whose data are on this machine; a line is printed for the others.

    Raises FileNotFoundError if none is left.
    """
    store, here, absent = store or Store(), [], {}
    for one in wanted:
        try:
            if store.display_record(one) is None:
                one.checksums()
            here.append(one)
        except (FileNotFoundError, ValueError) as error:  # not here, or a file of one's own that is gone
            absent.setdefault(str(error), []).append(one)
    if not here:
        raise FileNotFoundError(next(iter(absent), "no runs were asked for"))
    for why, left_out in absent.items():
        print(f"left out, {len(left_out)} runs: {why}")
    return here


def records(wanted: Sequence[RunSpec], train: bool = False, store: Store | None = None) -> list[Record]:
    """What a notebook draws: the stored records of these runs, and at presets ci and quick the missing ones as well.

    At real and paper a notebook computes nothing unasked: what is missing is listed, and made only with ``train``, or
    where the environment has PFL_TRAIN=1, as under ``pfl figures``. Records that were made with other data than those
    here are drawn if they are committed, see ``Store.drawn``; runs that were stopped early go on if training is asked
    for. Raises FileNotFoundError if there is nothing to draw.
    """
    store, slow = store or Store(), any(one.preset in ("real", "paper") for one in wanted)
    train = train or os.environ.get("PFL_TRAIN") == "1" or not slow
    stored = [store.display_record(one) for one in wanted]
    lacking = [i for i, record in enumerate(stored) if record is None or record.partial and train]
    if train:
        jobs = 1 if all(one.preset == "ci" for one in wanted) else None
        for i, record in zip(lacking, sweep([wanted[i] for i in lacking], jobs=jobs, store=store), strict=True):
            stored[i] = record
    elif lacking:
        print(_listed([wanted[i] for i in lacking], len(wanted)))
    found = [record for record in stored if record is not None]
    if not found:
        raise FileNotFoundError(
            f"none of these {len(wanted)} runs is stored; `pfl figures` makes them, or this notebook with TRAIN = True"
        )
    return found


def _listed(missing: Sequence[RunSpec], total: int) -> str:
    """What a figure is drawn without."""
    lines = [f"not stored, so not drawn: {len(missing)} of {total} runs (`pfl figures` or TRAIN = True makes them)"]
    lines += [f"   {one.label()}" for one in missing[:SHOWN]]
    return "\n".join(lines + [f"   and {len(missing) - SHOWN} more"] * (len(missing) > SHOWN))

"""What a computation takes here: processor seconds, and the memory of its tensors at its peak.

Seconds are those of the processor, so that other programs count less, and only ratios within one measurement mean
anything. Memory is counted, not sampled: equal computations give equal numbers on every machine.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pfl_core.data import data_dir
from pfl_core.runs.provenance import describe
from pfl_core.runs.store import RESULTS, atomic_write


def once(name: str, measure: Callable[[], pd.DataFrame], version: int, committed: str = "") -> pd.DataFrame:
    """What ``measure()`` returns, or returned before on this machine, by this ``version`` of what is measured.

    Kept beside the runs as ``<name>-<hash>.measured``, JSON; ``pfl runs clean --all`` drops it. A damaged file is made
    anew. ``committed``: a folder below data/results whose ``<name>.measured`` is shown instead where there is one,
    whichever machine made it. The index and the columns must be plain: without levels, text or numbers.
    """
    if committed and (found := read(RESULTS / committed / f"{name}.measured")) is not None:
        return found
    here = {key: value for key, value in describe().items() if key != "commit"}
    key = hashlib.sha256(json.dumps([version, here], sort_keys=True).encode()).hexdigest()[:16]
    path = data_dir() / "runs" / f"{name}-{key}.measured"
    if (table := read(path)) is None:
        table = measure()
        atomic_write(path, json.dumps(table.to_dict("split")).encode())
    return table


def read(path: Path) -> pd.DataFrame | None:
    """A table that was kept; None if it is missing or damaged."""
    try:
        return pd.DataFrame(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError):
        return None


def seconds(work: Mapping[str, Callable[[], object]], turns: int) -> pd.DataFrame:
    """Processor seconds of each piece of work; all run once unmeasured, then take turns. Columns: label, turn, seconds.

    Taking turns, a slow minute of the machine slows them all; compare pieces within a turn.
    """
    rows = []
    for turn in range(turns + 1):
        for label, function in work.items():
            began = time.process_time()
            function()
            rows.append((label, turn, time.process_time() - began))
    frame = pd.DataFrame(rows, columns=["label", "turn", "seconds"])
    return frame[frame["turn"] > 0].reset_index(drop=True)


def peak_bytes(function: Callable[[], object]) -> int:
    """Bytes of the tensors that ``function`` makes, its result among them, when together they are largest."""
    with _Tensors() as tensors:
        function()
    return tensors.peak


class _Tensors(TorchDispatchMode):
    """Follows every storage that an operation returns, until it is freed.

    What was there before does not count, nor does the scratch space inside one operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[StorageWeakRef, int] = {}  # of living storages; 0 for those that were there before
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._note((args, kwargs), counts=False)
        out = func(*args, **(kwargs or {}))
        self.sizes = {ref: size for ref, size in self.sizes.items() if not ref.expired()}
        self._note(out, counts=True)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return out

    def _note(self, values: object, *, counts: bool) -> None:
        for value in tree_leaves(values):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                self.sizes.setdefault(StorageWeakRef(storage), storage.nbytes() if counts else 0)

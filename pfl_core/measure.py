"""What a computation takes here: processor seconds, and the memory of its tensors at its peak.

Seconds are those of the processor, so that other programs count less, and only ratios within one measurement mean
anything. Memory is counted, not sampled: equal computations give equal numbers on every machine.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pfl_core.data import data_dir
from pfl_core.provenance import code_hash, describe
from pfl_core.runs.store import atomic_write

CPUINFO = Path("/proc/cpuinfo")


def once(name: str, measure: Callable[[], pd.DataFrame], module: str) -> pd.DataFrame:
    """What ``measure()`` returns, or returned before: here, with ``module``'s code and these versions of libraries.

    Kept beside the runs as ``<name>-<hash>.measured``, JSON; ``pfl runs clean --all`` drops it. A damaged file is made
    anew. The index and the columns must be plain: without levels, text or numbers.
    """
    here = {key: value for key, value in describe().items() if key != "commit"}
    key = hashlib.sha256(json.dumps([code_hash([module]), here], sort_keys=True).encode()).hexdigest()[:16]
    path = data_dir() / "runs" / f"{name}-{key}.measured"
    try:
        return pd.DataFrame(**json.loads(path.read_text()))
    except (OSError, TypeError, ValueError):
        table = measure()
        atomic_write(path, json.dumps(table.to_dict("split")).encode())
        return table


def processor() -> str:
    """The processor's model as the system names it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", CPUINFO.read_text(), re.MULTILINE)
    except OSError:  # no Linux
        found = None
    return found[1].strip() if found else platform.processor() or "a processor that the system does not name"


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

"""Measures the CPU time of a computation and the peak memory of its tensors.

CPU time depends less on other programs than wall time; only ratios within one measurement are meaningful. Memory is
computed from tensor sizes, not sampled, so equal computations give equal numbers on every machine.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pandas as pd
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pfl_core.data import data_dir
from pfl_core.files import atomic_write, checksum, parsed
from pfl_core.runs.provenance import describe
from pfl_core.runs.store import RESULTS


def once(name: str, measure: Callable[[], pd.DataFrame], version: int, committed: str = "") -> pd.DataFrame:
    """The result of ``measure()``, cached on disk for this machine and this ``version`` of the measured code.

    The cache is a JSON file ``<name>-<hash>.measured`` in the folder of the runs; one that is damaged or deleted is
    measured again. ``committed``: a folder in data/results/; its ``<name>.measured`` of any machine is returned if it
    exists. Index and columns must have one level, of text or numbers.
    """
    if committed and (stored := read(RESULTS / committed / f"{name}.measured")) is not None:
        return stored
    machine = {key: value for key, value in describe().items() if key != "commit"}
    key = hashlib.sha256(json.dumps([version, machine], sort_keys=True).encode()).hexdigest()[:16]
    path = data_dir() / "runs" / f"{name}-{key}.measured"
    if (table := read(path)) is None:
        table = measure()
        with suppress(OSError):  # on a full disk it is measured again next time
            content = json.loads(json.dumps(table.to_dict("split")))
            atomic_write(path, json.dumps({**content, "sha256": checksum(content)}).encode())
    return table


def read(path: Path) -> pd.DataFrame | None:
    """A table from its file; None if the file is missing or damaged."""
    with suppress(OSError, TypeError, ValueError, AttributeError):
        content = parsed(path.read_bytes())
        if content.pop("sha256", None) == checksum(content):
            return pd.DataFrame(**content)
    return None


def seconds(work: Mapping[str, Callable[[], object]], turns: int) -> pd.DataFrame:
    """CPU seconds of each function in ``work``. Columns: label, turn, seconds.

    All functions run once without measurement, then alternately for ``turns`` turns, so that a slow phase of the
    machine affects all of them. Compare functions within a turn.
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
    """Peak bytes of the tensors that ``function`` creates, including its result."""
    with _StorageTracker() as tracker:
        function()
    return tracker.peak


class _StorageTracker(TorchDispatchMode):
    """Tracks every storage that an operation returns until it is freed.

    Storages that existed before, and temporary memory inside an operation, are not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[StorageWeakRef, int] = {}  # bytes of live storages; 0 for those that existed before
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._track((args, kwargs), counts=False)
        out = func(*args, **(kwargs or {}))
        # forget freed storages, then add the new ones
        self.sizes = {ref: size for ref, size in self.sizes.items() if not ref.expired()}
        self._track(out, counts=True)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return out

    def _track(self, values: object, *, counts: bool) -> None:
        for value in tree_leaves(values):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                self.sizes.setdefault(StorageWeakRef(storage), storage.nbytes() if counts else 0)

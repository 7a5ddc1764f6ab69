"""A run to compute, as plain data: planned in one process, computed there or in another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pfl_core.runs.record import Series
from pfl_core.runs.spec import RunSpec

StopWhen = Callable[[Series], bool]


class SweepEndedError(RuntimeError):
    """The sweep that asked for a run has ended."""


@dataclass(frozen=True)
class Prefix:
    """The first rounds of a run, which others share, see ``prefix``."""

    key: str  # of the run that is computed for all
    rounds: int


@dataclass(frozen=True)
class Task:
    """A run to compute: where it starts, what it leaves, and when it stops.

    Attributes:
        key: the run's key, ``store.key_of(spec)``.
        checksums: of the data that the run was planned with; None: those of the data on this machine.
        prefix: the shared prefix that the run may start from.
        saves: rounds after which the run saves its state as a shared prefix of other runs.
        until: stop after this number of rounds. The record is then partial.
        record: if False, only the saved states are wanted: prefixes that exist are not made again, and no record is
            stored.
        keep_state: save the final state as a checkpoint, from which this run or one with more rounds can continue.
        stop_at: seconds since 1970. After this time the run saves a checkpoint after its round and stops.
        stop_when: called after each evaluation with the series of all rounds so far. If it returns True, the run ends
            there. Its record is then partial.
        threads: how many clients are computed at the same time, see ``Federation``.
        log: the folder in which a sweep logs the run, see ``log.RunLog``.
    """

    spec: RunSpec
    key: str
    checksums: Mapping[str, str] | None = None
    prefix: Prefix | None = None
    saves: tuple[int, ...] = ()
    until: int | None = None
    record: bool = True
    keep_state: bool = False
    stop_at: float | None = None
    stop_when: StopWhen | None = None
    threads: int = 1
    log: Path | None = None

    @property
    def rounds(self) -> int:
        """The number of rounds after which the task is complete."""
        return self.spec.rounds if self.until is None else min(self.until, self.spec.rounds)

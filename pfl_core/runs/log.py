"""Logs of running runs: a CSV file with a line for each round, and events for TensorBoard where it is installed."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pandas as pd

from pfl_core.files import atomic_write, remove
from pfl_core.runs.record import Record, Series
from pfl_core.runs.spec import RunSpec

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

COLUMNS = ("train_loss", "loss", "acc_mean", "acc_pooled", "acc_bottom_decile", "seconds")  # after the round's number
FORMAT = "%.6g"


def scores(spec: RunSpec, series: Series) -> pd.DataFrame:
    """A row for each round (index, from 1), with COLUMNS; NaN where a round was not evaluated.

    Losses are means over the clients, ``loss`` on test data. Accuracies are in percent, scored where the method reports
    them, as in ``Record.summary``. ``seconds`` is the time of the round without evaluation.
    """
    record = Record("", spec, series)
    columns = {name: record.values(name).mean(axis=1) for name in ("train_loss", "loss", "seconds") if name in series}
    if "correct" in series:
        columns |= dict(record.reported_curve())
    return pd.DataFrame(columns).rename_axis("round").reindex(columns=list(COLUMNS))


def last_scores(spec: RunSpec, series: Series) -> dict[str, str]:
    """Training loss and accuracy of the last rounds that have them, for a progress bar."""
    last = scores(spec, {name: (rounds[-1:], values[-1:]) for name, (rounds, values) in series.items()}).ffill()
    shown = {"loss": last["train_loss"], "acc": last["acc_mean"]}
    return {name: f"{column.iloc[-1]:.4g}" for name, column in shown.items() if column.notna().any()}


def check_folder(folder: Path) -> None:
    """Raise OSError if no file can be written to the folder."""
    probe = folder / ".pfl-log"
    atomic_write(probe, b"")
    remove(probe)


class RunLog:
    """The log of one run in ``folder``: METHOD-KEY.csv, and TensorBoard's events in the folder METHOD-KEY.

    The first update replaces what an interrupted process logged, so that a continued run has each round once. A context
    manager, which closes TensorBoard's file.
    """

    def __init__(self, folder: Path, spec: RunSpec, key: str) -> None:
        name = f"{re.sub(r'[^A-Za-z0-9_]+', '_', spec.method['name'])}-{key}"
        self.spec, self.path, self.events = spec, folder / f"{name}.csv", folder / name
        self.done = 0  # rounds in the file
        self.writer: SummaryWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self.writer:
            self.writer.close()

    def update(self, series: Series) -> None:
        """Log all rounds of ``series`` that are not logged yet.

        A log that cannot be written costs no run: the next update then writes all rounds again.
        """
        try:
            self._write(scores(self.spec, _after(self.done, series)))
        except OSError:
            self.done = 0

    def _write(self, rows: pd.DataFrame) -> None:
        if rows.empty:
            return
        first = not self.done
        lines = rows.to_csv(header=first, float_format=FORMAT, lineterminator="\n").encode()
        if first:
            atomic_write(self.path, lines)
            self.writer = _event_writer(self.events)
        else:
            with self.path.open("ab") as file:
                file.write(lines)
        if self.writer:
            for number, row in rows.iterrows():
                for name, value in row.dropna().items():
                    self.writer.add_scalar(name, value, number)
            self.writer.flush()
        self.done = int(rows.index[-1])


def _after(done: int, series: Series) -> Series:
    """The series from round ``done`` + 1 on; metrics without a value there are left out."""
    out: Series = {}
    for name, (rounds, values) in series.items():
        later = [i for i, number in enumerate(rounds) if number > done]
        if later:
            out[name] = [rounds[i] for i in later], [values[i] for i in later]
    return out


def _event_writer(folder: Path) -> SummaryWriter | None:
    """A writer of new events; those of an interrupted process are deleted. None where TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    for old in folder.glob("events.out.tfevents.*"):
        remove(old)
    return SummaryWriter(str(folder))

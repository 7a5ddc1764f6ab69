"""The result of a run: what each round measured, and the scores that follow from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from operator import is_
from typing import Any

import numpy as np
import pandas as pd

from pfl_core.algorithm import MechanismCheck
from pfl_core.costs import payload_bytes, rounds_to
from pfl_core.registry import METRICS
from pfl_core.runs.spec import RunSpec

SCORES = pd.Index(["acc_mean", "acc_pooled", "acc_bottom_decile"])  # of the clients' accuracies

Series = dict[str, tuple[list[int], list]]  # metric -> (rounds, from 1; for each a number, or a list by client)


@dataclass(frozen=True)
class Record:
    """The result of a run, complete or stopped early."""

    key: str
    spec: RunSpec
    series: Series
    arrays: dict[str, Any] = field(default_factory=dict)  # artifacts of the method, for figures
    clients: dict[str, list[list[int]]] = field(default_factory=dict)  # split -> [N][C] samples of each class
    num_params: int = 0  # d
    flops: int = 0  # of one training sample, forward and backward
    about: str = ""  # description of the data set
    seconds: float = math.nan
    state: str = ""  # hash of the final state
    provenance: dict[str, str] = field(default_factory=dict)
    rounds_done: int | None = None  # of a run that was stopped early; None: all
    data: dict[str, str] = field(default_factory=dict)  # data set -> checksum of the files that were read
    versions: dict[str, int | str] = field(default_factory=dict)  # of the components; for information only

    @property
    def stale(self) -> bool:
        """Whether the current code gives this run another key, e.g. because a version was raised."""
        try:
            return self.key != self.spec.key() and self.key != self.spec.key(self.data)
        except ValueError:  # a user's module that cannot be imported
            return False

    @property
    def rounds(self) -> int:
        """Number of completed rounds."""
        return self.spec.rounds if self.rounds_done is None else self.rounds_done

    @property
    def core_seconds(self) -> float:
        """``seconds`` times the number of cores that the run used."""
        return self.seconds * int(self.provenance.get("client_threads", 1))

    @property
    def partial(self) -> bool:
        """Whether the run was stopped early."""
        return self.rounds < self.spec.rounds

    @property
    def length(self) -> str:
        """The number of rounds as text: "200", or "60 of 200" if the run was stopped early."""
        return f"{self.rounds} of {self.spec.rounds}" if self.partial else str(self.rounds)

    def values(self, metric: str) -> pd.DataFrame:
        """One metric: a row per recorded round (index, from 1), a column per client, or the column 0 for all."""
        return pd.DataFrame(self.array(metric), index=self._index(metric))

    def _index(self, metric: str) -> pd.Index:
        return pd.Index(np.array(self.series[metric][0], dtype=int), name="round")

    def array(self, metric: str) -> np.ndarray:
        """One metric as [rounds, N], or [rounds, 1] if it has one number per round; read-only."""
        return self._arrays[metric]

    @cached_property
    def _arrays(self) -> Arrays:
        return Arrays(self.series, self.arrays)

    def last(self, metric: str) -> np.ndarray:
        """One metric in the last recorded round: [N], or [1] if it has one number per round."""
        return np.atleast_1d(np.array(self.series[metric][1][-1], dtype=float))

    def last_mean(self, metric: str) -> float:
        """Mean of ``last`` over the clients that have a number; NaN if none has."""
        values = self.last(metric)
        present = values[~np.isnan(values)]
        return float(present.mean()) if len(present) else math.nan

    def to_frame(self) -> pd.DataFrame:
        """Long format: a row per (round, client, metric); client is -1 for metrics with one number per round."""
        frames = []
        for metric, (_, values) in self.series.items():
            frame = self.values(metric).reset_index().melt("round", var_name="client", value_name="value")
            clients = frame["client"].astype(int) if isinstance(values[0], list) else -1
            frames.append(frame.assign(metric=metric, client=clients))
        return pd.concat(frames, ignore_index=True)

    def curve(self, trained: bool = False) -> pd.DataFrame:
        """Accuracies in percent by round: acc_mean, acc_pooled, acc_bottom_decile.

        ``trained``: scored after local training, if recorded; else after aggregation.
        """
        trained = trained and "correct_trained" in self.series
        rows, metric = (self._trained, "correct_trained") if trained else (self._merged, "correct")
        return pd.DataFrame(rows, index=self._index(metric), columns=SCORES)

    def reported_curve(self) -> pd.DataFrame:
        """``curve`` where the method reports its scores (``Algorithm.reported``): usually after aggregation."""
        return self.curve(trained=bool(self.reported_suffix))

    def reported_scores(self) -> np.ndarray:
        """SCORES where the method reports them [rounds, 3]; not to be changed."""
        return self._trained if self.reported_suffix else self._merged

    @property
    def reported_suffix(self) -> str:
        """Of the series from which the method's reported scores come: "_trained" after local training, else ""."""
        trained = self.spec.build_method().reported == "after_local_update" and "correct_trained" in self.series
        return "_trained" if trained else ""

    @cached_property
    def _merged(self) -> np.ndarray:
        return scores(self.array("correct"), self.array("count"))

    @cached_property
    def _trained(self) -> np.ndarray:
        return scores(self.array("correct_trained"), self.array("count_trained"))

    def _last_scores(self, suffix: str) -> np.ndarray:
        """SCORES in the last round [3]."""
        if suffix == self.reported_suffix:
            return self.reported_scores()[-1]
        return scores(self.last(f"correct{suffix}")[None], self.last(f"count{suffix}")[None])[0]

    @cached_property
    def mechanism(self) -> list[MechanismCheck]:
        """Checks of whether the method's mechanism acted, see ``Algorithm.mechanism``."""
        return self.spec.build_method().mechanism(self._arrays, self.spec.rounds, self.spec.train)

    def final(self) -> pd.Series:
        """Each client's accuracy in percent in the last round."""
        return 100 * pd.Series(self.last("correct")) / self.last("count")

    def summary(self) -> dict[str, float]:
        """Scalar metrics: accuracies (percent) of the last and the best round, communication, compute, seconds.

        ``acc_*`` is scored where the method reports it (``Algorithm.reported``), usually after aggregation.
        ``acc_*_trained`` is scored after local training, ``acc_*_merged`` after aggregation. With novel clients,
        ``acc_*_novel`` is theirs alone, after they have adapted.
        """
        return dict(self._summary)

    @cached_property
    def _summary(self) -> dict[str, float]:
        reported, scored = self.reported_scores(), self.series[f"correct{self.reported_suffix}"][0]
        trained = "_trained" if "correct_trained" in self.series else ""
        # SCORES of the last round, and the best; NaN only if there is no other number
        last = {"": reported[-1], "_best": np.fmax.reduce(reported)}
        last |= {"_trained": self._last_scores(trained), "_merged": self._last_scores("")}
        novel = self.spec.schedule.novel_clients(len(self.last("count")), self.spec.seed).numpy()
        if len(novel):
            last |= {"_novel": scores(self.last("correct")[None, novel], self.last("count")[None, novel])[0]}
        # sums over all clients and rounds
        upload = np.nansum(self.array("upload")) if "upload" in self.series else math.nan
        bits = np.nansum(self.array("upload_bits")) if "upload_bits" in self.series else 0.0
        reached = rounds_to(reported[:, 0].tolist(), 0.95 * reported[-1, 0])
        optional = [n for n in ("personal_share", "movable_share", *METRICS) if n in self.series]
        numbers = {
            **{n + suffix: value for suffix, values in last.items() for n, value in zip(SCORES, values, strict=True)},
            "loss": self.last_mean("loss"),
            "rounds_to_95": scored[reached - 1] if reached else math.nan,  # to 95 % of the run's last accuracy
            "upload_mb": payload_bytes(upload, bits) / 1e6,
            "train_tflop": (self.flops or math.nan) * self.samples_trained() / 1e12,
            **{n: self.last_mean(n) for n in optional},
            "seconds": self.seconds,
        }
        return {name: float(value) for name, value in numbers.items()}

    def samples_trained(self) -> float:
        """Training samples processed by all clients in all rounds: passes × training samples of the client."""
        if "passes" not in self.series:
            return math.nan
        sizes, schedule = np.array(self.clients["train"]).sum(axis=1), self.spec.schedule  # sizes [N]
        samples = self.array("passes") * sizes  # [rounds, N]
        if schedule.participation < 1 or schedule.novel:
            rounds = self.series["passes"][0]
            sampled = [schedule.clients(len(sizes), self.spec.seed, t - 1).numpy() for t in rounds]
            samples = np.take_along_axis(samples, np.array(sampled), axis=1)
        return float(np.nansum(samples))


def scores(correct: np.ndarray, count: np.ndarray) -> np.ndarray:
    """SCORES in percent [rounds, 3], from the clients' correct and all answers [rounds, N]."""
    with np.errstate(invalid="ignore"):  # 0 / 0: a client without test samples
        accuracy = np.where(count > 0, 100 * correct / count, np.nan)
        scored = np.count_nonzero(~np.isnan(accuracy), axis=1)
        mean = np.nansum(accuracy, axis=1) / scored
        pooled = 100 * np.nansum(correct, axis=1) / np.nansum(count, axis=1)
    # accuracy of the client at index floor(n / 10) in ascending order, of n scored clients; NaN sorts last
    decile = np.sort(accuracy, axis=1)[np.arange(len(accuracy)), scored // 10]
    return np.stack([mean, pooled, decile], axis=1)


class Arrays(Mapping[str, np.ndarray]):
    """A record's series, each as [rounds, N] or [rounds, 1], and its artifacts; converted when they are first read."""

    def __init__(self, series: Series, artifacts: Mapping[str, Any]) -> None:
        self.series, self.artifacts = series, artifacts
        self.converted: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.converted:
            array = self._series(name) if name in self.series else np.array(self.artifacts[name])
            array.setflags(write=False)  # all callers share it
            self.converted[name] = array
        return self.converted[name]

    def _series(self, name: str) -> np.ndarray:
        values = self.series[name][1]
        if values and all(map(is_, values, repeat(values[0]))):  # ``in_full`` repeats one value
            return np.broadcast_to(np.array(values[0], dtype=float), (len(values), np.size(values[0])))
        return np.atleast_2d(np.array(values, dtype=float).T).T

    def __iter__(self) -> Iterator[str]:
        return iter({**self.artifacts, **self.series})

    def __len__(self) -> int:
        return len({**self.artifacts, **self.series})

r"""Star-PFL's settings, and the mechanism checks of a run: do the masks respond to the data?

The settings are those of the paper, and a field for each ambiguity that has more than one reading. Codes such as A3 are
those of the method page, ``notebooks/star_pfl/README.md``.

The bounds of the checks are not in the paper. The checks are made for the server and for the clients, over the last
fifth of the rounds. A side without a threshold has no checks.

    noise       the mean frozen share differs from what the state machine freezes of random updates
    not all     the largest frozen share of a round is below ``NEARLY_ALL``, or below the method's cap
    settled     the mean score over all entries changes by less than ``SETTLED``

NOISE is the frozen share for independent normal updates with mean 0, at the paper's thresholds and windows. It is the
mean over rounds 101 to 400 of a simulation (``papers/star_pfl/null_model.py``); a test compares the two. The clients'
share is constant from the first rounds. The server's share rises to 26 % within 40 rounds, so shorter runs have no
noise check for the server. Runs with other settings have no noise check at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from pfl_core.algorithm import Algorithm, MechanismCheck
from pfl_core.algorithms.star_pfl.masks import (
    LONGEST,
    Entries,
    Window,
    average_,
    average_stability,
    overwrite_,
    push_,
    stability,
)
from pfl_core.federation import Federation
from pfl_core.options import Fraction, NonNegativeInt, PositiveInt
from pfl_core.seeding import shuffled
from pfl_core.training import Training

NOISE = {  # reading -> side -> frozen share
    "paper": {"global": 0.271, "local": 0.129},
    "authors_code": {"global": 0.211, "local": 0.115},
}
NEAR_NOISE = 0.02  # a frozen share this close to that of noise counts as noise
NEARLY_ALL = 0.8  # APF (Chen et al., ICDCS 2021) halves its threshold if more is frozen
SETTLED = 0.02  # largest change of the mean score, which is in [0, 1]
LAST = 0.2  # the checks use this last share of the rounds
NOISE_FROM = {"global": 40, "local": 0}  # rounds until the frozen share of noise has reached NOISE
SIDES = {"global": "server", "local": "clients"}


@dataclass(frozen=True)
class StarPFLOptions(Algorithm):
    """Fields of Star-PFL. Ambiguities A1, A2, A9, A11, A14 and A17 have one reading only and no field."""

    threshold_global: Fraction | None = 0.1  # T of the server; None: it freezes nothing
    threshold_local: Fraction | None = 0.1  # T of the clients; None: they freeze nothing
    history_len_global: int = 10  # |R| of the server, in rounds
    history_len_local: int = 5  # |R| of a client, in local epochs
    threshold_rule: Literal["strict", "inclusive"] = "strict"  # active if score > T, or if score >= T (A3)
    min_history: int | Literal["full"] = 1  # records needed before an entry can freeze; "full": |R| (A4)
    zero_update_policy: Literal["record", "skip"] = "record"  # whether updates of exactly 0 are recorded (A5)
    interval_halving: Literal["ceil", "floor", "truncate"] = "ceil"  # rounding of F / 2; "truncate" may store 0 (A6)
    history_scope: Literal["rolling", "round"] = "rolling"  # "round" clears a client's window in every round (A7)
    masked_aggregation: Literal["zero_fill", "active_mean", "active_weighted"] = "zero_fill"  # the server's mean (A8)
    buffer_aggregation: Literal["samples", "uniform"] = "samples"  # client weights for batch-norm statistics (A10)
    train_mask_scope: Literal["all", "weights"] = "all"  # what masks freeze in training: "weights" leaves biases (A12)
    record_scope: Literal["active", "trained"] = "active"  # "trained" also records frozen biases that still train (A12)
    upload_mask_timing: Literal["before_check", "after_check"] = "before_check"  # the client's mask of the upload (A13)
    record_epochs: PositiveInt | None = None  # number of first epochs to record; None: history_len_local (A15)
    stability_floor_quantile: Fraction | None = None  # clients freeze about this lowest share of a tensor (A16)
    stability_floor_check: bool = True  # False: the floor applies in Measure, not in Check (A16)
    stability_floor_cap: Literal["unmeasured", "frozen"] = "unmeasured"  # the entries that lower the quantile (A16)
    max_frozen_fraction: Fraction | None = None  # largest frozen share of server and clients: probably A16's intention
    stability_measure: Literal["window", "ema"] = "window"  # "ema": APF's moving averages instead of windows
    ema_decay: Fraction = 0.99  # decay of the moving averages; value of APF's code
    thaw: bool = True  # not in the paper: False is an ablation in which frozen entries stay frozen
    freeze: Literal["stable", "random"] = "stable"  # not in the paper: "random" is a control, see ``scored``
    probe: NonNegativeInt = 0  # number of entries recorded for the stability traces (``probe.py``); results unchanged
    probe_epochs: bool = False  # also record their values in client 0 after each local epoch; results unchanged

    readings: ClassVar = {
        "paper": {},
        "authors_code": {
            "threshold_rule": "inclusive",
            "zero_update_policy": "skip",
            "interval_halving": "truncate",
            "history_scope": "round",
            "masked_aggregation": "active_mean",
            "buffer_aggregation": "uniform",
            "train_mask_scope": "weights",
            "record_scope": "trained",
            "upload_mask_timing": "after_check",
            "record_epochs": 6,
            "stability_floor_quantile": 0.007,
            "stability_floor_check": False,
            "stability_floor_cap": "frozen",
        },
    }
    reported: ClassVar[str] = "after_local_update"  # A11

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.probe_epochs and not self.probe:
            raise ValueError("StarPFL: probe_epochs=True without probe; set a number of entries, such as probe=200")
        shorter = min(self.history_len_global, self.history_len_local)
        for name, high in (("history_len_global", LONGEST), ("history_len_local", LONGEST), ("min_history", shorter)):
            given = getattr(self, name)
            if given != "full" and not 1 <= given <= high:
                raise ValueError(f"StarPFL: {name}={given} is outside 1..{high}")

    def most_frozen(self, fed: Federation) -> int | None:
        """Largest number of entries that may be frozen at once; None without a limit."""
        return None if self.max_frozen_fraction is None else int(self.max_frozen_fraction * fed.num_params)

    def recorded(self, fed: Federation) -> int:
        """Number of local epochs whose updates a client records (A15)."""
        return min(fed.train.epochs, self.record_epochs or self.history_len_local)

    def carries_windows(self, fed: Federation) -> bool:
        """Whether a client's window is kept between rounds. Not needed if every round refills the whole window."""
        if self.history_scope == "round":
            return False
        refilled = self.zero_update_policy == "record" and self.recorded(fed) >= self.history_len_local
        return self.stability_measure == "ema" or not refilled

    def empty_window(self, like: Tensor, length: int) -> Window:
        """An empty window for ``length`` updates, or for two moving averages, of entries like ``like`` [d]."""
        return Window.empty(like, length if self.stability_measure == "window" else 2)

    def record_(self, window: Window, update: Tensor, where: Tensor) -> None:
        """Record an update [d] of the entries in ``where`` [d]; changes ``window`` in place."""
        if self.zero_update_policy == "skip":
            where = where & update.bool()
        if self.stability_measure == "window":
            push_(window, update, where)
        else:
            average_(window, update, where, self.ema_decay)

    def scored(
        self, fed: Federation, entries: Entries, window: Window, active: Tensor, *key: int
    ) -> tuple[Tensor, Tensor]:
        """Scores and counts [d] after a round. Entries that were not ``active`` keep their score.

        With ``freeze="random"`` the new scores change places at random, by ``key``: those of the probing entries among
        themselves, and those of the others. As many entries freeze now, or stay frozen, but which ones is chance.
        """
        new_score = stability(window) if self.stability_measure == "window" else average_stability(window)
        if self.freeze == "random":
            for side, group in enumerate((active & entries.probe, active & ~entries.probe)):
                new_score[group] = shuffled(new_score[group], fed.seed, "scores", side, *key)
        return overwrite_(entries.score.clone(), active, new_score), window.count

    def mechanism(self, series: Mapping[str, np.ndarray], rounds: int, training: Training) -> list[MechanismCheck]:
        """The checks for which ``series`` has the notes, each [rounds, N] or [rounds, 1]."""
        out = []
        for side, name in SIDES.items():
            suffix = "_global" if side == "global" else ""
            if getattr(self, f"threshold_{side}") is None or f"active_share{suffix}" not in series:
                continue
            frozen = 1 - by_round(series[f"active_share{suffix}"])
            if (noise := noise_of(self, side, len(frozen), training)) is not None:
                out.append(beside_noise(name, float(last(frozen).mean()), noise))
            out.append(not_all(name, float(last(frozen).max()), self.max_frozen_fraction))
            if f"mean_score{suffix}" in series:
                out += settled(name, last(by_round(series[f"mean_score{suffix}"])))
        return out


def by_round(values: np.ndarray) -> np.ndarray:
    """[rounds] mean over the clients that took part."""
    return np.nanmean(values, axis=1)


def last(values: np.ndarray) -> np.ndarray:
    """The last fifth of the rounds, at least one."""
    return values[-max(1, int(LAST * len(values))) :]


def noise_of(method: StarPFLOptions, side: str, rounds: int, training: Training) -> float | None:
    """The frozen share of noise, or None if it is not known for these settings and this number of rounds."""
    # Probes and a missing threshold of the other side do not change the noise of this side.
    server, client = (0.1 if T is None else T for T in (method.threshold_global, method.threshold_local))
    plain = replace(method, threshold_global=server, threshold_local=client, probe=0, probe_epochs=False)
    long_enough = rounds - int(LAST * rounds) >= NOISE_FROM[side] and training.epochs >= method.history_len_local
    for reading, noise in NOISE.items():
        if long_enough and plain == method.reading(reading):
            return noise[side]
    return None


def beside_noise(name: str, share: float, noise: float) -> MechanismCheck:
    """Whether the frozen share differs from that of noise."""
    return MechanismCheck(
        f"frozen share of the {name}, which must differ from that of noise by more than {NEAR_NOISE:g}",
        share,
        noise,
        abs(share - noise) > NEAR_NOISE,
        "random updates would freeze as much; train longer or change T",
    )


def not_all(name: str, share: float, cap: float | None) -> MechanismCheck:
    """Whether the frozen share stays below a bound."""
    bound = NEARLY_ALL if cap is None else min(cap, NEARLY_ALL)
    return MechanismCheck(
        f"largest frozen share of the {name}",
        share,
        bound,
        share < bound,
        "nearly all entries are frozen, or as many as the cap allows; lower the threshold",
    )


def settled(name: str, score: np.ndarray) -> list[MechanismCheck]:
    """Change of the mean score over these rounds, by a least-squares line; no check for fewer than three rounds."""
    if len(score) < 3:
        return []
    change = abs(float(np.polyfit(np.arange(len(score)), score, 1)[0])) * len(score)
    otherwise = "the scores still change, so the masks will change too; run more rounds"
    return [MechanismCheck(f"change of the mean score of the {name}", change, SETTLED, change < SETTLED, otherwise)]

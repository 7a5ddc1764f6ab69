r"""Did Star-PFL's masks do anything? Checks of a run that is over, each with its bound stated beforehand.

Per side, server and clients, over the last fifth of the rounds; a side without threshold has none:

    noise       the mean frozen share is not what the machine freezes of random updates
    not all     the largest frozen share of a round is below ``NEARLY_ALL``, or below the method's own cap
    settled     the mean score over all entries moves by less than ``SETTLED``

NOISE is the frozen share of independent normal updates without trend, at the paper's thresholds and windows: the
mean of rounds 101 to 400 of simulated entries (the paper's null model; a test holds these numbers to it). A client's
share is there from its first rounds; the server's rises to 26 % over 40 rounds, so shorter runs are not compared. Other
settings have no stated noise, and no such check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pfl_core.algorithm import MechanismCheck
from pfl_core.training import Training

if TYPE_CHECKING:
    from pfl_core.algorithms.star_pfl.method import StarPFL

NOISE = {  # reading -> side -> frozen share
    "paper": {"global": 0.271, "local": 0.129},
    "authors_code": {"global": 0.211, "local": 0.115},
}
NEAR_NOISE = 0.02  # as a share: within it a frozen share is noise's
NEARLY_ALL = 0.8  # APF (Chen et al., ICDCS 2021) halves its threshold where more is frozen
SETTLED = 0.02  # of scores in [0, 1]
LAST = 0.2  # share of the rounds
NOISE_FROM = {"global": 40, "local": 0}  # rounds before noise's share is that of NOISE
SIDES = {"global": "server", "local": "clients"}


def checks(method: StarPFL, series: Mapping[str, np.ndarray], training: Training) -> list[MechanismCheck]:
    """The checks that the noted ``series`` [rounds, N or 1] allow."""
    found = []
    for side, name in SIDES.items():
        suffix = "_global" if side == "global" else ""
        if getattr(method, f"threshold_{side}") is None or f"active_share{suffix}" not in series:
            continue
        frozen = 1 - by_round(series[f"active_share{suffix}"])
        if (noise := noise_of(method, side, len(frozen), training)) is not None:
            found.append(beside_noise(name, float(last(frozen).mean()), noise))
        found.append(not_all(name, float(last(frozen).max()), method.max_frozen_fraction))
        if f"mean_score{suffix}" in series:
            found += settled(name, last(by_round(series[f"mean_score{suffix}"])))
    return found


def by_round(values: np.ndarray) -> np.ndarray:
    """[rounds] mean over the clients that took part."""
    return np.nanmean(values, axis=1)


def last(values: np.ndarray) -> np.ndarray:
    """The last fifth of the rounds, at least one."""
    return values[-max(1, int(LAST * len(values))) :]


def noise_of(method: StarPFL, side: str, rounds: int, training: Training) -> float | None:
    """Noise's frozen share, for the settings and rounds that it is stated for."""
    unset = {name: getattr(method, name) for name in ("threshold_global", "threshold_local", "probe", "probe_epochs")}
    unset |= {
        name: value or 0.1 for name, value in unset.items() if name.startswith("threshold") and value in (None, 0.1)
    }
    for reading, noise in NOISE.items():
        fits = replace(method, **unset) == method.reading(reading, probe=method.probe, probe_epochs=method.probe_epochs)
        if fits and rounds - int(LAST * rounds) >= NOISE_FROM[side] and training.epochs >= method.history_len_local:
            return noise[side]
    return None


def beside_noise(name: str, share: float, noise: float) -> MechanismCheck:
    return MechanismCheck(
        f"frozen share of the {name}, which must differ from noise's by more than {NEAR_NOISE:g}",
        share,
        noise,
        abs(share - noise) > NEAR_NOISE,
        "as much is frozen as of random updates, so the masks say nothing of the data; train longer or change T",
    )


def not_all(name: str, share: float, cap: float | None) -> MechanismCheck:
    return MechanismCheck(
        f"largest frozen share of the {name}",
        share,
        bound := NEARLY_ALL if cap is None else min(cap, NEARLY_ALL),
        share < bound,
        "nearly everything is frozen, or as much as may be; lower the threshold",
    )


def settled(name: str, score: np.ndarray) -> list[MechanismCheck]:
    """By how much the least-squares line through the last rounds' mean score moves; nothing of fewer than three."""
    if len(score) < 3:
        return []
    change = abs(float(np.polyfit(np.arange(len(score)), score, 1)[0])) * len(score)
    why = "scores still change, so what is frozen is not what will be; run more rounds"
    return [MechanismCheck(f"change of the mean score of the {name}", change, SETTLED, change < SETTLED, why)]

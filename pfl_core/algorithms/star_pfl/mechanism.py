r"""Mechanism checks of a Star-PFL run: do the masks respond to the data? The bounds are not in the paper.

The checks are made for the server and for the clients, over the last fifth of the rounds. A side without a threshold
has no checks.

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
from dataclasses import replace

import numpy as np

from pfl_core.algorithm import MechanismCheck
from pfl_core.algorithms.star_pfl.options import StarPFLOptions
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


def mechanism_checks(
    method: StarPFLOptions, series: Mapping[str, np.ndarray], training: Training
) -> list[MechanismCheck]:
    """The checks for which ``series`` has the notes, each [rounds, N] or [rounds, 1]."""
    out = []
    for side, name in SIDES.items():
        suffix = "_global" if side == "global" else ""
        if getattr(method, f"threshold_{side}") is None or f"active_share{suffix}" not in series:
            continue
        frozen = 1 - by_round(series[f"active_share{suffix}"])
        if (noise := noise_of(method, side, len(frozen), training)) is not None:
            out.append(beside_noise(name, float(last(frozen).mean()), noise))
        out.append(not_all(name, float(last(frozen).max()), method.max_frozen_fraction))
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
    """Whether the frozen share differs from that of noise."""
    return MechanismCheck(
        f"frozen share of the {name}, which must differ from that of noise by more than {NEAR_NOISE:g}",
        share,
        noise,
        abs(share - noise) > NEAR_NOISE,
        "random updates would freeze as much, so the masks do not reflect the data; train longer or change T",
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

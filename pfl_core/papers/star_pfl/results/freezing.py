"""What Star-PFL froze, beside what it would freeze of pure noise; and what its models gain by local training."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from pfl_core.algorithms.star_pfl.method import StarPFL
from pfl_core.papers.star_pfl.null_model import Chance, chance
from pfl_core.runs import Record

ENTRIES = 5_000  # simulated; shares are good to half a point
VARIED = ("threshold_global", "threshold_local", "history_len_global", "history_len_local")  # the null model has these


def freezing(record: Record) -> dict[str, float]:
    """Means over all rounds (and clients), shares in percent; nothing for other methods.

    ``frozen_local`` and ``frozen_global``; of the machine in its reading ``chance_local`` and ``chance_global``, what
    it freezes of noise with these thresholds and windows, the differences ``excess_local``, ``excess_global``,
    and ``chance_sent``. With a probe, ``cancelled_local`` and ``cancelled_global``: shares without what never moved,
    (frozen - unmoved) / (all - unmoved). Of the last round: ``size_correlation``, the mean size of the clients'
    correlations (+0.3 and -0.3 do not make 0), and ``size_correlation_global``, the server's with its sign.
    """
    if record.spec.method["name"] != "star_pfl" or "active_share" not in record.series:
        return {}
    out = {
        "frozen_local": 100 * (1 - float(record.values("active_share").mean(axis=None))),
        "frozen_global": 100 * (1 - float(record.values("active_share_global").mean(axis=None))),
    }
    if (noise := by_chance(record)) is not None:
        out["chance_sent"] = 100 * float(noise.upload.mean())
        for side, shares in (("local", noise.frozen_local), ("global", noise.frozen_global)):
            out[f"chance_{side}"] = 100 * float(shares.mean())
            out[f"excess_{side}"] = out[f"frozen_{side}"] - out[f"chance_{side}"]
    if "unmoved" in record.arrays:
        frozen, unmoved = np.array(record.arrays["frozen"]).sum(2), np.array(record.arrays["unmoved"])  # [T, 1 + N]
        cancelled = 100 * (frozen - unmoved) / np.maximum(record.num_params - unmoved, 1)
        out |= {"cancelled_global": float(cancelled[:, 0].mean()), "cancelled_local": float(cancelled[:, 1:].mean())}
    if "size_correlation" in record.series:
        out["size_correlation"] = float(record.values("size_correlation").iloc[-1].abs().mean())
        out["size_correlation_global"] = float(record.values("size_correlation_global").iloc[-1].mean())
    return out


def by_chance(record: Record) -> Chance | None:
    """The null model with the run's thresholds, windows and epochs; None where neither reading's rule is at work."""
    method = record.spec.build_method()
    settings = {name: getattr(method, name) for name in VARIED}
    for reading in StarPFL.readings:
        if method == StarPFL.reading(reading, **settings, probe=method.probe):
            return _chance(record.rounds, record.spec.train.epochs, reading, tuple(settings.items()))
    return None


@cache
def _chance(rounds: int, epochs: int, reading: str, settings: tuple[tuple[str, float | int | None], ...]) -> Chance:
    return chance(rounds, epochs=epochs, entries=ENTRIES, reading=reading, **dict(settings))


def local_gain(record: Record) -> dict[str, float]:
    """``local_gain``, points of accuracy between the model that a client receives and what it has after training.

    Mean over clients and over the last five rounds; not a number where not every round was scored, or where not all
    clients took part: those that did are others than those that received.
    """
    if (
        record.spec.eval_every != 1
        or record.spec.participation < 1
        or record.rounds < 2
        or "correct_trained" not in record.series
    ):
        return {"local_gain": math.nan}
    received, trained = record.curve()["acc_mean"], record.curve(trained=True)["acc_mean"]
    return {"local_gain": float((trained - received.shift()).iloc[-5:].mean())}

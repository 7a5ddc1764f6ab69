"""Shares that Star-PFL froze in a run, compared with pure noise."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from pfl_core.algorithms.star_pfl.method import StarPFL
from pfl_core.papers.star_pfl.null_model import Chance, chance
from pfl_core.runs import Record

ENTRIES = 5_000  # simulated entries; shares are accurate to half a point
OF_SERVER = ("threshold_global", "history_len_global")  # fields that the null model takes
OF_CLIENTS = ("threshold_local", "history_len_local")


def freezing(record: Record) -> dict[str, float]:
    """Metrics of a Star-PFL run; empty for other methods. Shares are in percent, means over rounds and clients.

    ``frozen_local``, ``frozen_global``: frozen on clients and on the server.
    ``chance_local``, ``chance_global``, ``chance_sent``: frozen and sent on noise, with the run's reading, thresholds
    and windows. ``excess_local``, ``excess_global``: frozen minus frozen on noise.
    With a probe, ``cancelled_local`` and ``cancelled_global``: frozen share of the entries that ever moved,
    (frozen - unmoved) / (all - unmoved).
    In the last round: ``size_correlation``, mean absolute value of the clients' rank correlations of size and score;
    ``size_correlation_global``, the server's rank correlation, with its sign.
    """
    if record.spec.method["name"] != "star_pfl" or "active_share" not in record.series:
        return {}
    out = {
        "frozen_local": 100 * (1 - float(np.nanmean(record.array("active_share")))),
        "frozen_global": 100 * (1 - float(np.nanmean(record.array("active_share_global")))),
    }
    if (noise := by_chance(record)) is not None:
        out["chance_sent"] = 100 * float(noise.upload.mean())
        for side, shares in (("local", noise.frozen_local), ("global", noise.frozen_global)):
            out[f"chance_{side}"] = 100 * float(shares.mean())
            out[f"excess_{side}"] = out[f"frozen_{side}"] - out[f"chance_{side}"]
    if "unmoved" in record.arrays:
        # counts [T, 1 + N]; column 0 is the server
        frozen, unmoved = np.array(record.arrays["frozen"]).sum(2), np.array(record.arrays["unmoved"])
        cancelled = 100 * (frozen - unmoved) / np.maximum(record.num_params - unmoved, 1)
        out |= {"cancelled_global": float(cancelled[:, 0].mean()), "cancelled_local": float(cancelled[:, 1:].mean())}
    if "size_correlation" in record.series:
        out["size_correlation"] = float(np.nanmean(np.abs(record.last("size_correlation"))))
        out["size_correlation_global"] = record.last_mean("size_correlation_global")
    return out


def by_chance(record: Record) -> Chance | None:
    """The null model with the run's thresholds, windows and epochs; None if the run follows neither reading."""
    method = record.spec.build_method()
    if not isinstance(method, StarPFL):
        return None
    server, clients = ({name: getattr(method, name) for name in names} for names in (OF_SERVER, OF_CLIENTS))
    for reading in StarPFL.readings:
        if method == StarPFL.reading(reading, **server, **clients, probe=method.probe):
            # neither the server nor the clients depend on the other's settings, so runs share what each of them froze
            epochs = record.spec.train.epochs
            of_server = _chance(record.rounds, reading, threshold_local=None, **server)
            of_clients = _chance(record.rounds, reading, threshold_global=None, epochs=epochs, **clients)
            return Chance(of_server.frozen_global, of_clients.frozen_local, of_clients.sent_local)
    return None


@cache
def _chance(rounds: int, reading: str, **settings: Any) -> Chance:
    return chance(rounds, entries=ENTRIES, reading=reading, **settings)

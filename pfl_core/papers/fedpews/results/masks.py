"""Learned masks: whether they settle, differ between clients, and how many neurons they select."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from pfl_core.papers.fedpews.results.cells import made_on
from pfl_core.runs import Record

MASKS = (  # statistics of a learned mask, recorded in each round of the warm-up
    *("mask_prob", "mask_low", "mask_high", "mask_distance", "selected"),
    *("neurons_covered", "neurons_shared", "params_covered", "diversity"),
)
SETTLED = 0.9  # share of settled probabilities in a personal mask; not in the paper
RANDOM_DISTANCE = 0.5  # share of neurons in which two masks differ that have each neuron with probability 1/2
LEAST, MOST = 0.1, 0.5  # share of neurons that a client selects, in the paper


def at_the_switch(records: Iterable[Record]) -> pd.DataFrame:
    """Statistics of learned masks after the last warm-up round, means over the seeds of each setting and λ."""
    table = pd.DataFrame(map(_at_the_switch, records))
    return table.groupby(["setting", "λ"], sort=False).mean() if len(table) else table


def _at_the_switch(record: Record) -> dict[str, object]:
    last = {metric: record.values(metric).iloc[-1].mean() for metric in MASKS}
    chosen, clients = record.values("selected"), record.spec.clients
    return {
        "setting": record.spec.setting,
        "λ": record.spec.method["lam"],
        "settled": last["mask_low"] + last["mask_high"],
        "distance": last["mask_distance"],
        # mean over all pairs, if each neuron is in half of the masks: no masks differ more
        "of the most different": (clients // 2) * (clients - clients // 2) / (clients * (clients - 1) / 2),
        "selected, smallest": chosen.min().min(),
        "selected, largest": chosen.max().max(),
        "in [0.1, 0.5]": ((chosen >= LEAST) & (chosen <= MOST)).to_numpy().mean(),
        "shared": last["neurons_shared"],
        "random masks": 1 - (clients + 1) / 2**clients,  # the same, if each mask has each neuron with probability 1/2
        "diversity / h": record.values("diversity").max().max() / record.values("upload_bits").max().max(),
    }


def longest_warmup(records: Iterable[Record]) -> pd.DataFrame:
    """Statistics of learned masks after the longest warm-up of a grid, means over the seeds of each data set and λ."""
    learned = [record for record in records if "diversity" in record.series]
    longest = max((record.spec.method["tau"] for record in learned), default=None)
    rows = []
    for record in learned:
        if record.spec.method["tau"] == longest:
            last = {metric: record.values(metric).iloc[-1].mean() for metric in MASKS}
            tags = {"data": made_on(record.spec), "λ": record.spec.method["lam"]}
            shares = {"settled": last["mask_low"] + last["mask_high"], "distance": last["mask_distance"]}
            shares |= {"selected": last["selected"], "covered": last["neurons_covered"]}
            rows.append(tags | shares | {"shared": last["neurons_shared"]})
    return pd.DataFrame(rows).groupby(["data", "λ"], sort=False).mean() if rows else pd.DataFrame()

"""Activations of the neurons by client (Figures 14 and 15), as runs with ``probe`` record them after every round.

The record's arrays: "activations" and, with ``probe_whole``, "activations_whole", each [T, N, h], and "layer_sizes".
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from pfl_core.algorithms.fedpews.fixed import FedPeWSFixed, split_neurons
from pfl_core.papers.fedpews.metrics import warmup_rounds
from pfl_core.runs import Record


def activations(record: Record, of: str = "activations") -> pd.DataFrame:
    """A row per round, client and neuron: layer, index in it, group, and value, the activation summed over samples.

    ``of``: the record's array. ``group``: the client whose block of neurons this is, with equal shares.
    """
    sums, sizes = np.array(record.arrays[of]), np.array(record.arrays["layer_sizes"], dtype=int)
    clients = sums.shape[1]
    layer = np.repeat([f"FC{i}" for i in range(1, len(sizes) + 1)], sizes)
    neuron = np.concatenate([np.arange(n) for n in sizes])
    group = split_neurons(tuple(sizes.tolist()), (1 / clients,) * clients).int().argmax(0).numpy()
    t, k, j = (axis.ravel() for axis in np.indices(sums.shape))
    columns = {"round": t + 1, "client": k, "layer": layer[j], "neuron": neuron[j], "group": group[j]}
    return pd.DataFrame({**columns, "value": sums.ravel()})


def own_groups(record: Record) -> dict[str, float]:
    """How far each client's group of neurons dominates a layer; empty without recorded activations.

    ``own_group_CLIENT_LAYER``: the share of a client's group in its summed activations of a layer (both from 0), mean
    of the rounds after the warm-up (during it the share is 1 by construction). ``own_group_mean``: mean over these;
    without groups the lowest would be below one half by chance.
    ``activation_rise``: a layer's activations in the first round without masks over those in the last round with masks,
    for the client and layer with the lowest ratio.
    """
    if "activations" not in record.arrays:
        return {}
    sums = np.array(record.arrays["activations"])  # [T, N, h]
    sizes = [int(n) for n in record.arrays["layer_sizes"]]
    num_clients = sums.shape[1]
    method = record.spec.build_method()
    assert isinstance(method, FedPeWSFixed)  # the only method that records activations
    shares = method.shares or (1 / num_clients,) * num_clients
    groups = split_neurons(tuple(sizes), shares).numpy()  # [N, h] bool
    # Sums per layer: reduceat adds up the neurons from each layer's start to the next one's.
    starts = np.cumsum([0, *sizes[:-1]])
    total = np.add.reduceat(sums, starts, axis=2)  # [T, N, layers]
    warm, metrics = len(warmup_rounds(record)), dict[str, float]()
    with np.errstate(divide="ignore", invalid="ignore"):  # all activations of a layer may be 0
        share = np.add.reduceat(sums * groups, starts, axis=2) / total
        if warm < len(sums):
            later = share[warm:].mean(0)  # [N, layers]
            metrics |= {f"own_group_{k}_{j}": float(value) for (k, j), value in np.ndenumerate(later)}
            metrics["own_group_mean"] = float(later.mean())
        if 0 < warm < len(sums):
            metrics["activation_rise"] = float((total[warm] / total[warm - 1]).min())
    return metrics

"""Fixed masks: equal and unequal shares of the neurons (Figure 11), and activations (Figures 14 and 15)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from pfl_core.algorithms.fedpews.fixed import split_neurons
from pfl_core.papers.fedpews.results.metrics import warmup_rounds
from pfl_core.runs import Record

EQUAL, UNEQUAL = (0.5, 0.5), (0.25, 0.75)  # shares of the neurons of two clients
LENGTHS = ["round", "value", "panel", "label", "seed", "switch"]  # columns of ``length_curves``
MASKED, WHOLE, PLAIN = "fixed masks", "fixed masks, whole model", "FedAvg"  # names of what is measured


def shares_label(shares: Iterable[float]) -> str:
    """ "shares 0.25 / 0.75"."""
    return "shares " + " / ".join(f"{share:g}" for share in shares)


def length_curves(records: Iterable[Record]) -> pd.DataFrame:
    """Accuracy over rounds by share of the neurons: global, and on each client's part of the test set.

    Columns: LENGTHS; value in percent.
    """
    frames = []
    for record in records:
        correct, count = record.values("correct"), record.values("count")
        parts = {"global": correct.sum(axis=1) / count.sum(axis=1)}
        parts |= {f"client {k}": correct[k] / count[k] for k in correct}
        label = shares_label(getattr(record.spec.build_method(), "shares", None) or EQUAL)
        tags = {"label": label, "seed": record.spec.seed, "switch": len(warmup_rounds(record))}
        frames += [(100 * v).rename("value").reset_index().assign(panel=name, **tags) for name, v in parts.items()]
    return pd.concat(frames) if frames else pd.DataFrame(columns=LENGTHS)


def length_ends(curves: pd.DataFrame) -> pd.DataFrame:
    """The last round's accuracy by panel, seed and shares; with "unequal minus equal" if both are stored."""
    last = curves[curves["round"] == curves["round"].max()]
    cells = last.pivot(index=["panel", "seed"], columns="label", values="value")
    equal, unequal = shares_label(EQUAL), shares_label(UNEQUAL)
    if {equal, unequal} <= set(cells.columns):
        cells["unequal minus equal"] = cells[unequal] - cells[equal]
    return cells


def activations(record: Record, of: str = "activations") -> pd.DataFrame:
    """A row per round, client and neuron: layer, index in it, group, and value, the activation summed over samples.

    ``of``: the record's array [T, N, h]: "activations" or "activations_whole".
    """
    sums, sizes = np.array(record.arrays[of]), np.array(record.arrays["layer_sizes"], dtype=int)
    clients = sums.shape[1]
    layer = np.repeat([f"FC{i}" for i in range(1, len(sizes) + 1)], sizes)
    neuron = np.concatenate([np.arange(n) for n in sizes])
    group = split_neurons(tuple(sizes.tolist()), (1 / clients,) * clients).int().argmax(0).numpy()
    t, k, j = (axis.ravel() for axis in np.indices(sums.shape))
    columns = {"round": t + 1, "client": k, "layer": layer[j], "neuron": neuron[j], "group": group[j]}
    return pd.DataFrame({**columns, "value": sums.ravel()})


def tables(records: Iterable[Record]) -> dict[str, tuple[Record, pd.DataFrame]]:
    """MASKED, PLAIN and WHOLE -> the run and its ``activations``. records: of one seed, with and without a warm-up."""
    found = {(MASKED if len(warmup_rounds(r)) else PLAIN): (r, activations(r)) for r in records}
    if MASKED in found:
        run = found[MASKED][0]
        found[WHOLE] = run, activations(run, "activations_whole")
    return found


def by_neuron(record: Record, table: pd.DataFrame) -> pd.DataFrame:
    """The rows of about a hundred evenly spaced rounds, for a map of neurons by rounds."""
    every = max(1, record.spec.rounds // 100)
    return table[(table["round"] - 1) % every == 0]


def by_group(table: pd.DataFrame) -> pd.DataFrame:
    """The activations summed over each client's group of neurons. Columns: client, layer, group, round, value."""
    return table.groupby(["client", "layer", "group", "round"], as_index=False)["value"].sum()


def own_shares(tables: Mapping[str, tuple[Record, pd.DataFrame]]) -> pd.DataFrame:
    """The share of a client's activations that is in its group, by client and layer, for parts of the rounds.

    Empty unless ``tables`` has all three.
    """
    if not {MASKED, WHOLE, PLAIN} <= tables.keys():
        return pd.DataFrame()
    record, masked = tables[MASKED]
    whole, plain = tables[WHOLE][1], tables[PLAIN][1]
    warm, end = len(warmup_rounds(record)), record.spec.rounds
    columns = {
        "warm-up (by construction)": _own_share(masked, 1, warm),
        "warm-up, whole model": _own_share(whole, 1, warm),
        "first round after": _own_share(masked, warm + 1, warm + 1),
        "all rounds after": _own_share(masked, warm + 1, end),
        "last round": _own_share(masked, end, end),
        "FedAvg, same rounds after": _own_share(plain, warm + 1, end),
        "FedAvg, last round": _own_share(plain, end, end),
    }
    return pd.DataFrame(columns)


def _own_share(table: pd.DataFrame, first: int, last: int) -> pd.Series:
    """By client and layer: activations of the client's group over all, summed over the rounds from first to last."""
    now = table[table["round"].between(first, last)]
    total = now.groupby(["client", "layer"])["value"].sum()
    return now[now["group"] == now["client"]].groupby(["client", "layer"])["value"].sum() / total


def rises(tables: Mapping[str, tuple[Record, pd.DataFrame]]) -> pd.DataFrame:
    """A layer's activations in the first round without masks over those in the last round with masks, by client."""
    warm = len(warmup_rounds(tables[MASKED][0]))
    rows = {}
    for name, (_, table) in tables.items():
        sums = table.groupby(["client", "layer", "round"])["value"].sum().unstack("round")
        rows[name] = sums[warm + 1] / sums[warm]
    return pd.DataFrame(rows).T

"""What Star-PFL's probe recorded, as data frames, and the pair of entries of Figure 1."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pfl_core.runs import Record

PARTIES = ("server", "client 0")
LARGE, MEDIUM = 0.9, (0.25, 0.75)  # size quantiles of the two entries of Figure 1 (not in the paper)


def layer_sizes(record: Record) -> dict[str, int]:
    """Number of parameters of each layer, in the model's order."""
    return {n.removeprefix("layer/"): int(size) for n, size in record.arrays.items() if n.startswith("layer/")}


def layer_of(record: Record, entries: np.ndarray) -> np.ndarray:
    """Layer of each entry."""
    sizes = layer_sizes(record)
    return np.array(list(sizes))[np.searchsorted(np.cumsum(list(sizes.values())), entries, side="right")]


def sampled(record: Record) -> pd.DataFrame:
    """A row per party, round and sampled entry. Columns: party, round, entry, layer, value, score, state."""
    values = {
        name: np.array(record.arrays[name], dtype=float) for name in ("value", "score", "state")
    }  # [T, 2, p] each
    axes = {"round": range(1, len(values["value"]) + 1), "party": PARTIES, "entry": record.arrays["entries"]}
    index = pd.MultiIndex.from_product(axes.values(), names=axes.keys())
    table = pd.DataFrame({name: array.ravel() for name, array in values.items()}, index).reset_index()
    table = table.assign(layer=layer_of(record, table["entry"].to_numpy())).astype({"state": int})
    return table[["party", "round", "entry", "layer", "value", "score", "state"]]


def epoch_by_epoch(record: Record) -> pd.DataFrame:
    """Values of client 0's sampled entries: as received, at time t - 1, and after epoch e of E, at time t - 1 + e / E.

    Columns: entry, layer, time (rounds), value. Rounds without client 0 are left out.
    """
    values, entries = np.array(record.arrays["course"], dtype=float), np.array(record.arrays["entries"], dtype=int)
    t, e, j = (axis.ravel() for axis in np.indices(values.shape))  # [T, 1 + E, p]
    time = t + e / (values.shape[1] - 1)
    table = pd.DataFrame({"entry": entries[j], "layer": layer_of(record, entries)[j], "time": time})
    return table.assign(value=values.ravel()).dropna(subset="value")


def frozen(record: Record) -> pd.DataFrame:
    """Frozen shares in percent. Columns: party ("server", "clients"), client (from 1; 0 is the server), part, round,
    percent.

    ``part``: a layer (percent of its entries), or why an entry is frozen (percent of all entries): "never moved", or
    "cancelled out".
    """
    counts, sizes = np.array(record.arrays["frozen"], dtype=float), layer_sizes(record)  # [T, 1 + N, L]
    total, unmoved = sum(sizes.values()), np.array(record.arrays["unmoved"])  # frozen and never moved [T, 1 + N]
    shares = {name: counts[:, :, i] / size for i, (name, size) in enumerate(sizes.items())}
    shares |= {"never moved": unmoved / total, "cancelled out": (counts.sum(2) - unmoved) / total}
    rounds = pd.RangeIndex(1, len(counts) + 1, name="round")
    tables = {part: pd.DataFrame(100 * share, rounds).rename_axis(columns="client") for part, share in shares.items()}
    long = pd.concat({part: table.T.stack() for part, table in tables.items()}, names=["part"])
    long = long.rename("percent").reset_index()
    return long.assign(party=np.where(long["client"] == 0, "server", "clients"))


def line_shapes(table: pd.DataFrame) -> pd.DataFrame:
    """Shape of each entry's line, a row per entry that moved; without batch norm, whose scales are all near 1.

    ``size``: mean |value|. ``range``: largest minus smallest value. ``change``: last minus first value. ``one_way``:
    |change| / sum |steps|, the stability score of the whole line.
    Columns of ``table``: entry, layer, time, value.
    """
    table = table[~table["layer"].str.startswith("bn")].sort_values(["entry", "time"], kind="stable")
    value = table.groupby("entry")["value"]
    path = table.assign(step=value.diff().abs()).groupby("entry")["step"].sum()  # sum |steps|
    shapes = pd.DataFrame({"size": value.agg(lambda x: x.abs().mean()), "range": value.max() - value.min()})
    shapes["change"] = value.last() - value.first()
    moved = shapes[path > 0]
    return moved.assign(one_way=moved["change"].abs() / path[path > 0])


def select_pair(shapes: pd.DataFrame) -> dict[str, int]:
    """The pair of Figure 1: a large entry that keeps its value, and a smaller one that moves in one direction.

    The first has the smallest range among the largest tenth by size. The second has the largest range among the tenth
    of the middle half with the highest ``one_way``. ``shapes``: see ``line_shapes``.
    """
    large, medium = candidates(shapes)
    moving = medium[medium["one_way"] >= medium["one_way"].quantile(LARGE)]
    return {"large, steady": int(large["range"].idxmin()), "smaller, moving": int(moving["range"].idxmax())}


def candidates(shapes: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The largest tenth of the entries by size, and the middle half."""
    size = shapes["size"]
    return shapes[size >= size.quantile(LARGE)], shapes[size.between(*size.quantile(MEDIUM))]

"""Data frames of Star-PFL's stability traces, from the arrays that its probe recorded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch

from pfl_core.algorithms.star_pfl.method import StarPFL
from pfl_core.algorithms.star_pfl.probe import BINS
from pfl_core.papers.star_pfl.null_model import noise, simulate
from pfl_core.papers.star_pfl.results.freezing import by_chance
from pfl_core.runs import Record
from pfl_core.seeding import generator

PARTIES = ("server", "client 0")
LARGE, MEDIUM = 0.9, (0.25, 0.75)  # size quantiles of the two entries of Figure 1 (not in the paper)
NUM_RANDOM = 5  # control entries drawn at random from each of the two groups
NOISE_DRAWS = 20_000  # scores of noise in a histogram


def layer_sizes(record: Record) -> dict[str, int]:
    """Number of parameters of each layer, in the model's order."""
    return {n.removeprefix("layer/"): int(size) for n, size in record.arrays.items() if n.startswith("layer/")}


def traces(record: Record) -> pd.DataFrame:
    """A row per party, round and sampled entry. Columns: party, round, entry, layer, value, score, state."""
    value, score, state = (np.array(record.arrays[name], dtype=float) for name in ("value", "score", "state"))
    entries = np.array(record.arrays["entries"], dtype=int)
    layer = layer_of(record, entries)
    t, party, j = (axis.ravel() for axis in np.indices(value.shape))  # arrays are [T, 2, p]
    return pd.DataFrame(
        {
            "party": np.array(PARTIES)[party],
            "round": t + 1,
            "entry": entries[j],
            "layer": layer[j],
            "value": value.ravel(),
            "score": score.ravel(),
            "state": state.ravel().astype(int),
        }
    )


def epoch_by_epoch(record: Record) -> pd.DataFrame:
    """Values of client 0's sampled entries: as received, at time t - 1, and after epoch e of E, at time t - 1 + e / E.

    Columns: entry, layer, time (rounds), value. Rounds without client 0 are left out.
    """
    values, entries = np.array(record.arrays["course"], dtype=float), np.array(record.arrays["entries"], dtype=int)
    t, e, j = (axis.ravel() for axis in np.indices(values.shape))  # [T, 1 + E, p]
    time = t + e / (values.shape[1] - 1)
    table = pd.DataFrame({"entry": entries[j], "layer": layer_of(record, entries)[j], "time": time})
    return table.assign(value=values.ravel()).dropna(subset="value")


def layer_of(record: Record, entries: np.ndarray) -> np.ndarray:
    """Layer of each entry."""
    sizes = layer_sizes(record)
    return np.array(list(sizes))[np.searchsorted(np.cumsum(list(sizes.values())), entries, side="right")]


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


def random_entries(shapes: pd.DataFrame, seed: int) -> list[int]:
    """The control: ``NUM_RANDOM`` entries of each of the two groups, drawn at random."""
    chosen = []
    for name, group in zip(("large", "medium"), candidates(shapes), strict=True):
        order = torch.randperm(len(group), generator=generator(seed, "pairs", name))
        chosen += group.index[order[:NUM_RANDOM].numpy()].tolist()
    return chosen


def large_steadier_share(shapes: pd.DataFrame) -> dict[str, float]:
    """Share of all pairs of a large and a medium entry in which the large one is steadier, in percent.

    ``range``: it has the smaller range. ``one_way``: it has the lower score. 50 if size does not matter.
    """
    large, medium = candidates(shapes)
    return {
        name: 100 * float((large[name].to_numpy()[:, None] < medium[name].to_numpy()).mean())
        for name in ("range", "one_way")
    }


def figure_1(courses: Mapping[str, pd.DataFrame], seed: int) -> pd.DataFrame:
    """The lines of Figure 1 by party: the selected pair (``name``) and the random control entries ("random").

    ``courses``: party -> frame with columns entry, layer, time, value.
    Columns: party, name, entry, layer, time, value.
    """
    parts = []
    for party, table in courses.items():
        shapes = line_shapes(table)
        names = dict.fromkeys(random_entries(shapes, seed), "random")
        names |= {entry: name for name, entry in select_pair(shapes).items()}
        parts.append(table.assign(party=party, name=table["entry"].map(names)).dropna(subset="name"))
    return pd.concat(parts)[["party", "name", "entry", "layer", "time", "value"]]


def pair_scores(values: pd.DataFrame, freezing: pd.DataFrame, free: pd.DataFrame) -> pd.DataFrame:
    """Scores of the pairs of ``figure_1``, with freezing and without. ``freezing``, ``free``: ``traces`` of the runs.

    Columns: party, name, entry, round, score, unfrozen_score, state.
    """
    pairs = values.loc[values["name"] != "random", ["party", "name", "entry"]].drop_duplicates()
    both = freezing.merge(free[["party", "entry", "round", "score"]], on=["party", "entry", "round"])
    both = both.rename(columns={"score_x": "score", "score_y": "unfrozen_score"})
    return pairs.merge(both, on=["party", "entry"])[
        ["party", "name", "entry", "round", "score", "unfrozen_score", "state"]
    ]


def frozen_by_layer(record: Record) -> pd.DataFrame:
    """Frozen share of each layer by round, in percent; layer "all" is the model, "noise" the null model.

    Columns: party ("server", "clients"), layer, round, mean, low, high (over the clients).
    """
    counts, sizes = np.array(record.arrays["frozen"], dtype=float), layer_sizes(record)  # [T, 1 + N, L]
    shares = {name: counts[:, :, i] / size for i, (name, size) in enumerate(sizes.items())}
    shares["all"] = counts.sum(2) / sum(sizes.values())
    rows = [_spread(party, layer, part) for layer, share in shares.items() for party, part in _parties(share)]
    if (chance := by_chance(record)) is not None:
        rows += [
            _spread("server", "noise", chance.frozen_global[:, None]),
            _spread("clients", "noise", chance.frozen_local[:, None]),
        ]
    return pd.concat(rows, ignore_index=True)


def why_frozen(record: Record) -> pd.DataFrame:
    """Share of all entries that is frozen by round, in percent, split by reason: never moved, or updates cancelled.

    Columns: party, layer (the reason), round, mean, low, high.
    """
    d = sum(layer_sizes(record).values())
    frozen, unmoved = np.array(record.arrays["frozen"]).sum(2) / d, np.array(record.arrays["unmoved"]) / d
    shares = {"never moved": unmoved, "cancelled out": frozen - unmoved}
    return pd.concat([_spread(party, why, part) for why, share in shares.items() for party, part in _parties(share)])


def _parties(share: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Splits [T, 1 + N] into the server's column and the clients' columns, with names."""
    return [("server", share[:, :1]), ("clients", share[:, 1:])]


def _spread(party: str, layer: str, share: np.ndarray) -> pd.DataFrame:
    percent = 100 * share
    columns = {"mean": percent.mean(1), "low": percent.min(1), "high": percent.max(1)}
    return pd.DataFrame({"party": party, "layer": layer, "round": np.arange(len(share)) + 1, **columns})


def waits(record: Record, rounds: list[int]) -> pd.DataFrame:
    """Number of entries with each waiting time F after the given rounds. Columns: party, round, wait, entries."""
    counts = np.array(record.arrays["waits"])  # [T, 2, F]
    rows = [
        pd.DataFrame({"party": party, "round": t, "wait": np.arange(counts.shape[2]) + 1, "entries": counts[t - 1, p]})
        for p, party in enumerate(("server", "clients"))
        for t in rounds
    ]
    table = pd.concat(rows, ignore_index=True)
    return table[table["entries"] > 0]


def score_shares(record: Record) -> pd.DataFrame:
    """Histogram of the scores of the last round, and of noise. Columns: party, of, low (edge of the bin), share.

    ``of``: "run" or "noise". ``share``: of the entries that have a full window and moved, in percent.
    """
    method, rows = record.spec.build_method(), []
    assert isinstance(method, StarPFL)
    lengths = (method.history_len_global, method.history_len_local)
    for p, (party, length) in enumerate(zip(("server", "clients"), lengths, strict=True)):
        # one round of ``length`` updates fills the window
        simulated = simulate(noise(0.0, record.spec.seed, party), 1, None, length, length, NOISE_DRAWS)
        drawn, _ = np.histogram(simulated.score[0], BINS, (0, 1))
        for of, counts in (("run", np.array(record.arrays["scores"])[-1, p]), ("noise", drawn)):
            share = 100 * counts / (counts.sum() or np.nan)  # NaN without entries
            rows.append(pd.DataFrame({"party": party, "of": of, "low": np.arange(BINS) / BINS, "share": share}))
    return pd.concat(rows, ignore_index=True)


def payload(record: Record) -> pd.DataFrame:
    """Values uploaded by a client, mean over clients, by round.

    Columns: round, sent, full (all parameters), percent, seed, saved (total so far, in percent of all parameters),
    noise (percent on noise; NaN if the run has no null model).
    """
    sent, chance = record.values("upload").mean(axis=1), by_chance(record)
    table = pd.DataFrame({"round": sent.index, "sent": sent.to_numpy(), "full": float(record.num_params)})
    return table.assign(
        percent=100 * table["sent"] / table["full"],
        seed=record.spec.seed,
        saved=100 * table["sent"].cumsum() / table["full"].cumsum(),
        noise=np.nan if chance is None else 100 * chance.upload,
    )


def accuracy(record: Record, label: str, color: str) -> pd.DataFrame:
    """Mean client accuracy by round, a panel per scoring point. Columns: round, value, panel, label, color, seed."""
    panels = {"received, after aggregation": False, "after local training": True}
    curves = {panel: record.curve(trained=after)["acc_mean"].rename("value") for panel, after in panels.items()}
    tags = {"label": label, "color": color, "seed": record.spec.seed}
    return pd.concat(curve.reset_index().assign(panel=panel, **tags) for panel, curve in curves.items())

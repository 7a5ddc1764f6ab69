"""From the notes of Star-PFL's probe to tidy frames: what the stability traces draw."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch

from pfl_core.algorithms.star_pfl.probe import BINS
from pfl_core.papers.star_pfl.null_model import noise, simulate
from pfl_core.papers.star_pfl.results.freezing import by_chance
from pfl_core.runs import Record
from pfl_core.seeding import generator

PARTIES = ("server", "client 0")
LARGE, MEDIUM = 0.9, (0.25, 0.75)  # quantiles that the two entries of Figure 1 come from (ours)
PAIRS = 5  # drawn at random beside it
DRAWN = 20_000  # scores of noise in a histogram


def layer_sizes(record: Record) -> dict[str, int]:
    """Parameters of each layer, in the model's order."""
    return {n.removeprefix("layer/"): int(size) for n, size in record.arrays.items() if n.startswith("layer/")}


def traces(record: Record) -> pd.DataFrame:
    """A row per party, round and sampled entry. Columns: party, round, entry, layer, value, score, state."""
    value, score, state = (np.array(record.arrays[name], dtype=float) for name in ("value", "score", "state"))
    entries = np.array(record.arrays["entries"], dtype=int)
    layer = layer_of(record, entries)
    t, party, j = (axis.ravel() for axis in np.indices(value.shape))
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
    """Client 0's sampled entries as received (at t - 1) and after each local epoch e of E (at t - 1 + e / E).

    Columns: entry, layer, time (rounds), value. Rounds without client 0 are left out.
    """
    course, entries = np.array(record.arrays["course"], dtype=float), np.array(record.arrays["entries"], dtype=int)
    t, e, j = (axis.ravel() for axis in np.indices(course.shape))
    time = t + e / (course.shape[1] - 1)
    table = pd.DataFrame({"entry": entries[j], "layer": layer_of(record, entries)[j], "time": time})
    return table.assign(value=course.ravel()).dropna(subset="value")


def layer_of(record: Record, entries: np.ndarray) -> np.ndarray:
    """The layer that each of the entries lies in."""
    sizes = layer_sizes(record)
    return np.array(list(sizes))[np.searchsorted(np.cumsum(list(sizes.values())), entries, side="right")]


def lines(table: pd.DataFrame) -> pd.DataFrame:
    """What each entry's line looks like; a row per entry that moved, without batch norm's scales, which are all near 1.

    ``size`` mean |value|; ``range`` largest minus smallest value; ``change`` last minus first; ``one_way`` the size of
    the change over the way that was gone, |change| / sum |steps|, the score of the whole line.
    Columns of ``table``: entry, layer, time, value.
    """
    table = table[~table["layer"].str.startswith("bn")].sort_values(["entry", "time"], kind="stable")
    value = table.groupby("entry")["value"]
    way = table.assign(step=value.diff().abs()).groupby("entry")["step"].sum()
    found = pd.DataFrame({"size": value.agg(lambda x: x.abs().mean()), "range": value.max() - value.min()})
    found["change"] = value.last() - value.first()
    moved = found[way > 0]
    return moved.assign(one_way=moved["change"].abs() / way[way > 0])


def two_entries(found: pd.DataFrame) -> dict[str, int]:
    """Figure 1's pair by rule, of ``lines``: a large entry that keeps its value, a smaller one that moves one way.

    Of the largest tenth by size the one with the smallest range; of the middle half, and in it of the tenth with the
    highest ``one_way``, the one with the largest range.
    """
    large, medium = candidates(found)
    moving = medium[medium["one_way"] >= medium["one_way"].quantile(LARGE)]
    return {"large, steady": int(large["range"].idxmin()), "smaller, moving": int(moving["range"].idxmax())}


def candidates(found: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of ``lines``: the largest tenth by size, and the middle half."""
    size = found["size"]
    return found[size >= size.quantile(LARGE)], found[size.between(*size.quantile(MEDIUM))]


def random_entries(found: pd.DataFrame, seed: int) -> list[int]:
    """The control: ``PAIRS`` entries of each of the two groups, drawn at random."""
    chosen = []
    for name, group in zip(("large", "medium"), candidates(found), strict=True):
        order = torch.randperm(len(group), generator=generator(seed, "pairs", name))
        chosen += group.index[order[:PAIRS].numpy()].tolist()
    return chosen


def all_pairs(found: pd.DataFrame) -> dict[str, float]:
    """Over all pairs of a large and a smaller entry: percent in which the large one is the steadier.

    ``range``: it has the smaller range; ``one_way``: it goes less one way. 50: size tells nothing.
    """
    large, medium = candidates(found)
    return {
        name: 100 * float((large[name].to_numpy()[:, None] < medium[name].to_numpy()).mean())
        for name in ("range", "one_way")
    }


def figure_1(courses: Mapping[str, pd.DataFrame], seed: int) -> pd.DataFrame:
    """The lines of Figure 1 by party: its pair (``name``), and entries drawn at random ("random").

    ``courses``: party -> entry, layer, time, value. Columns: party, name, entry, layer, time, value.
    """
    parts = []
    for party, table in courses.items():
        found = lines(table)
        names = dict.fromkeys(random_entries(found, seed), "random")
        names |= {entry: name for name, entry in two_entries(found).items()}
        parts.append(table.assign(party=party, name=table["entry"].map(names)).dropna(subset="name"))
    return pd.concat(parts)[["party", "name", "entry", "layer", "time", "value"]]


def pair_scores(values: pd.DataFrame, freezing: pd.DataFrame, free: pd.DataFrame) -> pd.DataFrame:
    """Scores of ``figure_1``'s pairs, of the ``traces`` with freezing and without.

    Columns: party, name, entry, round, score, unfrozen_score, state.
    """
    pairs = values.loc[values["name"] != "random", ["party", "name", "entry"]].drop_duplicates()
    both = freezing.merge(free[["party", "entry", "round", "score"]], on=["party", "entry", "round"])
    both = both.rename(columns={"score_x": "score", "score_y": "unfrozen_score"})
    return pairs.merge(both, on=["party", "entry"])[
        ["party", "name", "entry", "round", "score", "unfrozen_score", "state"]
    ]


def frozen_by_layer(record: Record) -> pd.DataFrame:
    """Percent of a layer frozen in a round, of server and clients; of all entries as layer "all", and what is chance.

    Columns: party ("server", "clients"), layer, round, mean, low, high (over the clients).
    """
    counts, sizes = np.array(record.arrays["frozen"], dtype=float), layer_sizes(record)  # [T, 1 + N, L]
    shares = {name: counts[:, :, i] / size for i, (name, size) in enumerate(sizes.items())}
    shares["all"] = counts.sum(2) / sum(sizes.values())
    rows = [_spread(party, layer, of) for layer, share in shares.items() for party, of in _parties(share)]
    if (chance := by_chance(record)) is not None:
        rows += [
            _spread("server", "noise", chance.frozen_global[:, None]),
            _spread("clients", "noise", chance.frozen_local[:, None]),
        ]
    return pd.concat(rows, ignore_index=True)


def why_frozen(record: Record) -> pd.DataFrame:
    """Percent of all entries, frozen in a round because they never moved, or because their updates cancelled out.

    Columns: party, layer (holds the reason), round, mean, low, high.
    """
    d = sum(layer_sizes(record).values())
    frozen, still = np.array(record.arrays["frozen"]).sum(2) / d, np.array(record.arrays["unmoved"]) / d
    parts = {"never moved": still, "cancelled out": frozen - still}
    return pd.concat([_spread(party, why, of) for why, part in parts.items() for party, of in _parties(part)])


def _parties(share: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """[T, 1 + N] as (name, [T, n]) of the server and of the clients."""
    return [("server", share[:, :1]), ("clients", share[:, 1:])]


def _spread(party: str, layer: str, share: np.ndarray) -> pd.DataFrame:
    percent = 100 * share
    columns = {"mean": percent.mean(1), "low": percent.min(1), "high": percent.max(1)}
    return pd.DataFrame({"party": party, "layer": layer, "round": np.arange(len(share)) + 1, **columns})


def waits(record: Record, rounds: list[int]) -> pd.DataFrame:
    """How many entries have which waiting time F after a round. Columns: party, round, wait, entries."""
    counts = np.array(record.arrays["waits"])  # [T, 2, F]
    rows = [
        pd.DataFrame({"party": party, "round": t, "wait": np.arange(counts.shape[2]) + 1, "entries": counts[t - 1, p]})
        for p, party in enumerate(("server", "clients"))
        for t in rounds
    ]
    table = pd.concat(rows, ignore_index=True)
    return table[table["entries"] > 0]


def score_shares(record: Record) -> pd.DataFrame:
    """Scores of a run's last round in bins, beside those of noise. Columns: party, of, low (of the bin), share.

    ``of``: "run" or "noise"; a share of the entries that have a full window and moved, in percent.
    """
    method, rows = record.spec.build_method(), []
    lengths = (method.history_len_global, method.history_len_local)
    for p, (party, length) in enumerate(zip(("server", "clients"), lengths, strict=True)):
        course = simulate(noise(0.0, record.spec.seed, party), 1, None, length, length, DRAWN)
        drawn, _ = np.histogram(course.score[0], BINS, (0, 1))
        for of, counts in (("run", np.array(record.arrays["scores"])[-1, p]), ("noise", drawn)):
            share = 100 * counts / (counts.sum() or np.nan)  # of nothing there is no share
            rows.append(pd.DataFrame({"party": party, "of": of, "low": np.arange(BINS) / BINS, "share": share}))
    return pd.concat(rows, ignore_index=True)


def payload(record: Record) -> pd.DataFrame:
    """Values that a client uploads, mean over clients. Columns: round, sent, full (all parameters), percent."""
    sent = record.values("upload").mean(axis=1)
    table = pd.DataFrame({"round": sent.index, "sent": sent.to_numpy(), "full": float(record.num_params)})
    return table.assign(percent=100 * table["sent"] / table["full"])

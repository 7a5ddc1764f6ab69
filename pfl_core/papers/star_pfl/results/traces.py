"""From the notes of Star-PFL's probe to tidy frames: what the stability traces draw."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pfl_core.algorithms.star_pfl.probe import BINS
from pfl_core.papers.star_pfl.null_model import noise, simulate
from pfl_core.papers.star_pfl.results.freezing import by_chance
from pfl_core.runs import Record

PARTIES = ("server", "client 0")
LARGE, MEDIUM = 0.9, (0.25, 0.75)  # quantiles that the two entries of Figure 1 come from (ours)
DRAWN = 20_000  # scores of noise in a histogram


def layer_sizes(record: Record) -> dict[str, int]:
    """Parameters of each layer, in the model's order."""
    return {n.removeprefix("layer/"): int(size) for n, size in record.arrays.items() if n.startswith("layer/")}


def traces(record: Record) -> pd.DataFrame:
    """A row per party, round and sampled entry. Columns: party, round, entry, layer, value, score, state."""
    value, score, state = (np.array(record.arrays[name], dtype=float) for name in ("value", "score", "state"))
    entries = np.array(record.arrays["entries"], dtype=int)
    sizes = layer_sizes(record)
    layer = np.array(list(sizes))[np.searchsorted(np.cumsum(list(sizes.values())), entries, side="right")]
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


def two_entries(table: pd.DataFrame) -> dict[str, int]:
    """Figure 1's pair, by rule, among one party's weights and biases that moved: a large one that
    goes back and forth, a medium one that moves.

    By means over the rounds: of the largest tenth by |value| the one with the lowest score; of the middle half, and in
    it of the tenth with the highest scores, the one that went farthest. Batch norm's scales, all near 1, do not count.
    Columns: entry, layer, round, value, score.
    """
    table = table[~table["layer"].str.startswith("bn")]
    grouped = table.assign(size=table["value"].abs()).sort_values("round").groupby("entry")
    means = grouped[["size", "score"]].mean().assign(way=(grouped["value"].last() - grouped["value"].first()).abs())
    means = means[means["score"] > 0]
    large = means[means["size"] >= means["size"].quantile(LARGE)]
    medium = means[means["size"].between(*means["size"].quantile(MEDIUM))]
    moving = medium[medium["score"] >= medium["score"].quantile(LARGE)]
    return {"large, lowest score": int(large["score"].idxmin()), "medium, moving": int(moving["way"].idxmax())}


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

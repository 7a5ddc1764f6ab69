"""Figure 2 of Star-PFL: similarity of the clients' stability scores and stable sets, compared with chance.

The records are those of ``star_pfl_likeness``, which trains as FedAvg does and records scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from pfl_core.algorithms.star_pfl.likeness import Likeness
from pfl_core.papers.star_pfl.null_model import stable_chance
from pfl_core.runs import Record
from pfl_core.study import similarity as overlap
from pfl_core.study.network import network

SPLITS = {"labels": "one label a group", "labels, two each": "two labels a group", "traces": "Dirichlet split"}


def extra_metrics(record: Record) -> dict[str, float]:
    """``likeness`` of the last round and ``moving``; empty for runs that did not record scores."""
    return _likeness(record, len(record.arrays["ranks"])) | moving(record) if "ranks" in record.arrays else {}


def split_name(record: Record) -> str:
    """The split of a run, and whether its scores are those of two rounds."""
    longer = record.spec.setting == "labels" and "history_len_local" in record.spec.method
    return SPLITS[record.spec.setting] + (", scores of two rounds" if longer else "")


def last_round(records: Sequence[Record]) -> pd.DataFrame:
    """Stable shares and contrasts of ``likeness`` in the last round, a row per split and seed.

    Splits in which all pairs of clients have a common class, or none has, are left out.
    """
    rows = [
        {"split": split_name(record), "seed": record.spec.seed}
        | likeness(record).filter(regex="share|contrast").iloc[-1].to_dict()
        for record in records
    ]
    table = pd.DataFrame(rows).dropna()
    return pd.concat(part for _, part in table.groupby("split", sort=False)).set_index(["split", "seed"])


def by_round(records: Sequence[Record], statistic: str) -> pd.DataFrame:
    """A statistic of ``likeness``, "contrast" or "mantel", by round. Columns: round, value, p, kind, seed."""
    parts = []
    for record in records:
        frame = likeness(record).reset_index()
        for kind in ("rank", "stable"):
            names = {f"{kind}_{statistic}": "value", f"{kind}_{statistic}_p": "p"}
            columns = frame[["round", *names]].rename(columns=names)
            parts.append(columns.assign(kind=kind, seed=record.spec.seed))
    return pd.concat(parts)


def likeness(record: Record) -> pd.DataFrame:
    """Similarity of the clients' scores by round, and whether labels explain it.

    Two similarities: ``rank``, Spearman's correlation of scores, and ``stable``, the overlap of stable sets corrected
    for chance. Columns for each: ``_contrast``, pairs of clients with a common class minus pairs without; ``_mantel``,
    the correlation of the similarity with the nearness of the two label distributions; ``_p``, the p-value of each.
    ``stable_share``: share of the entries that are stable; ``chance_share``: the share on noise.
    """
    rounds = pd.RangeIndex(1, len(record.arrays["ranks"]) + 1, name="round")
    return pd.DataFrame([_likeness(record, t) for t in rounds], index=rounds)


def _likeness(record: Record, t: int) -> dict[str, float]:
    """The row of round t in ``likeness``."""
    counts, size = np.array(record.clients["train"]), record.num_params
    common, near = overlap.common_classes(counts), -overlap.label_distance(counts)
    # [N, N] each; the diagonal of both: sizes of the stable sets
    ranks, both = (np.array(record.arrays[name][t - 1]) for name in ("ranks", "both"))
    row = {"stable_share": float(np.diag(both).mean() / size), "chance_share": by_chance(record, t)}
    for name, matrix in (("rank", ranks), ("stable", overlap.iou_chance(both, size))):
        row[f"{name}_contrast"], row[f"{name}_contrast_p"] = overlap.contrast(matrix, common)
        row[f"{name}_mantel"], row[f"{name}_mantel_p"] = overlap.mantel(matrix, near)
    return row


def by_chance(record: Record, t: int) -> float:
    """P(stable) for independent normal updates, as many as a client's window holds after round t."""
    method = record.spec.build_method()
    assert isinstance(method, Likeness)
    length = method.history_len_local
    recorded = min(record.spec.train.epochs, method.record_epochs or length)  # updates in a round
    return stable_chance(min(length, t * recorded), method.stable_at)


def moving(record: Record) -> dict[str, float]:
    """``moving_contrast``: the last round's ``stable_contrast`` without entries that never moved."""
    common = overlap.common_classes(np.array(record.clients["train"]))
    both = overlap_counts(record, "moving")
    return {"moving_contrast": overlap.contrast(overlap.iou_chance(both, record.num_params), common)[0]}


def matrices(record: Record) -> dict[str, np.ndarray]:
    """Title -> similarity [N, N] of the clients in the last round: of scores, and of stable sets."""
    ranks, both = np.array(record.arrays["ranks"])[-1], np.array(record.arrays["both"])[-1]
    return {
        "scores: Spearman": ranks,
        "stable sets: overlap": overlap.iou_raw(both),
        "corrected for chance": overlap.iou_chance(both, record.num_params),
    }


def matrix_cells(matrices: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """A row per matrix and pair of clients. Columns: matrix, i, j, value."""
    return pd.concat(
        pd.DataFrame({"matrix": name, "i": i, "j": range(len(row)), "value": row})
        for name, matrix in matrices.items()
        for i, row in enumerate(matrix)
    )


def score_cells(record: Record) -> pd.DataFrame:
    """The stored scores, a row per client and sampled entry. Columns: client, entry, value, tensor."""
    scores = np.array(record.arrays["scores"])  # [N, n]
    frame = pd.DataFrame(scores, index=pd.RangeIndex(len(scores), name="client"))
    long = frame.melt(ignore_index=False, var_name="entry").reset_index()
    return long.assign(tensor=long["entry"].map(dict(enumerate(sampled_tensors(record)))))


def overlap_counts(record: Record, kind: str) -> np.ndarray:
    """[N, N] number of entries that are stable on both clients ("overlap"), or stable and ever moved ("moving")."""
    by_tensor = [np.array(counts) for name, counts in record.arrays.items() if name.startswith(f"{kind}/")]
    return np.sum(by_tensor, axis=0)


def likeness_by_layer(record: Record) -> pd.DataFrame:
    """Contrasts in the last round, a row per weight tensor: of scores, stable sets, and stable sets that ever moved.

    ``stable`` and ``moving``: shares of the two kinds of sets in the tensor; ``chance``: the stable share on noise.
    """
    common, rows = overlap.common_classes(np.array(record.clients["train"])), []
    chance = by_chance(record, record.rounds)
    for name in weight_tensors(record):
        ranks = np.array(record.arrays[f"ranks/{name}"], dtype=float)
        row = {"tensor": name, "rank_contrast": overlap.contrast(ranks, common)[0]}
        for kind, label in (("overlap", "stable"), ("moving", "moving")):
            # overlap counts [N, N] within this tensor
            both, entries = np.array(record.arrays[f"{kind}/{name}"]), int(record.arrays[f"size/{name}"])
            row[label] = float(np.diag(both).mean() / entries)
            row[f"{label}_contrast"] = overlap.contrast(overlap.iou_chance(both, entries), common)[0]
        rows.append(row | {"chance": chance})
    return pd.DataFrame(rows)


def weight_tensors(record: Record) -> list[str]:
    """Names of the weight tensors of dense layers and convolutions, in the model's order."""
    layout, _ = network(record)
    return [f.name for f in layout.params if len(f.shape) > 1]


def sampled_tensors(record: Record) -> list[str]:
    """Name of the tensor of each entry whose scores were stored."""
    layout, _ = network(record)
    ends = [f.stop for f in layout.params]
    return [layout.params[i].name for i in np.searchsorted(ends, record.arrays["sampled"], side="right")]


def stable_sets(record: Record) -> pd.DataFrame:
    """Mean overlap of stable sets in the last round, for pairs of clients with and without a common class.

    ``iou``; ``expected``, the IoU of independent sets of the same sizes; ``corrected`` for it. For all stable entries,
    and for those that ever moved.
    """
    common, rows = overlap.common_classes(np.array(record.clients["train"])), []
    pairs = np.triu_indices(len(common), 1)
    for kind, label in (("overlap", "all stable"), ("moving", "those that moved")):
        both = overlap_counts(record, kind)
        matrices = {
            "iou": overlap.iou_raw(both),
            "expected": overlap.iou_expected(both, record.num_params),
            "corrected": overlap.iou_chance(both, record.num_params),
        }
        # mean over the pairs i < k with a common class, then over those without
        for together in (True, False):
            here = common[pairs] == together
            means = {name: pd.Series(matrix[pairs][here]).mean() for name, matrix in matrices.items()}
            rows.append({"sets": label, "common class": "yes" if together else "no", **means})
    return pd.DataFrame(rows).set_index(["sets", "common class"])

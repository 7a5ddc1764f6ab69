"""Figure 2 of Star-PFL: similarity of the clients' stability scores and stable sets, compared with chance.

The records are those of ``star_pfl_likeness``, which trains as FedAvg does and records scores.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from pfl_core.algorithms.star_pfl.likeness import Likeness
from pfl_core.papers.star_pfl.null_model import stable_chance
from pfl_core.runs import Record
from pfl_core.study import similarity as overlap
from pfl_core.study.network import network


def extra_metrics(record: Record) -> dict[str, float]:
    """``likeness`` of the last round; empty for runs that did not record scores."""
    return _likeness(record, len(record.arrays["ranks"])) if "ranks" in record.arrays else {}


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
    for name in (f.name for f in network(record)[0].params if len(f.shape) > 1):
        ranks = np.array(record.arrays[f"ranks/{name}"], dtype=float)
        row = {"tensor": name, "rank_contrast": overlap.contrast(ranks, common)[0]}
        for kind, label in (("overlap", "stable"), ("moving", "moving")):
            # overlap counts [N, N] within this tensor
            both, entries = np.array(record.arrays[f"{kind}/{name}"]), int(record.arrays[f"size/{name}"])
            row[label] = float(np.diag(both).mean() / entries)
            row[f"{label}_contrast"] = overlap.contrast(overlap.iou_chance(both, entries), common)[0]
        rows.append(row | {"chance": chance})
    return pd.DataFrame(rows)


def sampled_tensors(record: Record) -> list[str]:
    """Name of the tensor of each entry whose scores were stored."""
    layout, _ = network(record)
    ends = [f.stop for f in layout.params]
    return [layout.params[i].name for i in np.searchsorted(ends, record.arrays["sampled"], side="right")]

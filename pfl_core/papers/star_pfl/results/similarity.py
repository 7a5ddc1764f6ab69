"""Figure 2 of Star-PFL from the records of its instrument: whose scores and stable sets are alike, and by chance."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pfl_core.papers.star_pfl.null_model import steady_chance
from pfl_core.runs import Record
from pfl_core.study import similarity as overlap
from pfl_core.study.network import network


def extra_metrics(record: Record) -> dict[str, float]:
    """The last round's ``likeness``, and ``moving``; nothing of runs without the instrument."""
    return likeness(record).iloc[-1].to_dict() | moving(record) if "ranks" in record.arrays else {}


def likeness(record: Record) -> pd.DataFrame:
    """Round by round, what clients' scores have in common and whether labels explain it. Columns:

    ``rank_contrast`` and ``stable_contrast``: Spearman's correlation of scores, and overlap of stable sets corrected
    for chance, pairs of clients with a common class minus pairs without, and ``_p`` of each; ``rank_mantel`` and
    ``stable_mantel``: their correlation with how near two label distributions are, and ``_p``; ``stable_share`` of the
    entries, and ``chance_share``, what of noise would be stable.
    """
    counts, size = np.array(record.clients["train"]), record.num_params
    common, near = overlap.common_classes(counts), -overlap.label_distance(counts)
    rows = []
    matrices = zip(np.array(record.arrays["ranks"]), np.array(record.arrays["both"]), strict=True)
    for t, (ranks, both) in enumerate(matrices, 1):
        row = {"stable_share": float(np.diag(both).mean() / size), "chance_share": by_chance(record, t)}
        for name, matrix in (("rank", ranks), ("stable", overlap.iou_chance(both, size))):
            row[f"{name}_contrast"], row[f"{name}_contrast_p"] = overlap.contrast(matrix, common)
            row[f"{name}_mantel"], row[f"{name}_mantel_p"] = overlap.mantel(matrix, near)
        rows.append(row)
    return pd.DataFrame(rows, index=pd.RangeIndex(1, len(rows) + 1, name="round"))


def by_chance(record: Record, t: int) -> float:
    """Share of noise that is stable: of as many independent normal updates as a client's window holds after round t."""
    method = record.spec.build_method()
    length = method.history_len_local
    fresh = min(record.spec.train.epochs, method.record_epochs or length)
    return steady_chance(min(length, t * fresh), method.stable_at)


def moving(record: Record) -> dict[str, float]:
    """``moving_contrast``: the last round's ``stable_contrast`` without entries that never moved."""
    common = overlap.common_classes(np.array(record.clients["train"]))
    both = shared(record, "moving")
    return {"moving_contrast": overlap.contrast(overlap.iou_chance(both, record.num_params), common)[0]}


def shared(record: Record, kind: str) -> np.ndarray:
    """[N, N] stable entries ("overlap"), or those that ever moved ("moving"), that two clients have in common."""
    return sum(np.array(of) for name, of in record.arrays.items() if name.startswith(f"{kind}/"))


def likeness_by_layer(record: Record) -> pd.DataFrame:
    """A row per weight tensor of the last round: contrasts of scores, of stable sets, and of those that ever moved.

    ``stable`` and ``moving`` are the two sets' shares of the tensor, ``chance`` that of noise (``by_chance``).
    """
    common, rows = overlap.common_classes(np.array(record.clients["train"])), []
    chance = by_chance(record, record.rounds)
    for name in tensors(record):
        ranks = np.array(record.arrays[f"ranks/{name}"], dtype=float)
        row = {"tensor": name, "rank_contrast": overlap.contrast(ranks, common)[0]}
        for kind, label in (("overlap", "stable"), ("moving", "moving")):
            both, entries = np.array(record.arrays[f"{kind}/{name}"]), int(record.arrays[f"size/{name}"])
            row[label] = float(np.diag(both).mean() / entries)
            row[f"{label}_contrast"] = overlap.contrast(overlap.iou_chance(both, entries), common)[0]
        rows.append(row | {"chance": chance})
    return pd.DataFrame(rows)


def tensors(record: Record) -> list[str]:
    """The weight tensors of dense layers and convolutions, in the model's order."""
    layout, _ = network(record)
    return [f.name for f in layout.params if len(f.shape) > 1]


def sampled_tensors(record: Record) -> list[str]:
    """Of each entry whose scores were kept, the tensor that it lies in."""
    layout, _ = network(record)
    ends = [f.stop for f in layout.params]
    return [layout.params[i].name for i in np.searchsorted(ends, record.arrays["sampled"], side="right")]


def stable_sets(record: Record) -> pd.DataFrame:
    """Pairs of clients in the last round, with and without a common class: overlap of stable sets beside chance.

    ``iou``, ``expected`` of independent sets of the same sizes, ``corrected`` for it; of all stable entries, and of
    those that ever moved.
    """
    common, rows = overlap.common_classes(np.array(record.clients["train"])), []
    pairs = np.triu_indices(len(common), 1)
    for kind, label in (("overlap", "all stable"), ("moving", "those that moved")):
        both = shared(record, kind)
        found = {
            "iou": overlap.iou_raw(both),
            "expected": overlap.iou_expected(both, record.num_params),
            "corrected": overlap.iou_chance(both, record.num_params),
        }
        for together in (True, False):
            here = common[pairs] == together
            means = {name: pd.Series(matrix[pairs][here]).mean() for name, matrix in found.items()}
            rows.append({"sets": label, "common class": "yes" if together else "no", **means})
    return pd.DataFrame(rows).set_index(["sets", "common class"])

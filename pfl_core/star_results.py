"""What a record of Star-PFL's comparison tells beyond accuracy: Table 3's columns, an honest account, likeness.

The validation split decides when a run has converged and which round is reported (A11); the engine scores it with the
models after aggregation, so the same point serves all methods.
"""

from __future__ import annotations

import json
import math
from functools import cache

import numpy as np
import pandas as pd
import torch

from pfl_core import models, overlap
from pfl_core.costs import VALUE_BYTES
from pfl_core.federation import Federation, Split
from pfl_core.layout import Layout
from pfl_core.runs import Record
from pfl_core.runs.spec import options
from pfl_core.star_costs import (
    as_paper_comm,
    paper_values,
    round_flops,
    rounds_to_convergence,
    rounds_to_plateau,
    traffic,
    weight_uses,
)
from pfl_core.star_freezing import freezing, local_gain

METHODS = ("star_pfl", "local", "fedavg", "fedbn", "fedap", "lotteryfl")  # Tables 2 and 3
SIDES = (28, 8, 32)  # of images; a record does not tell, but the number of parameters does


def task(record: Record) -> str:
    """The paper's task, for titles; with what stands in for its images: "axial (mnist stands in)"."""
    data = record.spec.data["name"]
    return record.spec.setting + ("" if data in ("organamnist", "organsmnist") else f" ({data} stands in)")


def numbers(record: Record) -> dict[str, float]:
    """All of it for one run: of the methods compared ``costs`` and ``picked``, of the instrument ``likeness``.

    Of Star-PFL ``freezing``, too, and of all ``local_gain``.
    """
    if "ranks" in record.arrays:
        return likeness(record).iloc[-1].to_dict() | moving(record)
    if record.spec.method["name"] not in METHODS:
        return {}
    return costs(record) | picked(record) | freezing(record) | local_gain(record)


# ---- Table 3 --------------------------------------------------------------------------------------------------------


def costs(record: Record) -> dict[str, float]:
    """A round's costs, means over clients and rounds, in two accounts; then until convergence.

    Table 3's: ``comm_mb_per_client_per_round``, ``flops_1e10_per_round``, ``rounds_to_convergence`` (with
    ``rounds_to_plateau``), and the products ``comm_total``, ``flops_total`` that the abstract compares. Honest: a
    client's ``upload_bytes``, ``mask_bytes``, ``download_bytes``, their sum times rounds ``bytes_total``, and
    ``dense_1e10_per_round``, the operations that are really done. ``sent_share``: percent of the parameters that go up.
    """
    method = record.spec.method["name"]
    layout, macs = network(record)
    upload, bits = _mean(record, "upload"), _mean(record, "upload_bits")
    masked = method in ("star_pfl", "lotteryfl")
    comm = as_paper_comm(VALUE_BYTES * paper_values(method, layout, upload if masked else None))
    sent = traffic(method, layout, upload, bits)
    sizes, epochs = np.sum(record.clients["train"], axis=1), record.spec.train.epochs
    kept = weight_macs(record, macs)
    flops = float(np.mean([[round_flops(macs, m, n, epochs) for m, n in zip(row, sizes, strict=True)] for row in kept]))
    rounds = convergence(record)
    return {
        "comm_mb_per_client_per_round": comm,
        "sent_share": 100 * upload / record.num_params,
        "flops_1e10_per_round": flops / 1e10,
        **rounds,
        "comm_total": comm * rounds["rounds_to_convergence"],
        "flops_total": flops / 1e10 * rounds["rounds_to_convergence"],
        "upload_bytes": sent.upload_payload,
        "mask_bytes": sent.upload_mask,
        "download_bytes": sent.download,
        "bytes_total": sent.total * rounds["rounds_to_convergence"],
        "dense_1e10_per_round": epochs * float(sizes.mean()) * record.flops / 1e10,
    }


def network(record: Record) -> tuple[Layout, int]:
    """The layout of the run's network, and the multiply-adds of one image."""
    return _network(json.dumps(dict(record.spec.model)), len(record.clients["train"][0]), record.num_params)


@cache
def _network(model: str, num_classes: int, num_params: int) -> tuple[Layout, int]:
    part = json.loads(model)
    for shape in ((channels, side, side) for channels in (1, 3) for side in SIDES):
        try:
            net = models.build(part["name"], shape, num_classes, 0, **options(part))
        except ValueError:  # a network of one size
            continue
        if sum(p.numel() for p in net.parameters()) == num_params:
            few = Split.of([(torch.zeros(2, *shape), torch.tensor([0, 0]))])
            fed = Federation(net, {"train": few, "test": few}, seed=0, rounds=1)
            return fed.layout, int(weight_uses(fed, fed.theta0).sum())
    raise ValueError(f"model {part['name']!r} has {num_params} parameters for no image side of {SIDES}")


def weight_macs(record: Record, macs: int) -> np.ndarray:
    """[T, N] multiply-adds of an image in a client's weight gradients: all, or those of its mask.

    LotteryFL prunes every tensor by the same share, so its density tells.
    """
    shape = record.values("correct").shape
    if "weight_macs" in record.series:
        return record.values("weight_macs").to_numpy()
    if "density" in record.series:
        return macs * record.values("density").to_numpy()
    return np.full(shape, float(macs))


def _mean(record: Record, metric: str) -> float:
    return float(record.values(metric).mean(axis=None)) if metric in record.series else 0.0


def progress(record: Record) -> pd.DataFrame:
    """By scored round: validation accuracy (``value``, percent), and a client's ``megabytes`` up and down so far."""
    curve, layout = validation(record), network(record)[0]
    rounds = record.values("upload").mean(axis=1)
    bits = record.values("upload_bits").mean(axis=1) if "upload_bits" in record.series else 0 * rounds
    method = record.spec.method["name"]
    sent = [traffic(method, layout, up, bit).total for up, bit in zip(rounds, bits, strict=True)]
    so_far = pd.Series(np.cumsum(sent) / 1e6, index=rounds.index)
    return pd.DataFrame({"round": curve.index, "value": curve.to_numpy(), "megabytes": so_far[curve.index].to_numpy()})


# ---- rounds ---------------------------------------------------------------------------------------------------------


def validation(record: Record) -> pd.Series:
    """By scored round: mean over clients of the accuracy (percent) on their validation samples, after aggregation."""
    if "correct_val" not in record.series:
        return pd.Series(dtype=float)
    count = record.values("count_val")
    return (100 * record.values("correct_val") / count.where(count > 0)).mean(axis=1)


def convergence(record: Record) -> dict[str, float]:
    """Rounds until validation accuracy is best, and until it stays near its best; not numbers where it never does."""
    curve = validation(record)
    if curve.empty:
        return {"rounds_to_convergence": math.nan, "rounds_to_plateau": math.nan}
    near = rounds_to_plateau((curve / 100).tolist())
    return {
        "rounds_to_convergence": float(curve.index[rounds_to_convergence(curve.tolist()) - 1]),
        "rounds_to_plateau": float(curve.index[near - 1]) if near else math.nan,
    }


def picked(record: Record) -> dict[str, float]:
    """Test accuracy (percent) of the round that is best on validation data.

    ``acc_mean_picked`` at the point that the method reports, ``_picked_merged`` after aggregation, ``_picked_trained``
    after local training.
    """
    curve = validation(record)
    if curve.empty:
        return {}
    best = curve.index[rounds_to_convergence(curve.tolist()) - 1]
    merged, trained = (record.curve(trained=after).loc[best, "acc_mean"] for after in (False, True))
    after_training = record.spec.build_method().reported == "after_local_update"
    return {
        "acc_mean_picked": float(trained if after_training else merged),
        "acc_mean_picked_merged": float(merged),
        "acc_mean_picked_trained": float(trained),
    }


# ---- Figure 2 -------------------------------------------------------------------------------------------------------


def likeness(record: Record) -> pd.DataFrame:
    """Round by round, what clients' scores have in common and whether labels explain it. Columns:

    ``rank_contrast`` and ``stable_contrast``: Spearman's correlation of scores, and overlap of stable sets corrected
    for chance, pairs of clients with a common class minus pairs without, and ``_p`` of each; ``rank_mantel`` and
    ``stable_mantel``: their correlation with how near two label distributions are, and ``_p``; ``stable_share``.
    """
    counts, size = np.array(record.clients["train"]), record.num_params
    common, near = overlap.common_classes(counts), -overlap.label_distance(counts)
    rows = []
    for ranks, both in zip(np.array(record.arrays["ranks"]), np.array(record.arrays["both"]), strict=True):
        row = {"stable_share": float(np.diag(both).mean() / size)}
        for name, matrix in (("rank", ranks), ("stable", overlap.iou_chance(both, size))):
            row[f"{name}_contrast"], row[f"{name}_contrast_p"] = overlap.contrast(matrix, common)
            row[f"{name}_mantel"], row[f"{name}_mantel_p"] = overlap.mantel(matrix, near)
        rows.append(row)
    return pd.DataFrame(rows, index=pd.RangeIndex(1, len(rows) + 1, name="round"))


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

    ``stable`` and ``moving`` are the two sets' shares of the tensor.
    """
    common, rows = overlap.common_classes(np.array(record.clients["train"])), []
    for name in tensors(record):
        ranks = np.array(record.arrays[f"ranks/{name}"], dtype=float)
        row = {"tensor": name, "rank_contrast": overlap.contrast(ranks, common)[0]}
        for kind, label in (("overlap", "stable"), ("moving", "moving")):
            both, entries = np.array(record.arrays[f"{kind}/{name}"]), int(record.arrays[f"size/{name}"])
            row[label] = float(np.diag(both).mean() / entries)
            row[f"{label}_contrast"] = overlap.contrast(overlap.iou_chance(both, entries), common)[0]
        rows.append(row)
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

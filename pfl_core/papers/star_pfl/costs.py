"""Costs of the methods of Star-PFL's Table 3: by the paper's count, and in full."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pfl_core.algorithms.star_pfl.costs import as_paper_comm, paper_values, round_flops, traffic
from pfl_core.costs import VALUE_BYTES
from pfl_core.papers.star_pfl.convergence import convergence, validation
from pfl_core.runs import Record
from pfl_core.study.network import network


def costs(record: Record) -> dict[str, float]:
    """Costs of a round (means over clients and rounds) and until convergence, by the paper's count and in full.

    By the paper's count (Table 3): ``comm_mb_per_client_per_round``, ``flops_1e10_per_round``,
    and the rounds of ``convergence``.
    In full: a client's ``upload_bytes``, ``mask_bytes``, ``download_bytes``, and ``dense_1e10_per_round``, the
    operations that dense kernels execute. Also ``sent_share``, the uploaded share of the parameters in percent.
    """
    method = record.spec.method["name"]
    layout, uses = network(record)
    macs = int(uses.sum())
    upload, bits = _mean(record, "upload"), _mean(record, "upload_bits")
    masked = method in ("star_pfl", "lotteryfl")
    comm = as_paper_comm(VALUE_BYTES * paper_values(method, layout, upload if masked else None))
    bytes_ = traffic(method, layout, upload, bits, float(mask_size_before(record).mean()))
    # FLOPs of each client: a mask saves multiply-adds of the weight gradients only; the rule is linear in these
    sizes, epochs = np.sum(record.clients["train"], axis=1), record.spec.train.epochs
    gradients = weight_macs(record, macs).mean(axis=0)
    flops = float(np.mean([round_flops(macs, m, n, epochs) for m, n in zip(gradients, sizes, strict=True)]))
    return {
        "comm_mb_per_client_per_round": comm,
        "sent_share": 100 * upload / record.num_params,
        "flops_1e10_per_round": flops / 1e10,
        **convergence(record),
        "upload_bytes": bytes_.upload_payload,
        "mask_bytes": bytes_.upload_mask,
        "download_bytes": bytes_.download,
        "dense_1e10_per_round": epochs * float(sizes.mean()) * record.flops / 1e10,
    }


def weight_macs(record: Record, macs: int) -> np.ndarray:
    """[T, N] multiply-adds of the weight gradients of one image, on each client: all, or those of its mask.

    LotteryFL prunes every tensor by the same share, so they are ``macs`` times its density.
    """
    if "weight_macs" in record.series:
        return record.array("weight_macs")
    if "density" in record.series:
        return macs * record.array("density")
    return np.full(record.array("correct").shape, float(macs))


def mask_size_before(record: Record) -> np.ndarray:
    """[T, N] parameters in a client's mask before each round: those of its last upload, at first all.

    Assumes full participation. Used for LotteryFL, whose server sends only these.
    """
    upload = record.array("upload")
    return np.vstack([np.full_like(upload[:1], record.num_params), upload[:-1]])


def _mean(record: Record, metric: str) -> float:
    return float(np.nanmean(record.array(metric))) if metric in record.series else 0.0


def progress(record: Record) -> pd.DataFrame:
    """By scored round: validation accuracy (``value``, percent) and a client's cumulative traffic in ``megabytes``."""
    curve, layout = validation(record), network(record)[0]
    upload, before = record.values("upload").mean(axis=1), mask_size_before(record).mean(axis=1)
    bits = record.values("upload_bits").mean(axis=1) if "upload_bits" in record.series else 0 * upload
    method = record.spec.method["name"]
    total = [traffic(method, layout, *counts).total for counts in zip(upload, bits, before, strict=True)]
    so_far = pd.Series(np.cumsum(total) / 1e6, index=upload.index)
    return pd.DataFrame({"round": curve.index, "value": curve.to_numpy(), "megabytes": so_far[curve.index].to_numpy()})

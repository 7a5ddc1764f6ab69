"""pFedGate-specific metrics of a run: kept and sent shares, differences of masks, diagnostics of the final model."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from pfl_core.algorithms.pfedgate.adapt import least_ratio
from pfl_core.algorithms.pfedgate.gate import build_blocks
from pfl_core.algorithms.pfedgate.method import PFedGate
from pfl_core.costs import rounds_to
from pfl_core.runs import Record
from pfl_core.study.network import network

SWAPS = {"other_gates": "other_gate", "mean_gate": "mean_gate", "constant_scales": "constant_scales"}  # -> its metric


def extra_metrics(record: Record) -> dict[str, float]:
    """Metrics of a run of pFedGate or one of its baselines; also ``mask_metrics``, ``probe_metrics`` and ``drift``.

    ``rounds_to_90``, ``rounds_to_80``: first scored round with that share of the run's best pooled accuracy.
    ``client_spread``: standard deviation of the clients' final accuracies.
    ``kept_ratio``, ``upload_ratio``: s' and q in training, means over rounds and clients.
    ``infeasible``: share of the clients whose always-kept blocks exceed s.
    """
    curve = record.reported_curve()["acc_pooled"]
    metrics = {"client_spread": float(record.final().std(ddof=0))}
    for percent in (90, 80):
        reached = rounds_to(curve.tolist(), percent / 100 * curve.max())
        metrics[f"rounds_to_{percent}"] = float(curve.index[reached - 1]) if reached else math.nan
    for name in ("kept_ratio", "upload_ratio", "infeasible"):
        if name in record.series:
            metrics[name] = float(np.nanmean(record.array(name)))
    return metrics | mask_metrics(record) | probe_metrics(record) | drift(record)


def block_use(record: Record) -> tuple[np.ndarray, np.ndarray] | None:
    """[N, L] share of a client's test samples for which each block was kept, and the block sizes [L]."""
    if "test_masks" not in record.arrays:
        return None
    return np.array(record.arrays["test_masks"]), np.array(record.arrays["block_sizes"])


def mask_metrics(record: Record) -> dict[str, float]:
    """Metrics of the masks on test data; empty if they were not recorded.

    ``achieved_keep_ratio``: s', plain mean over clients. ``distinct_masks``: number of different masks over all test
    batches. ``mask_distance``: difference of the frequencies with which two clients keep a parameter, mean over
    parameters and pairs (with one mask each: the share that one client keeps and the other does not).
    ``always_kept``, ``never_kept``: shares of the blocks that all clients keep always, or never.
    """
    if (recorded := block_use(record)) is None:
        return {}
    masks, sizes = recorded
    # mean over pairs of clients of sum_b |m_ib - m_jb| W_b / d
    pairs = np.triu_indices(len(masks), 1)
    apart = np.abs(masks[pairs[0]] - masks[pairs[1]]) @ sizes / sizes.sum()
    return {
        "achieved_keep_ratio": float(np.mean(record.arrays["achieved_keep_ratio"])),
        "distinct_masks": float(np.ravel(record.arrays["distinct_masks"])[0]),
        "mask_distance": float(apart.mean()) if len(apart) else math.nan,
        "always_kept": float((masks.min(0) == 1).mean()),
        "never_kept": float((masks.max(0) == 0).mean()),
    }


def kept_macs(record: Record) -> float:
    """Share of the forward pass's multiply-adds that the kept blocks need on test data, mean over clients.

    Masked kernels compute all of them anyway. NaN without recorded masks.
    """
    if (recorded := block_use(record)) is None:
        return math.nan
    (layout, uses), method = network(record), record.spec.build_method()
    assert isinstance(method, PFedGate)
    least = min(least_ratio(method, float(s)) for s in np.atleast_1d(method.keep_ratio))
    blocks = build_blocks(layout, method.blocks_per_tensor, least, method.block_layout)
    return float(blocks.macs_share(recorded[0], uses).mean())


def probe_metrics(record: Record) -> dict[str, float]:
    """Diagnostics of the final model, accuracies in percent; empty for runs without a probe.

    ``global_acc_pooled``, ``global_acc_bottom_decile``: the model without gates; ``local_global_gap``,
    ``local_global_gap_decile``: the leads of the gated model over it.
    ``order_range``: largest minus smallest accuracy over random orders of the test samples. Against the mean of these:
    ``sorted_change``, with batches that follow the labels; ``sample_change``, with the gate evaluated for each sample;
    ``client_mean_change``, with the gate evaluated once for a client.
    Against the client's own gate, if gates were swapped (``gate_swaps``): ``other_gate_change``, ``mean_gate_change``,
    ``constant_scales_change``.
    """
    if "global_correct" not in record.arrays:
        return {}
    count, correct = np.array(record.arrays["test_count"]), _correct(record)
    pooled = {name: 100 * rows.sum(-1) / count.sum() for name, rows in correct.items()}
    # bottom decile: index floor(N / 10) of the sorted accuracies
    accuracy = {name: np.sort(100 * correct[name] / count, axis=-1) for name in ("global", "order")}
    decile = {name: rows[..., len(count) // 10] for name, rows in accuracy.items()}
    own, mean = pooled["order"][0], pooled["order"].mean()
    metrics = {
        "global_acc_pooled": pooled["global"],
        "global_acc_bottom_decile": decile["global"],
        "local_global_gap": own - pooled["global"],
        "local_global_gap_decile": decile["order"][0] - decile["global"],
        "order_range": np.ptp(pooled["order"]),
        **{f"{name}_change": pooled[name] - mean for name in ("sorted", "sample", "client_mean")},
        **{f"{name}_change": pooled[of].mean() - own for of, name in SWAPS.items() if of in pooled},
    }
    return {name: float(value) for name, value in metrics.items()}


def _correct(record: Record) -> dict[str, np.ndarray]:
    """Number of correct predictions [N] of each probe; "order" [5, N], "other_gates" [N - 1, N]."""
    arrays = {name: np.array(array) for name, array in record.arrays.items()}
    return {name.removesuffix("_correct"): array for name, array in arrays.items() if name.endswith("_correct")}


def gate_swaps(record: Record) -> pd.DataFrame:
    """Accuracy (percent) of each client with its own gate and with others; empty if gates were not swapped.

    Columns: gate ("own", "next client's", "mean gate", ...), client, accuracy.
    """
    correct = _correct(record)
    if "other_gates" not in correct:
        return pd.DataFrame(columns=["gate", "client", "accuracy"])
    # row i: client k is scored with the gate of client k + i
    others = {f"client k + {i}'s": row for i, row in enumerate(correct["other_gates"], start=1)}
    ends = {"mean gate": correct["mean_gate"], "one constant scale": correct["constant_scales"]}
    table = pd.DataFrame({"own": correct["order"][0], **others, **ends})
    accuracy = table / np.array(record.arrays["test_count"])[:, None] * 100
    return accuracy.rename_axis("client").reset_index().melt("client", var_name="gate", value_name="accuracy")


def gate_values(record: Record) -> np.ndarray | None:
    """[T, L] M' of each block by round, mean over batches and clients; None if it was not recorded."""
    values = record.arrays.get("gate_values")
    return None if values is None else np.array(values)


def drift(record: Record) -> dict[str, float]:
    """Change of the histogram of gate values per round, in the first and in the last quarter of the rounds.

    The distance of two histograms is the mean difference of their sorted values (Wasserstein-1).
    """
    values = gate_values(record)
    if values is None or len(values) < 5:
        return {}
    moved = np.abs(np.diff(np.sort(values, axis=1), axis=0)).mean(1)  # [T - 1]
    quarter = len(moved) // 4
    return {"drift_first": float(moved[:quarter].mean()), "drift_last": float(moved[-quarter:].mean())}

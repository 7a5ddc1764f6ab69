"""pFedGate-specific metrics of a run: kept and sent shares, differences of masks, diagnostics of the final model."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from pfl_core.algorithms.pfedgate.adapt import least_ratio
from pfl_core.algorithms.pfedgate.blocks import build_blocks
from pfl_core.algorithms.pfedgate.method import PFedGate
from pfl_core.costs import rounds_to
from pfl_core.runs import Record
from pfl_core.study.network import network

SWAPS = {  # array of ``evaluation.gate_swaps`` -> prefix of its metric
    "other_gates": "other_gate",
    "mean_gate": "mean_gate",
    "constant_scales": "constant_scales",
}


def extra_metrics(record: Record) -> dict[str, float]:
    """Metrics of a run of pFedGate or one of its baselines; also ``mask_metrics``, ``probe_metrics`` and ``drift``.

    ``rounds_to_90``, ``rounds_to_80``: first scored round with that share of the run's best pooled accuracy.
    ``client_spread``: standard deviation of the clients' final accuracies.
    ``kept_ratio``, ``upload_ratio``: s' and q in training, means over rounds and clients.
    ``infeasible``: share of the clients whose always-kept blocks exceed s.
    """
    curve = record.reported_curve()["acc_pooled"]
    metrics = {f"rounds_to_{share}": _rounds_to_share(curve, share / 100) for share in (90, 80)}
    metrics["client_spread"] = float(record.final().std(ddof=0))
    for name in ("kept_ratio", "upload_ratio", "infeasible"):
        if name in record.series:
            metrics[name] = float(np.nanmean(record.array(name)))
    return metrics | mask_metrics(record) | probe_metrics(record) | drift(record)


def _rounds_to_share(curve: pd.Series, share: float) -> float:
    """First scored round with this share of the best value; NaN if there is none."""
    reached = rounds_to(curve.tolist(), share * curve.max())
    return float(curve.index[reached - 1]) if reached else math.nan


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
    count = np.array(record.arrays["test_count"], dtype=float)
    names = ("global", "order", "sample", "client_mean", "sorted")
    correct = {name: np.array(record.arrays[f"{name}_correct"]) for name in names}  # [N]; "order" [5, N]
    pooled = {name: 100 * rows.sum(-1) / count.sum() for name, rows in correct.items()}
    # bottom decile: index floor(N / 10) of the sorted accuracies
    decile = {
        name: np.sort(100 * correct[name] / count, axis=-1)[..., len(count) // 10] for name in ("global", "order")
    }
    mean = pooled["order"].mean()
    metrics = {
        "global_acc_pooled": pooled["global"],
        "global_acc_bottom_decile": decile["global"],
        "local_global_gap": pooled["order"][0] - pooled["global"],
        "local_global_gap_decile": decile["order"][0] - decile["global"],
        "order_range": np.ptp(pooled["order"]),
        **{f"{name}_change": pooled[name] - mean for name in ("sorted", "sample", "client_mean")},
    }
    if "other_gates_correct" in record.arrays:
        swapped = {name: np.array(record.arrays[f"{name}_correct"]) for name in SWAPS}
        metrics |= {
            f"{change}_change": 100 * swapped[name].sum(-1).mean() / count.sum() - pooled["order"][0]
            for name, change in SWAPS.items()
        }
    return {name: float(value) for name, value in metrics.items()}


def gate_swaps(record: Record) -> pd.DataFrame:
    """Accuracy (percent) of each client with its own gate and with others; empty if gates were not swapped.

    Columns: gate ("own", "next client's", "mean gate", ...), client, accuracy.
    """
    if "other_gates_correct" not in record.arrays:
        return pd.DataFrame(columns=["gate", "client", "accuracy"])
    arrays = {name: np.array(array) for name, array in record.arrays.items() if name.endswith("_correct")}
    correct = {"own": arrays["order_correct"][0]}
    # row i: client k is scored with the gate of client k + i
    correct |= {f"client k + {i}'s": row for i, row in enumerate(arrays["other_gates_correct"], start=1)}
    correct |= {"mean gate": arrays["mean_gate_correct"], "one constant scale": arrays["constant_scales_correct"]}
    accuracy = pd.DataFrame(correct) / np.array(record.arrays["test_count"])[:, None] * 100
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

"""pFedGate's numbers of a run: what was kept and sent, how much masks differ, and the end scored in other ways."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
import pandas as pd

from pfl_core.algorithms.pfedgate.adapt import least_ratio
from pfl_core.algorithms.pfedgate.blocks import build_blocks
from pfl_core.algorithms.pfedgate.method import PFedGate
from pfl_core.costs import rounds_to
from pfl_core.runs import Record
from pfl_core.study.network import network

OPTIONS = (  # what makes a pFedGate run another than the paper's, beside its budget
    *("blocks_per_tensor", "block_layout", "selector", "straight_through", "execution", "mask", "gate_override"),
    *("gate_paths", "pre_norm", "post_norm", "sigmoid", "without_sigmoid", "gate_granularity"),
    "keep_momentum",
)
SWAPS = {  # swapped gates, as ``evaluation.gate_swaps`` keeps them -> name of what they change
    "other_gates": "other_gate",
    "mean_gate": "mean_gate",
    "constant_scales": "constant_scales",
}


def gate_table(records: Iterable[Record]) -> pd.DataFrame:
    """``extra_metrics`` of each run, a row each, in their order; to join to ``frames.summaries``.

    And of its frame ``dirichlet``, ``epochs`` and ``clients`` (those that are left).
    """
    rows = []
    for record in records:
        spec = record.spec
        frame = {"dirichlet": spec.partition.get("alpha", math.nan), "epochs": spec.train.epochs}
        rows.append({**frame, "clients": len(record.clients["train"]), **extra_metrics(record)})
    return pd.DataFrame(rows)


def run_label(record: Record) -> str:
    """Method, budget, setting, and what departs from the paper's gate: "pfedgate, s = 0.5, cifar10, mask=random"."""
    method, usual = record.spec.build_method(), PFedGate()
    if not isinstance(method, PFedGate):
        return record.spec.method["name"]
    changed = [name for name in OPTIONS if getattr(method, name) != getattr(usual, name)]
    words = ["pfedgate", f"s = {method.keep_ratio}", record.spec.setting]
    return ", ".join([*words, *(f"{name}={getattr(method, name)}" for name in changed)])


def only(table: pd.DataFrame, *varied: str) -> pd.DataFrame:
    """The rows of pFedGate that differ from the paper in the named options alone, and in the budget."""
    usual, rows = dataclasses.asdict(PFedGate()), table[table["method"] == "pfedgate"]
    for name in OPTIONS:
        if name not in varied:
            rows = rows[rows[name].isna() if usual[name] is None else rows[name] == usual[name]]
    return rows


def extra_metrics(record: Record) -> dict[str, float]:
    """Of pFedGate's runs and of its baselines.

    ``rounds_to_90``, ``rounds_to_80``: first scored round with that share of the run's best pooled accuracy;
    ``client_spread``: standard deviation of the clients' last accuracies; ``kept_ratio``, ``upload_ratio``: s' and q in
    training, mean over rounds and clients; ``infeasible``: share of the clients whose always-kept blocks exceed s.
    """
    curve = record.curve(trained=record.spec.build_method().reported == "after_local_update")["acc_pooled"]
    numbers = {f"rounds_to_{share}": _first(curve, share / 100) for share in (90, 80)}
    numbers["client_spread"] = float(record.final().std(ddof=0))
    for name in ("kept_ratio", "upload_ratio", "infeasible"):
        if name in record.series:
            numbers[name] = float(np.nanmean(record.values(name)))
    return numbers | mask_numbers(record) | probe_numbers(record) | drift(record)


def _first(curve: pd.Series, share: float) -> float:
    reached = rounds_to(curve.tolist(), share * curve.max())
    return float(curve.index[reached - 1]) if reached else math.nan


def use(record: Record) -> tuple[np.ndarray, np.ndarray] | None:
    """[N, L] share of a client's test samples for which each block was kept, and the blocks' sizes [L]."""
    if "test_masks" not in record.arrays:
        return None
    return np.array(record.arrays["test_masks"]), np.array(record.arrays["block_sizes"])


def mask_numbers(record: Record) -> dict[str, float]:
    """``achieved_keep_ratio``: s' on test data, a plain mean over clients; ``distinct_masks``: on their test batches.

    ``mask_distance``: mean over pairs of clients of the difference of how often they keep a parameter (of masks that do
    not change from batch to batch, the share of the parameters that one keeps and the other does not);
    ``always_kept``, ``never_kept``: share of the blocks, over all clients.
    """
    if (found := use(record)) is None:
        return {}
    masks, sizes = found
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
    """The share of the forward pass's multiply-adds that belongs to what is kept on test data, a mean over clients.

    Masked kernels compute all of them all the same. Not a number without masks.
    """
    if (found := use(record)) is None:
        return math.nan
    (layout, uses), method = network(record), record.spec.build_method()
    least = min(least_ratio(method, float(s)) for s in np.atleast_1d(method.keep_ratio))
    blocks = build_blocks(layout, method.blocks_per_tensor, least, method.block_layout)
    return float(blocks.macs_share(found[0], uses).mean())


def probe_numbers(record: Record) -> dict[str, float]:
    """Percent, where the end was probed: the model without gates, and other ways to make test batches.

    ``global_acc_pooled``, ``global_acc_bottom_decile`` and the gated model's leads over them (``local_global_gap``,
    ``local_global_gap_decile``); ``order_range``: largest minus smallest over random orders; ``sorted_change``: batches
    that follow the labels against the mean of those; ``sample_change``, ``client_mean_change``: a gate asked sample by
    sample, or once for a client. Where gates were swapped (``gate_swaps``), against the client's own gate:
    ``other_gate_change``, ``mean_gate_change``, ``constant_scales_change``.
    """
    if "global_correct" not in record.arrays:
        return {}
    count = np.array(record.arrays["test_count"], dtype=float)
    of = {n: np.array(record.arrays[f"{n}_correct"]) for n in ("global", "order", "sample", "client_mean", "sorted")}
    pooled = {name: 100 * correct.sum(-1) / count.sum() for name, correct in of.items()}
    ranked = {name: np.sort(100 * of[name] / count, axis=-1)[..., len(count) // 10] for name in ("global", "order")}
    mean = pooled["order"].mean()
    numbers = {
        "global_acc_pooled": pooled["global"],
        "global_acc_bottom_decile": ranked["global"],
        "local_global_gap": pooled["order"][0] - pooled["global"],
        "local_global_gap_decile": ranked["order"][0] - ranked["global"],
        "order_range": np.ptp(pooled["order"]),
        **{f"{name}_change": pooled[name] - mean for name in ("sorted", "sample", "client_mean")},
    }
    if "other_gates_correct" in record.arrays:
        swapped = {name: np.array(record.arrays[f"{name}_correct"]) for name in SWAPS}
        numbers |= {
            f"{change}_change": 100 * swapped[name].sum(-1).mean() / count.sum() - pooled["order"][0]
            for name, change in SWAPS.items()
        }
    return {name: float(value) for name, value in numbers.items()}


def gate_swaps(record: Record) -> pd.DataFrame:
    """Accuracy (percent) of each client with its own gate and with others; no rows where gates were not swapped.

    Columns: gate ("own", "next client's", "mean gate", ...), client, accuracy.
    """
    if "other_gates_correct" not in record.arrays:
        return pd.DataFrame(columns=["gate", "client", "accuracy"])
    arrays = {name: np.array(array) for name, array in record.arrays.items() if name.endswith("_correct")}
    correct = {"own": arrays["order_correct"][0]}
    correct |= {f"client k + {i}'s": row for i, row in enumerate(arrays["other_gates_correct"], start=1)}
    correct |= {"mean gate": arrays["mean_gate_correct"], "one constant scale": arrays["constant_scales_correct"]}
    accuracy = pd.DataFrame(correct) / np.array(record.arrays["test_count"])[:, None] * 100
    return accuracy.rename_axis("client").reset_index().melt("client", var_name="gate", value_name="accuracy")


def gate_values(record: Record) -> np.ndarray | None:
    """[T, L] each block's M', mean over batches and clients, round by round."""
    values = record.arrays.get("gate_values")
    return None if values is None else np.array(values)


def drift(record: Record) -> dict[str, float]:
    """How far the histogram of gate values moves from one round to the next, in the first and in the last quarter.

    The distance of two histograms is the mean difference of their sorted values.
    """
    values = gate_values(record)
    if values is None or len(values) < 5:
        return {}
    moved = np.abs(np.diff(np.sort(values, axis=1), axis=0)).mean(1)  # [T - 1]
    quarter = len(moved) // 4
    return {"drift_first": float(moved[:quarter].mean()), "drift_last": float(moved[-quarter:].mean())}

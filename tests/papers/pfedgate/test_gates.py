"""Metrics of pFedGate's runs on an artificial record, by hand; number of masks that a knapsack can select."""

import math
from dataclasses import replace

import numpy as np
import pytest

from pfl_core.papers.pfedgate.gates import (
    extra_metrics,
    gate_swaps,
    kept_macs,
)
from pfl_core.papers.pfedgate.mask_counts import masks_possible
from pfl_core.papers.pfedgate.paper import PAPER
from pfl_core.papers.pfedgate.settings import SETTINGS
from pfl_core.runs import Record


def record(arrays=None, **options) -> Record:
    """Two clients of ten test samples; 2, 8, 9 and 10 of all 20 are correct in rounds 2 to 8."""
    spec = SETTINGS.spec("pfedgate", preset="ci", **options)
    rounds = [2, 4, 6, 8]
    series = {
        "correct": (rounds, [[1, 1], [4, 4], [4, 5], [4, 6]]),
        "count": (rounds, [[10, 10]] * 4),
        "loss": (rounds, [[1.0, 1.0]] * 4),
        "kept_ratio": ([1, 2], [[0.4, 0.5], [0.4, 0.3]]),
        "upload_ratio": ([1, 2], [[0.6, 0.5], [0.6, 0.5]]),
        "infeasible": ([1, 2], [[1.0, 0.0], [1.0, 0.0]]),
    }
    return Record("", spec, series, arrays or {}, {"train": [[3, 2], [4, 1]]})


MASKS = {
    "test_masks": [[1, 1, 0, 0], [1, 0.5, 1, 0]],
    "block_sizes": [2, 4, 6, 8],
    "achieved_keep_ratio": [0.3, 0.5],
    "distinct_masks": [3],
}


def test_rounds_shares_and_spread():
    metrics = extra_metrics(record())
    assert (metrics["rounds_to_90"], metrics["rounds_to_80"]) == (6, 4)
    assert metrics["client_spread"] == pytest.approx(10.0)
    assert metrics["kept_ratio"] == pytest.approx(0.4) and metrics["upload_ratio"] == pytest.approx(0.55)
    assert metrics["infeasible"] == 0.5


def test_masks():
    """Clients differ by half of block 1 and all of block 2: (2 + 6) / 20."""
    metrics = extra_metrics(record(MASKS))
    assert metrics["mask_distance"] == pytest.approx(0.4) and metrics["achieved_keep_ratio"] == 0.4
    assert (metrics["distinct_masks"], metrics["always_kept"], metrics["never_kept"]) == (3, 0.25, 0.25)


def test_kept_multiplications():
    """A dense network uses each weight once, and a bias needs no multiply-add."""
    arrays = MASKS | {"test_masks": np.ones((2, 30)).tolist()}
    stored = replace(record(arrays), num_params=6_570, clients={"train": [[1] * 10, [1] * 10]})
    assert kept_macs(stored) == 1.0 and math.isnan(kept_macs(record()))
    weights = [64 * 64, 64 * 32, 32 * 10]
    first = np.zeros((2, 30))
    first[:, :5] = 1  # the five blocks of the first layer's weights
    got = kept_macs(replace(stored, arrays=arrays | {"test_masks": first.tolist()}))
    assert got == pytest.approx(weights[0] / sum(weights))


def test_probes():
    orders = [[5, 6], [5, 7], [5, 6], [5, 6], [5, 6]]
    arrays = {
        "global_correct": [4, 4], "order_correct": orders, "sample_correct": [2, 2], "client_mean_correct": [5, 6],
        "sorted_correct": [9, 9], "test_count": [10, 10],
    }  # fmt: skip
    metrics = extra_metrics(record(arrays))
    assert (metrics["global_acc_pooled"], metrics["local_global_gap"]) == (40.0, pytest.approx(15.0))
    assert metrics["local_global_gap_decile"] == 10.0 and metrics["order_range"] == 5.0
    assert metrics["sorted_change"] == pytest.approx(90 - 56) and metrics["sample_change"] == pytest.approx(20 - 56)


def test_swapped_gates():
    """Correct of ten samples: 5 and 6 with the own gate, 1 and 2 with the next client's, 3 and 4 with the one after."""
    arrays = {name: [4, 4] for name in ("global_correct", "sample_correct", "client_mean_correct", "sorted_correct")}
    arrays |= {"order_correct": [[5, 6]] * 5, "test_count": [10, 10]}
    assert gate_swaps(record(arrays)).empty and "other_gate_change" not in extra_metrics(record(arrays))
    swaps = {"other_gates_correct": [[1, 2], [3, 4]], "mean_gate_correct": [5, 5], "constant_scales_correct": [6, 6]}
    stored = record(arrays | swaps)
    metrics = extra_metrics(stored)
    assert metrics["other_gate_change"] == pytest.approx(25 - 55)
    assert (metrics["mean_gate_change"], metrics["constant_scales_change"]) == (pytest.approx(-5), pytest.approx(5))
    frame = gate_swaps(stored).pivot(index="client", columns="gate", values="accuracy")
    assert frame.loc[1].to_dict() == {
        **{"own": 60, "client k + 1's": 20, "client k + 2's": 40},
        **{"mean gate": 50, "one constant scale": 60},
    }
    judged = {check.what: check.acts for check in stored.mechanism}
    assert judged.pop("points that a client's own gate is ahead of other clients' gates")
    assert not judged.pop("points that a client's own gate is ahead of one constant scale")
    assert len(judged) == 1  # two of the clients' budgets are too small


def test_drift_compares_sorted_values():
    values = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5], [0.5, 0.5], [0.5, 0.6]])
    metrics = extra_metrics(record({"gate_values": values.tolist()}))
    assert (metrics["drift_first"], metrics["drift_last"]) == (0.0, pytest.approx(0.05))


def test_variants_contain_changed_fields():
    def variant(method="pfedgate", preset="ci", **options):
        return PAPER.variant(SETTINGS.spec(method, preset=preset, **options))

    assert variant() == variant(probe=True) == variant("fedavg") == variant("ditto") == ""
    assert variant(preset="paper", keep_ratio=0.3) == "keep_ratio=0.3"
    assert variant(keep_ratio=(0.5, 0.1)) == "keep_ratio=(0.5, 0.1)"
    assert variant(lr_gate=0.7) == "lr_gate=0.7"
    assert variant("fedavg", client_weighting="uniform") == "client_weighting=uniform"


def test_number_of_possible_masks():
    """One mask at s = 0.3 on the EMNIST network, in both readings, and few at s = 0.5; many with blocks of one size."""
    half, third = masks_possible("EMNIST", "leaf_cnn", (1, 28, 28), 62)
    assert third["masks, paper"] == third["masks, authors_code"] == 1
    assert half["masks, paper"] == 4
    assert half["s', paper"] == pytest.approx(0.448, abs=5e-4)
    assert third["s', paper"] == pytest.approx(0.264, abs=5e-4)
    assert half["masks, balanced"] == third["masks, balanced"] == 20 and third["s', balanced"] > third["s', paper"]
    assert third["s', authors_code"] == pytest.approx(0.246, abs=5e-4)
    assert half["s', authors_code"] == pytest.approx(0.434, abs=5e-4) and half["blocks L"] == 40
    assert math.isclose(half["gate / model"], 62_720 / 2_278_334)

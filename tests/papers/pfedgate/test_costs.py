"""pFedGate's costs against hand counts and torch's FLOP counter."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pfl_core.algorithms.fedem import FedEM
from pfl_core.algorithms.pfedgate.method import PFedGate
from pfl_core.costs import weight_uses
from pfl_core.papers.pfedgate.benchmark import (
    DEFAULT_TURNS,
    MODES,
    MORE_MODES,
    STEPS,
    TURNS,
    analytic,
    federation,
    modes,
    timed,
)
from pfl_core.papers.pfedgate.costs import (
    fedem_step,
    first_mask,
    layer_macs,
    sliced_macs,
    step_counts,
    table5,
    training_macs,
)
from pfl_core.runs.provenance import processor

ROWS = {"block_layout": "output_rows", "straight_through": "kept"}


def bench(name="lenet_cifar", batch=2):
    fed = federation(batch, name)
    return fed, weight_uses(fed, fed.theta0)


def test_macs_by_layer():
    """5x5 convolutions with output maps of 28x28 and 10x10, then dense layers."""
    fed, uses = bench()
    macs = layer_macs(fed.layout, uses)
    assert macs == {"conv1": 1_881_600, "conv2": 5_120_000, "fc1": 192_000, "fc2": 10_080, "head": 840}
    assert training_macs(macs) == 3 * 7_204_520 - 1_881_600


@pytest.mark.parametrize(
    ("name", "s", "expected"),
    [
        *(("leaf_cnn", 0.5, 0.459), ("leaf_cnn", 0.3, 0.279)),
        *(("lenet_cifar", 0.5, 0.558), ("lenet_cifar", 0.3, 0.410)),
        *(("leaf_cnn_cifar", 0.5, 0.519), ("leaf_cnn_cifar", 0.3, 0.359)),
    ],
)
def test_masks_of_the_released_code_keep_more_macs_than_parameters(name, s, expected):
    fed, uses = bench(name)
    adapter, kept = first_mask(PFedGate.reading("authors_code", keep_ratio=s), fed)
    assert adapter.blocks.share(kept) < s
    assert adapter.blocks.macs_share(kept, uses) == pytest.approx(expected, abs=0.001)


def test_a_gate_larger_than_the_model_needs_few_macs():
    fed, uses = bench()
    counts = step_counts(PFedGate(keep_ratio=0.5), fed, uses)
    assert counts["gate / model, parameters"] == pytest.approx(307_512 / 256_830)
    assert counts["gate / model, MACs"] == pytest.approx(2 * 153_600 / 7_204_520)
    model = 3 * 7_204_520 - 1_881_600
    assert counts["step computed"] == pytest.approx(1 + 3 * 307_200 / model)
    plain = step_counts(PFedGate(keep_ratio=0.5, pre_norm=False), fed, uses)
    assert plain["step computed"] == pytest.approx(1 + 2 * 307_200 / model)


def test_sliced_layers_by_hand():
    """Without some of conv1's 32 channels, its MACs and conv2's fall by their share; conv2 keeps its channels."""
    fed, uses = bench()
    adapter, _ = first_mask(PFedGate(keep_ratio=0.3, **ROWS), fed)
    kept = adapter.blocks.always | True
    assert sliced_macs(layer_macs(fed.layout, uses), adapter.blocks, kept) == layer_macs(fed.layout, uses)
    kept[2:5] = False
    neurons = sum(adapter.blocks.rows[0][:2]) / 32
    macs = sliced_macs(layer_macs(fed.layout, uses), adapter.blocks, kept)
    assert macs["conv1"] == 1_881_600 * neurons and macs["conv2"] == 5_120_000 * neurons and macs["fc1"] == 192_000


@pytest.mark.parametrize("label", [label for label in MODES | MORE_MODES if label != "FedEM"])
def test_counted_macs_match_torch_in_a_round(label):
    algorithm, (fed, uses) = modes("real")[label], bench()
    state = algorithm.init(fed, fed.theta0)
    with FlopCounterMode(display=False) as counter:
        algorithm.round(fed, state, torch.arange(1), 0)
    share = step_counts(algorithm, fed, uses)["step computed"] if isinstance(algorithm, PFedGate) else 1.0
    expected = 2 * 4 * share * training_macs(layer_macs(fed.layout, uses))  # two steps of two samples
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.02 if "sliced" in label else 1e-9)


def test_fedem_counts_its_e_step():
    fed, uses = bench()
    algorithm, macs = FedEM(), layer_macs(fed.layout, uses)
    with FlopCounterMode(display=False) as counter:
        algorithm.round(fed, algorithm.init(fed, fed.theta0), torch.arange(1), 0)
    assert counter.get_total_flops() == pytest.approx(2 * 4 * fedem_step(macs, 3) * training_macs(macs))


def test_table_5():
    table = table5(keep=0.5, upload=0.67, gate=0.05)
    assert table["server"].tolist() == ["d", "d_v d_h + d_v N", "kd", "d"]
    assert table["inference"].tolist() == ["O(d)", "O(d)", "O(d)", "O(d(s + s_φ))"]
    assert table.iloc[:, [1, 3, 5, 7]].values.tolist() == [
        [2, 1, 1, 1], [2, 1, 1, 1], [6, 3, 3, 3], [1.1, 0.55, 0.67, 1.05],
    ]  # fmt: skip


def test_the_bench_at_preset_ci():
    """Peak memory is compared by the reference notebook."""
    counts, times = analytic("ci"), timed("ci")
    assert list(counts.index) == list(MODES)
    assert counts.loc["FedEM", "upload / d"] == 3 and counts.loc["FedAvg", "step computed"] == 1
    assert counts.loc["whole neurons, s = 0.3, sliced", "step computed"] < 0.6
    assert counts.loc[["FedAvg", "pFedGate, s = 1"], "upload, kB"].tolist() == [1027.32, 1027.331]  # 50 bits and n_k
    assert set(times["label"]) == {*MODES, "FedEM, without its E step"} and set(times["turn"]) == {1, 2}
    assert (times.loc[times["label"] == "FedAvg", "ratio"] == 1).all() and (times["ms"] > 0).all()
    assert set(times["processor"]) == {processor()}


def test_at_least_twenty_steps_are_timed_except_at_preset_ci():
    """`seconds` adds a warm-up turn, which is not counted."""
    assert all(TURNS.get(preset, DEFAULT_TURNS) * STEPS >= 20 for preset in ("quick", "real", "paper"))

"""Diagnostics of pFedGate's gates: swapped gates by hand, and mechanism checks."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pfl_core import Training
from pfl_core.algorithms.pfedgate.local import gate_swaps
from pfl_core.algorithms.pfedgate.method import PFedGate
from pfl_core.algorithms.pfedgate.options import LEAST, POINTS, left_by_decay, scale_by_decay
from tests.algorithms.pfedgate.plain import F64, after, fed_of
from tests.helpers import linear_federation

# ---- swapped gates --------------------------------------------------------------------------------------------------


def test_swapped_gates_by_hand():
    """Logits are (M_0 x_0, 0.5 M_1 x_0) for x = (1, 0); client 0 has label 0, client 1 has label 1, both with one x.

    Gates without norms and with weights of 0 have M = σ(bias): (0.9, 0.1) for client 0 and (0.1, 0.9) for client 1.
    With the other's gate both are wrong. The mean gate and a constant scale have M_0 = M_1 = 0.5: label 0 for both.
    """
    fed = linear_federation([([[1, 0]] * 2, [0] * 2), ([[1, 0]] * 3, [1] * 3)])
    method = PFedGate(keep_ratio=1.0, blocks_per_tensor=2, pre_norm=False, post_norm=False)
    state = method.init(fed, torch.tensor([1.0, 0, 0.5, 0], dtype=F64))
    bias = math.log(9) * torch.tensor([[1.0, -1], [-1, 1]], dtype=F64)
    gate = torch.zeros_like(state.gate)
    gate[:, -4:-2] = bias  # two biases of the scale path, then two of importances
    state = replace(state, gate=gate)
    everyone = torch.arange(2)
    own = fed.evaluate(
        fed.broadcast(state.shared, everyone), everyone, predict=lambda *k: method.predict(fed, state, *k)
    )
    assert own.correct.tolist() == [2, 3]
    swapped = {name: correct.tolist() for name, correct in gate_swaps(method, fed, state).items()}
    assert swapped == {
        "other_gates_correct": [[0, 0]],
        "mean_gate_correct": [2, 0],
        "constant_scales_correct": [2, 0],
    }


def test_a_swapped_gate_has_its_statistics():
    """Client k with the gate of k + 1, from a state in which the gates are set one by one."""
    fed = fed_of(dtype=F64, test=40, spread=1.5)
    method = PFedGate(lr_gate=5.0, keep_ratio=0.7, scale_bias_init=2.0)
    state, _ = after(method, fed, 2)
    spread = torch.tensor([[0.2], [1.0], [5.0]], dtype=state.statistics.dtype)  # so that the statistics matter
    state = replace(state, statistics=spread * state.statistics)
    got = gate_swaps(method, fed, state)["other_gates_correct"]
    assert got.shape == (2, 3)  # of three clients there are two others
    alone = []
    for i in (1, 2):
        for k in range(3):
            other, here = (k + i) % 3, torch.tensor([k])
            gates, statistics = state.gate.clone(), state.statistics.clone()
            gates[k], statistics[k] = state.gate[other], state.statistics[other]
            moved = replace(state, gate=gates, statistics=statistics)
            scores = fed.evaluate(state.shared[None], here, predict=lambda *x, s=moved: method.predict(fed, s, *x))
            assert int(got[i - 1, k]) == int(scores.correct)
            without = replace(state, gate=gates)
            scores = fed.evaluate(state.shared[None], here, predict=lambda *x, s=without: method.predict(fed, s, *x))
            alone.append(int(scores.correct))
    assert alone != got.flatten().tolist(), "the statistics make no difference here"


def test_swaps_are_stored_with_probe_and_need_two_clients():
    fed = fed_of("dense")
    state, _ = after(PFedGate(), fed)
    assert "other_gates_correct" in PFedGate(probe=True).artifacts(fed, state)
    assert "other_gates_correct" not in PFedGate().artifacts(fed, state)
    alone = fed_of("dense", sizes=(12,))
    state, _ = after(PFedGate(), alone)
    assert gate_swaps(PFedGate(), alone, state) == {}


# ---- checks ---------------------------------------------------------------------------------------------------------


def test_weight_decay_by_hand():
    """Two steps at rate 1 and decay 0.1: 0.9, then 0.81; with momentum 0.5 v = 0.1, 0.14, so 0.9, then 0.76."""
    assert left_by_decay(Training(weight_decay=0.1), 1.0, 2, 2, True) == pytest.approx(0.81)
    moving = Training(weight_decay=0.1, momentum=0.5)
    assert left_by_decay(moving, 1.0, 2, 2, True) == pytest.approx(0.76)
    assert left_by_decay(moving, 1.0, 2, 2, False) == pytest.approx(0.81)  # a step a round, momentum restarts
    falling = Training(weight_decay=0.1, milestones=(0.5,), decay=0.0)
    assert left_by_decay(falling, 1.0, 2, 2, True) == pytest.approx(0.9)


def test_a_gate_with_weight_decay_alone_has_the_expected_scale():
    """All weights of the model are 0 and stay 0, so the loss is constant and only weight decay changes a gate."""
    train = {"momentum": 0.9, "weight_decay": 0.2, "lr": 0.0, "batch_size": 60}
    fed = fed_of("dense", (60, 60), dtype=F64, **train)
    method = PFedGate(lr_gate=1.0, scale_bias_init=3.0)
    state = method.init(fed, torch.zeros_like(fed.theta0))
    for t in range(3):
        state, notes = method.round(fed, state, torch.arange(2), t)
    want = scale_by_decay(method, fed.train, 2, 2)  # the last round's scale is read before its step
    assert scale_by_decay(method, fed.train, 0, 2) - want > 0.1
    assert notes["gate_scale"].tolist() == pytest.approx([want] * 2, abs=0.02)
    assert notes["steps"].tolist() == [1, 1] and (notes["gate_spread"] < 0.02).all()


SERIES = {"gate_scale": [[0.93, 0.93], [0.92, math.nan]], "gate_spread": [[0.0, 0.0], [0.01, math.nan]]}
SERIES = {name: np.array(rows) for name, rows in SERIES.items()} | {"steps": np.array([[4.0, 4], [4, math.nan]])}
TABLE_7 = Training(lr=0.1, momentum=0.9, weight_decay=5e-4)


def checks(method=None, training=TABLE_7, **series):
    return (method or PFedGate(scale_bias_init=3.0)).mechanism(SERIES | series, 2, training)


def test_scales_must_differ_from_weight_decay_alone():
    (still,) = checks()
    assert not still.acts and still.value < 0.02 and still.bound == LEAST
    (apart,) = checks(gate_spread=np.array([[0.0, 0], [0.2, math.nan]]))
    assert apart.acts and apart.value == pytest.approx(0.2, abs=0.01)
    lower = {"gate_scale": np.array([[0.93, 0.93], [0.7, math.nan]])}
    (down,) = checks(**lower)
    assert down.acts and down.value == pytest.approx(0.23, abs=0.01)
    fast = PFedGate(scale_bias_init=3.0, lr_gate=1.5)  # decay alone takes the scales there in 160 steps
    assert scale_by_decay(fast, TABLE_7, 160, 2) == pytest.approx(0.7, abs=0.02)
    (drifted,) = checks(fast, **lower, steps=np.array([[80.0, 80], [80, math.nan]]))
    assert not drifted.acts


def test_a_clients_own_gate_must_beat_other_gates_and_a_constant_scale():
    swaps = {"order_correct": [[90, 90]] * 5, "other_gates_correct": [[80, 80], [70, 90]], "test_count": [100, 100]}
    swaps = {name: np.array(values) for name, values in swaps.items()}
    _, others, constant = checks(**swaps, constant_scales_correct=np.array([90, 89]))
    assert (others.value, others.acts) == (10.0, True)
    assert (constant.value, constant.bound, constant.acts) == (0.5, POINTS, False)


def test_checks_without_notes_or_without_learned_gates_are_left_out():
    method = PFedGate()
    assert method.mechanism({}, 2, TABLE_7) == []
    assert checks(PFedGate(gate_override=1.0)) == checks(PFedGate(post_norm=False)) == []
    assert checks(PFedGate(gate_granularity="client")) == []
    absent = {name: np.full((2, 2), math.nan) for name in SERIES}
    assert method.mechanism(absent, 2, TABLE_7) == []


@pytest.mark.parametrize(("ratio", "kept"), [(0.001, 1), (0.6, 0)])
def test_a_budget_below_what_is_always_kept_is_reported(ratio, kept):
    """Equal blocks keep a fifth of every tensor in any case."""
    method = PFedGate.reading("authors_code", keep_ratio=ratio, scale_bias_init=3.0)
    _, notes = after(method, fed_of("dense"))
    series = {"infeasible": notes["infeasible"].numpy()[None]}
    found = method.mechanism(series, 1, TABLE_7)
    assert [check.value for check in found] == [1.0] * kept
    assert all("infeasible" in check.otherwise and not check.acts for check in found)


@pytest.mark.parametrize("layout, helps", [("first_min_ratio", True), ("balanced", True), ("equal", False)])
def test_the_warning_names_min_keep_ratio_only_where_it_acts(layout, helps):
    """Equal blocks keep 1 / B of every tensor, whatever min_keep_ratio is."""
    fed, options = fed_of("dense"), {"block_layout": layout, "min_keep_ratio": 0.05}
    (line,) = PFedGate(keep_ratio=0.055, **options).warnings(fed)
    assert line.endswith("; raise keep_ratio or lower min_keep_ratio" if helps else "; raise keep_ratio")

"""Metrics of the warm-up and of activations, on hand-stored records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pfl_core.papers.fedpews import activations, metrics
from pfl_core.papers.fedpews.settings import SETTINGS
from pfl_core.runs import Record


def record(method="fedavg", setting="lr_server=1", correct=(5, 10), warm=0, arrays=None, **fields):
    """A run with one test client of ten samples; ``warm`` rounds of warm-up, in which seconds are 3 and else 1."""
    spec = replace(SETTINGS.spec(method, preset="quick", setting=setting, **fields), rounds=len(correct))
    at = list(range(1, len(correct) + 1))
    kept = {"correct": (at, [[n] for n in correct]), "count": (at, [[10]] * len(at))}
    kept |= {"seconds": (at, [3.0] * warm + [1.0] * (len(at) - warm))}
    if warm:
        kept |= {name: (at[:warm], [[value]] * warm) for name, value in (("selected", 0.5), ("upload_bits", 8.0))}
        kept |= {"upload": (at[:warm], [[25.0]] * warm)}
    return Record("key", spec, kept, arrays or {}, num_params=100)


def test_rounds_and_time_until_the_target():
    """The target is 99 %. Times are in rounds after the warm-up."""
    assert metrics.to_target(record()) == {"rounds_to_target": 2, "time_to_target": 2.0, "run_time": 2.0}
    warm = metrics.to_target(record("fedpews", warm=1, lam=5.0, tau=0.5))
    assert warm == {"rounds_to_target": 2, "time_to_target": 4.0, "run_time": 4.0}
    never = metrics.to_target(record(correct=(5, 5)))
    assert np.isnan([never["rounds_to_target"], never["time_to_target"]]).all() and never["run_time"] == 2.0
    assert metrics.to_target(record(setting="four clients")) == {}


def test_the_late_accuracy_is_the_mean_of_the_last_ten_rounds():
    assert metrics.late_accuracy(record(correct=[0] * 5 + [10] * 5 + [5] * 5)) == {"acc_late": 75.0}
    assert metrics.late_accuracy(record()) == {}


def test_what_a_warm_up_round_costs_and_sends():
    """25 of 100 parameters and 8 bits, a quarter of a value, are sent."""
    found = metrics.warmup(record("fedpews", warm=1, lam=5.0, tau=0.5))
    assert (found["neurons"], found["selected"], found["warmup_cost"]) == (8.0, 0.5, 3.0)
    assert found["warmup_upload_fraction"] == found["warmup_upload_max"] == pytest.approx(0.2525)
    assert metrics.warmup(record()) == {}


def test_the_share_of_the_own_group():
    """Two neurons, one a client: (1, 0), (0, 1) in the warm-up, then (3, 1), (2, 2)."""
    sums = np.array([[[1.0, 0], [0, 1]], [[3, 1], [2, 2]]])
    run = record("fedpews_fixed", "activations", warm=1, arrays={"activations": sums, "layer_sizes": [2]}, tau=0.5)
    table = activations.activations(run)
    assert table["value"].tolist() == sums.ravel().tolist() and set(table["layer"]) == {"FC1"}
    assert table["group"].tolist() == [0, 1] * 4 and table["client"].tolist() == [0, 0, 1, 1] * 2
    found = activations.own_groups(run)
    later = {"own_group_0_0": 0.75, "own_group_1_0": 0.5, "own_group_mean": 0.625}
    assert found == {**later, "activation_rise": 4.0}
    assert activations.own_groups(record()) == {}

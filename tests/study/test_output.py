"""Captions of figures."""

from __future__ import annotations

from pfl_core.runs import Record, RunSpec
from pfl_core.study import output


def record(**fields) -> Record:
    spec = {"method": {"name": "fedavg"}, "model": {"name": "mlp"}, "preset": "quick", **fields}
    return Record("key", RunSpec(**spec), {})


def test_a_caption_has_the_common_settings_of_the_runs():
    assert output.caption([record(seed=1), record(seed=0), record(seed=1)]) == (
        "preset quick: Digits, 10 clients, MLP, 20 rounds, 1 local epoch, 2 seeds (0, 1)"
    )


def test_a_caption_gives_the_span_where_runs_differ():
    runs = [
        record(clients=4, rounds=200),
        record(clients=2, rounds=60),
        record(model={"name": "cnn_small"}, rounds=100),
    ]
    assert output.caption(runs) == (
        "preset quick: Digits, 2 to 10 clients, MLP + small CNN, 60 to 200 rounds, 1 local epoch, one seed (0)"
    )

"""Metrics of freezing: means over rounds and clients, and the null model."""

import math
from dataclasses import replace

import pytest

from pfl_core.papers.star_pfl.freezing import by_chance, freezing
from pfl_core.papers.star_pfl.null_model import chance
from pfl_core.runs import Record, RunSpec

SPEC = RunSpec(method={"name": "star_pfl", "threshold_local": 0.3}, rounds=2, clients=2, paper="star_pfl")


def record(spec=SPEC, **series):
    shares = {"active_share": ([1, 2], [[1.0, 0.8], [0.6, 0.8]]), "active_share_global": ([1, 2], [1.0, 0.5])}
    return Record(key="k", spec=spec, series=shares | series)


def test_frozen_shares_and_the_null_model():
    metrics = freezing(record())
    assert metrics["frozen_local"] == pytest.approx(20) and metrics["frozen_global"] == pytest.approx(25)
    noise = chance(2, threshold_local=0.3, epochs=1, entries=5000)
    assert metrics["chance_local"] == pytest.approx(100 * noise.frozen_local.mean())
    assert metrics["excess_global"] == pytest.approx(25 - 100 * noise.frozen_global.mean())
    assert metrics["chance_sent"] == pytest.approx(100 * noise.upload.mean())


def test_the_null_model_follows_the_reading():
    code = record(replace(SPEC, method={"name": "star_pfl", "reading": "authors_code", "threshold_local": 0.3}))
    noise = chance(2, threshold_local=0.3, epochs=1, entries=5000, reading="authors_code")
    assert freezing(code)["chance_sent"] == pytest.approx(100 * noise.upload.mean())


@pytest.mark.parametrize(
    "options", [{"stability_measure": "ema"}, {"reading": "authors_code", "thaw": False}, {"thaw": False}]
)
def test_other_options_have_no_null_model(options):
    other = record(replace(SPEC, method={"name": "star_pfl", **options}))
    assert by_chance(other) is None and "chance_local" not in freezing(other)
    assert freezing(replace(other, spec=replace(SPEC, method={"name": "fedavg"}))) == {}


def test_size_correlation_averages_absolute_values_of_the_last_round():
    last = [0.3, -0.3, 0.0, math.nan]
    noted = dict(size_correlation=([1, 2], [[0.9] * 4, last]), size_correlation_global=([1, 2], [0.5, -0.5]))
    metrics = freezing(record(**noted))
    assert (metrics["size_correlation"], metrics["size_correlation_global"]) == (pytest.approx(0.2), -0.5)


def test_cancelled_shares_leave_out_entries_that_never_moved():
    """Ten entries in two layers; server and two clients, two rounds. The share is 0 if no entry ever moved."""
    frozen = [[[1, 1], [2, 2], [0, 0]], [[3, 0], [10, 0], [4, 1]]]
    unmoved = [[0, 2, 0], [1, 10, 5]]
    metrics = freezing(replace(record(), arrays={"frozen": frozen, "unmoved": unmoved}, num_params=10))
    assert metrics["cancelled_global"] == pytest.approx(100 * (2 / 10 + 2 / 9) / 2)
    assert metrics["cancelled_local"] == pytest.approx(100 * (2 / 8 + 0 + 0 + 0) / 4)
    assert "cancelled_local" not in freezing(record())

"""Records: scores computed by hand, and numbers that are stored compactly and come back."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_core.runs import Record, RunSpec, execute, sweep
from pfl_core.runs.packing import in_full, listed, packed, ranged, shortened, unpacked
from pfl_core.training import Training
from tests.runs.outside import HERE

NAN = math.nan
FIVE_DIGITS = 2.0**-16  # relative error of compressed numbers


def record(key: str = "0123456789abcdef", spec: RunSpec | None = None, **series) -> Record:
    """Two clients, two rounds unless ``series`` says otherwise; without values, a series is left out."""
    both = [1, 2]
    plain = {
        "correct": (both, [[1, 2], [3, 2]]),
        "count": (both, [[4, 4], [4, 4]]),
        "loss": (both, [[1.5, 2.5], [0.5, 1.0]]),
        "correct_trained": (both, [[2, 2], [4, NAN]]),
        "count_trained": (both, [[4, 4], [4, NAN]]),
        "seconds": (both, [0.5, 0.25]),
    }
    return Record(key, spec or RunSpec(method={"name": "fedavg"}), {**plain, **series}, seconds=2.0, state="ff" * 8)


def scored(rounds: list[int], correct: list, count: list, suffix: str = "") -> dict:
    return {f"correct{suffix}": (rounds, correct), f"count{suffix}": (rounds, count)}


# ---- scores ---------------------------------------------------------------------------------------------------------

TWENTY = [v for k in range(10) for v in (k, 0)]
CURVES = {  # record, whether after training, mean, pooled, bottom decile in percent by round
    "by hand": (record(), False, [37.5, 62.5], [37.5, 62.5], [25.0, 50.0]),
    "trained clients alone": (record(), True, [50.0, 100.0], [50.0, 100.0], [50.0, 100.0]),
    "clients or samples": (record(**scored([5], [[1, 9]], [[2, 10]])), False, [70.0], [1000 / 12], [50.0]),
    "ten without test samples": (record(**scored([1], [TWENTY], [[10, 0] * 10])), False, [45.0], [45.0], [10.0]),
    "five of 100 took part": (
        record(**scored([1], [[float(k) if k < 5 else NAN for k in range(100)]], [[10.0] * 100], "_trained")),
        True,
        [20.0],
        None,
        [0.0],
    ),
}


@pytest.mark.parametrize(("made", "trained", "mean", "pooled", "decile"), CURVES.values(), ids=CURVES)
def test_curves_by_hand(made, trained, mean, pooled, decile):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curve = made.curve(trained)
    assert curve.index.tolist() == made.series["correct_trained" if trained else "correct"][0]
    assert curve["acc_mean"].tolist() == pytest.approx(mean)
    assert pooled is None or curve["acc_pooled"].tolist() == pytest.approx(pooled)
    assert curve["acc_bottom_decile"].tolist() == pytest.approx(decile)


@pytest.mark.parametrize(("clients", "index"), [(1, 0), (9, 0), (10, 1), (19, 1), (20, 2), (30, 3)])
def test_the_bottom_decile_is_the_client_at_index_n_over_10(clients, index):
    """Accuracies 0, 1, 2, ... percent in any order: the index is the value."""
    correct = random.Random(0).sample(range(clients), clients)
    curve = record(**scored([1], [correct], [[100] * clients])).curve()
    assert curve["acc_bottom_decile"].tolist() == [index]


def test_summary_by_hand():
    """Values 3 + 4 and 5 + 6 are 18 x 4 bytes; mask bits 0 + 9 and 0 + 9 are 18 bits, 3 bytes. Clients have 4 and 2
    training samples, client 1 sits out round 2: 1 x 4 + 2 x 2 and 1 x 4 samples of half a teraflop. 95 % of 62.5 is
    reached in round 2.
    """
    made = record(
        upload=([1, 2], [[3, 4], [5, 6]]),
        upload_bits=([1, 2], [[0, 9], [0, 9]]),
        personal_share=([1, 2], [[0.1, 0.2], [0.3, 0.5]]),
        passes=([1, 2], [[1, 2], [1, NAN]]),
    )
    made = dataclasses.replace(made, clients={"train": [[3, 1], [0, 2]]}, flops=500_000_000_000)
    accuracies = {"": (62.5, 50.0), "_best": (62.5, 50.0), "_trained": (100.0, 100.0), "_merged": (62.5, 50.0)}
    expected = {
        f"acc_{kind}{suffix}": values[kind == "bottom_decile"]
        for suffix, values in accuracies.items()
        for kind in ("mean", "pooled", "bottom_decile")
    }
    expected |= {"loss": 0.75, "rounds_to_95": 2, "upload_mb": 75e-6, "train_tflop": 6.0, "personal_share": 0.4}
    summary = made.summary()
    assert summary == pytest.approx({**expected, "seconds": 2.0})
    assert all(type(value) is float for value in summary.values())


SUMMARIES = {  # series, spec, and some numbers of the summary
    "the method reports after training": (
        {},
        RunSpec(method={"name": "fedselect", "reading": "authors_code"}),
        {"acc_mean": 100.0, "acc_mean_best": 100.0, "acc_mean_merged": 62.5, "rounds_to_95": 2},
    ),
    "a round, not a place": (scored([3, 6, 9], [[1, 1], [2, 2], [2, 2]], [[4, 4]] * 3), None, {"rounds_to_95": 6}),
    "no scores": (scored([1, 2], [[NAN, NAN]] * 2, [[0, 0]] * 2), None, {"rounds_to_95": NAN}),
    "the best round is not the last": (
        scored([2, 4, 6], [[1, 1], [4, 3], [2, 2]], [[4, 4]] * 3),
        None,
        {"acc_mean": 50.0, "acc_mean_best": 87.5},
    ),
}


@pytest.mark.parametrize(("series", "spec", "numbers"), SUMMARIES.values(), ids=SUMMARIES)
def test_numbers_of_a_summary(series, spec, numbers):
    summary = record(spec=spec, **series).summary()
    assert {name: summary[name] for name in numbers} == pytest.approx(numbers, nan_ok=True)


@pytest.mark.parametrize("method", ["fedavg", "fedselect"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_training_work_is_that_of_the_clients_that_took_part(method, participation, spec, store):
    """Sums over rounds and sampled clients of passes x training samples x FLOPs of one sample."""
    made = spec(method, participation=participation, train=Training(epochs=2, batch_size=8), rounds=3)
    (done,) = sweep([made], jobs=1, store=store)
    sizes = np.array(done.clients["train"]).sum(1)
    total = 0.0
    for t in range(3):
        for k in made.schedule.clients(4, made.seed, t).tolist():
            second = method == "fedselect" and done.values("upload").loc[t + 1, k] < done.num_params
            total += 2 * (1 + second) * sizes[k]
    assert done.summary()["train_tflop"] == pytest.approx(done.flops * total / 1e12)


def test_clients_that_never_took_part_have_a_score_of_their_own(spec, store):
    """Local's novel client is scored with its first model; a record that has no such clients has no such number."""
    record = execute(spec("local", novel=0.25, rounds=2), store)
    (k,) = record.spec.schedule.novel_clients(4, 0).tolist()
    numbers = record.summary()
    assert numbers["acc_mean_novel"] == numbers["acc_pooled_novel"] == pytest.approx(record.final()[k])
    assert numbers["acc_mean_novel"] < record.final().drop(k).mean()
    assert not [name for name in execute(spec("local", rounds=2), store).summary() if "novel" in name]


def test_a_method_without_metrics_has_a_summary(spec, store):
    (made,) = sweep([spec(f"{HERE}:Silent", rounds=2)], jobs=1, store=store)
    assert made.summary()["acc_mean"] == made.curve()["acc_mean"].iloc[-1]
    assert math.isnan(made.summary()["upload_mb"])


def test_tidy_has_a_row_for_each_round_client_and_metric():
    frame = record().to_frame()
    assert sorted(frame.columns) == ["client", "metric", "round", "value"]
    assert len(frame) == 5 * 2 * 2 + 2 and not frame.duplicated(["round", "client", "metric"]).any()
    values = frame.set_index(["metric", "round", "client"])["value"]
    assert values["correct", 2, 0] == 3 and values["seconds"].to_dict() == {(1, -1): 0.5, (2, -1): 0.25}
    assert all(pd.api.types.is_integer_dtype(frame[name]) for name in ("round", "client"))


# ---- compact numbers ------------------------------------------------------------------------------------------------


def numbers(*shape):
    return np.random.default_rng(0).random(shape)


ARRAYS = {  # numbers, whether they are packed
    "many": (numbers(30, 2, 100), True),
    "as many as stay readable": (numbers(500), False),
    "integers": (np.arange(6000).reshape(60, 100) + 2**30, True),
    "no int32": (np.arange(6000) + 2**40, False),
    "whole numbers that float32 does not have": (np.arange(6000.0) + 2**24, False),
    "half of them missing": (np.where(numbers(6000) < 0.5, np.nan, 1.5), True),
    "extremes": (np.concatenate([numbers(3000) * 1e-3, [16_777_215.0, 1e-40, -0.1, np.inf]]), True),
}


@pytest.mark.parametrize(("array", "is_packed"), ARRAYS.values(), ids=ARRAYS)
def test_large_arrays_are_packed_and_come_back(array, is_packed):
    stored = packed(array.tolist())
    assert isinstance(stored, dict) is is_packed
    found = np.asarray(unpacked(stored))
    np.testing.assert_allclose(found, array, rtol=FIVE_DIGITS, atol=1e-40)
    whole = array == np.round(array)
    assert (found[whole] == array[whole]).all(), "counts are never rounded"
    if is_packed:
        assert packed(found) == stored, "writing again changes nothing"
        assert len(stored["data"]) < 0.7 * len(json.dumps(array.tolist())) and found.dtype.kind == array.dtype.kind


@pytest.mark.parametrize("array", [["a"] * 6000, [[1.0] * 3000, [1.0] * 3001], {"shape": [1]}, None], ids=type)
def test_what_is_no_rectangle_of_numbers_is_not_packed(array):
    assert packed(array) is array and unpacked(array) is array


number = st.none() | st.integers(-(2**20), 2**20) | st.floats(-1e3, 1e3, width=16)


@given(st.lists(st.lists(number, min_size=3, max_size=3), min_size=1, max_size=6), st.sampled_from([1, 200]))
def test_a_series_comes_back_from_its_short_form(rows, times):
    values = rows * times
    found = in_full(shortened(values), list(range(len(values))))
    for row, kept in zip(values, found, strict=True):
        assert [n is None for n in row] == [n is None for n in kept]
        np.testing.assert_allclose([n or 0 for n in kept], [n or 0 for n in row], rtol=FIVE_DIGITS)
    if all(row == rows[0] for row in rows):
        assert shortened(values) == rows[:1]


def test_absent_clients_take_no_space():
    """A tenth of 100 clients in each of 200 rounds."""
    whole = numbers(200, 100)
    few = np.where(numbers(200, 100) < 0.1, whole, np.nan)
    assert len(json.dumps(shortened(few.tolist()))) < 0.2 * len(json.dumps(shortened(whole.tolist())))


@given(st.lists(st.integers(1, 30), max_size=8) | st.builds(range, st.integers(1, 9), st.integers(9, 50)).map(list))
def test_rounds_come_back_from_their_short_form(rounds):
    stored = ranged(rounds)
    assert listed(stored) == rounds
    equally_spaced = len(rounds) > 3 and len(set(np.diff(rounds))) == 1 and rounds[1] > rounds[0]
    assert isinstance(stored, dict) == equally_spaced

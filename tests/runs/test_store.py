"""Records: metrics computed by hand, and detection of damaged files."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from pfl_core.algorithm import method
from pfl_core.files import atomic_write, checksum
from pfl_core.runs import Record, RunSpec, Store, execute, read_record, sweep, write_record
from pfl_core.runs.packing import in_full, listed, packed, ranged, shortened, unpacked
from pfl_core.runs.store import SCHEMA, read_content
from pfl_core.runs.sweep import SweepError
from pfl_core.study import plots
from pfl_core.study.frame import frame, row_of
from pfl_core.training import Training
from tests.runs.outside import HERE, write_npz

NAN = math.nan
FIVE_DIGITS = 2.0**-16  # relative error of compressed numbers


def record(key: str = "0123456789abcdef", spec: RunSpec | None = None, **series) -> Record:
    """Two clients, two rounds unless ``series`` says otherwise."""
    both = [1, 2]
    plain = {
        "correct": (both, [[1, 2], [3, 2]]),
        "count": (both, [[4, 4], [4, 4]]),
        "loss": (both, [[1.5, 2.5], [0.5, 1.0]]),
        "correct_trained": (both, [[2, 2], [4, NAN]]),
        "count_trained": (both, [[4, 4], [4, NAN]]),
        "loss_trained": (both, [[1.0, 1.0], [1.0, NAN]]),
        "seconds": (both, [0.5, 0.25]),
    }
    return Record(key, spec or RunSpec(method={"name": "fedavg"}), {**plain, **series}, seconds=2.0, state="ff" * 8)


def same(one: Record, other: Record) -> bool:
    """Equal in everything; 7 is 7.0, a tuple a list, and NaN equals itself."""
    texts = [json.dumps(dataclasses.asdict(record), sort_keys=True) for record in (one, other)]
    plain = [json.loads(text, parse_int=float, parse_constant=lambda name: None) for text in texts]
    return plain[0] == plain[1]


# ---- numbers --------------------------------------------------------------------------------------------------------


def test_curve_by_hand():
    """Round 1: 25 % and 50 %, round 2: 75 % and 50 %, four samples each; rounds count from 1."""
    curve = record().curve()
    assert curve.index.tolist() == [1, 2] and curve.index.name == "round"
    assert curve["acc_mean"].tolist() == [37.5, 62.5]
    assert curve["acc_pooled"].tolist() == [37.5, 62.5]
    assert curve["acc_bottom_decile"].tolist() == [25.0, 50.0]


def test_trained_clients_alone_count_in_the_trained_curve():
    """In round 2 client 1 did not take part: 4 of 4 for client 0."""
    curve = record().curve(trained=True)
    assert curve["acc_mean"].tolist() == curve["acc_pooled"].tolist() == [50.0, 100.0]
    assert curve["acc_bottom_decile"].tolist() == [50.0, 100.0]


def test_the_mean_is_over_clients_and_the_pooled_accuracy_over_samples():
    """1 of 2 and 9 of 10: mean 70 %, pooled 10 / 12."""
    curve = record(correct=([5], [[1, 9]]), count=([5], [[2, 10]])).curve()
    assert curve.index.tolist() == [5]
    assert curve.loc[5, "acc_mean"] == pytest.approx(70)
    assert curve.loc[5, "acc_pooled"] == pytest.approx(1000 / 12)


@pytest.mark.parametrize(("clients", "index"), [(1, 0), (9, 0), (10, 1), (19, 1), (20, 2), (30, 3)])
def test_the_bottom_decile_is_the_client_at_index_n_over_10(clients, index):
    """Accuracies 0, 1, 2, ... percent in any order: the index is the value."""
    correct = random.Random(0).sample(range(clients), clients)
    curve = record(correct=([1], [correct]), count=([1], [[100] * clients])).curve()
    assert curve["acc_bottom_decile"].tolist() == [index]


def test_clients_without_test_samples_are_in_no_average():
    """Ten of twenty have none: the mean of 0, 10, ..., 90 percent, and the bottom decile of ten clients (index 1)."""
    correct, count = [v for k in range(10) for v in (k, 0)], [10, 0] * 10
    made = record(correct=([1], [correct]), count=([1], [count]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curve, final = made.curve(), made.final()
    assert curve["acc_mean"].tolist() == curve["acc_pooled"].tolist() == [45.0]
    assert curve["acc_bottom_decile"].tolist() == [10.0]
    assert final[::2].tolist() == pytest.approx([10.0 * k for k in range(10)]) and final[1::2].isna().all()


def test_the_bottom_decile_of_few_participants_is_theirs():
    """5 of 100 clients took part and none else was scored after training: the worst of five."""
    correct = [float(k) if k < 5 else NAN for k in range(100)]
    count = [10.0 if k < 5 else NAN for k in range(100)]
    curve = record(correct_trained=([1], [correct]), count_trained=([1], [count])).curve(trained=True)
    assert curve["acc_bottom_decile"].tolist() == [0.0]


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
    expected = {
        "acc_mean": 62.5,
        "acc_pooled": 62.5,
        "acc_bottom_decile": 50.0,
        "acc_mean_best": 62.5,
        "acc_pooled_best": 62.5,
        "acc_bottom_decile_best": 50.0,
        "acc_mean_trained": 100.0,
        "acc_pooled_trained": 100.0,
        "acc_bottom_decile_trained": 100.0,
        "acc_mean_merged": 62.5,
        "acc_pooled_merged": 62.5,
        "acc_bottom_decile_merged": 50.0,
        "loss": 0.75,
        "rounds_to_95": 2,
        "upload_mb": 75e-6,
        "train_tflop": 6.0,
        "personal_share": 0.4,
        "seconds": 2.0,
    }
    summary = made.summary()
    assert summary.keys() == expected.keys()
    assert summary == pytest.approx(expected)
    assert all(type(value) is float for value in summary.values())


def test_the_method_says_which_of_the_two_scores_is_reported():
    """FedSelect's code scores after local training: 50 percent, then 100 (of client 0 alone), best 100."""
    made = record(spec=RunSpec(method={"name": "fedselect", "reading": "authors_code"})).summary()
    assert (made["acc_mean"], made["acc_mean_best"], made["rounds_to_95"]) == (100.0, 100.0, 2)
    assert (made["acc_mean_trained"], made["acc_mean_merged"]) == (100.0, 62.5)


def test_rounds_to_95_is_a_round_and_not_a_place():
    """Scored every third round: 95 % of the last 50 percent is reached in round 6."""
    made = record(correct=([3, 6, 9], [[1, 1], [2, 2], [2, 2]]), count=([3, 6, 9], [[4, 4]] * 3))
    assert made.summary()["rounds_to_95"] == 6


def test_rounds_to_95_is_nan_without_scores():
    made = record(correct=([1, 2], [[NAN, NAN]] * 2), count=([1, 2], [[0, 0]] * 2))
    assert math.isnan(made.summary()["rounds_to_95"])


@pytest.mark.parametrize("method", ["fedavg", "local", "fedselect"])
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


def test_the_best_round_is_not_the_last():
    made = record(correct=([2, 4, 6], [[1, 1], [4, 3], [2, 2]]), count=([2, 4, 6], [[4, 4]] * 3))
    assert made.summary()["acc_mean"] == 50.0
    assert made.summary()["acc_mean_best"] == 87.5


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
    assert len(frame) == 6 * 2 * 2 + 2
    assert not frame.duplicated(["round", "client", "metric"]).any()
    one = frame[(frame["metric"] == "correct") & (frame["round"] == 2) & (frame["client"] == 0)]
    assert one["value"].tolist() == [3]
    whole = frame[frame["metric"] == "seconds"]
    assert whole["client"].tolist() == [-1, -1] and whole["value"].tolist() == [0.5, 0.25]
    assert all(pd.api.types.is_integer_dtype(frame[name]) for name in ("round", "client"))


# ---- to disk and back -----------------------------------------------------------------------------------------------


def full_record(spec: RunSpec | None = None) -> Record:
    made = record(
        spec=spec,
        train_loss=([1, 2], [[0.1234567, NAN], [1e-9, 7.0]]),
        upload=([1, 2], [[11_181_642.0, 11_181_641.0], [0.0, 123_456_789.0]]),
    )
    return dataclasses.replace(
        made,
        arrays={"overlap": torch.arange(4).view(2, 2), "gate": np.array([0.5, 0.25])},
        clients={"train": [[3, 0], [1, 2]], "val": [[0, 0], [0, 0]], "test": [[1, 0], [0, 1]]},
        about="ours — “quoted”\nand a second line",
        provenance={"torch": "2.13.0", "commit": "unknown"},
    )


def test_a_record_survives_the_disk(tmp_path):
    written = full_record()
    read = read_record(write_record(written, tmp_path / "deep" / "folder" / "r.json"))
    listed = {"overlap": [[0, 1], [2, 3]], "gate": [0.5, 0.25]}
    assert same(read, dataclasses.replace(written, arrays=listed))
    assert read.spec == written.spec
    assert read.series["upload"][1] == [[11_181_642, 11_181_641], [0, 123_456_789]], "counts are whole, never rounded"
    assert np.isnan(read.values("train_loss").loc[1, 1])
    assert same(read_record(write_record(read, tmp_path / "again.json")), read)


@pytest.mark.parametrize(
    "fields",
    [
        {"train": dataclasses.replace(RunSpec(method={"name": "fedavg"}).train, lr=1 / 3)},
        {"method": {"name": "fedselect", "alpha": 0.123456789}},
        {"participation": 2 / 3},
        {"partition": {"name": "dirichlet", "alpha": 1.0}},
        {"partition": {"name": "dirichlet", "alpha": 0.123456789}},
    ],
)
def test_a_spec_comes_back_from_disk_as_it_was(tmp_path, fields):
    """Values of a run may be shortened, its settings never: they decide which run it is."""
    spec = RunSpec(**{"method": {"name": "fedavg"}, **fields})
    read = read_record(write_record(record(spec.key(), spec), tmp_path / "r.json"))
    assert read.spec == spec
    assert not read.stale


def test_values_keep_what_a_float32_holds(tmp_path):
    values = torch.rand(200, generator=torch.Generator().manual_seed(0)).double()
    read = read_record(write_record(record(loss=([1], [values.tolist()])), tmp_path / "r.json"))
    assert torch.allclose(torch.tensor(read.series["loss"][1][0], dtype=torch.float64), values, rtol=1e-6, atol=0)


def numbers(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)).numpy()


@pytest.mark.parametrize(
    "array, is_packed",
    [
        (numbers(30, 2, 100), True),
        (numbers(1500), False),  # as many numbers as stay readable
        (np.arange(6000).reshape(60, 100), True),
        (np.arange(6000) + 2**30, True),
        (np.arange(6000) + 2**40, False),  # no int32
        (np.arange(6000.0) + 2**24, False),  # whole numbers that float32 does not have
        (np.where(numbers(6000) < 0.5, np.nan, 1.5), True),
    ],
)
def test_large_arrays_are_packed_and_come_back(array, is_packed, tmp_path):
    stored = packed(array.tolist())
    assert isinstance(stored, dict) is is_packed
    found = unpacked(stored)
    np.testing.assert_allclose(np.asarray(found), array, rtol=FIVE_DIGITS)
    if is_packed:
        assert len(stored["data"]) < 0.7 * len(json.dumps(array.tolist()))
        assert found.dtype.kind == array.dtype.kind
    made = dataclasses.replace(record(loss=([1], [1.0])), arrays={"a": array})
    back = read_record(write_record(made, tmp_path / "r.json"))
    np.testing.assert_allclose(np.asarray(back.arrays["a"]), array, rtol=FIVE_DIGITS)
    again = write_record(back, tmp_path / "again.json")
    assert again.read_bytes() == (tmp_path / "r.json").read_bytes()


def test_what_is_no_rectangle_of_numbers_is_not_packed():
    for array in (["a"] * 6000, [[1.0] * 3000, [1.0] * 3001], {"shape": [1]}, None):
        assert packed(array) is array and unpacked(array) is array


@pytest.mark.parametrize(
    "values, stored_values",
    [
        ([[3, 4]] * 5, [[3, 4]]),
        ([2.5] * 5, [2.5]),
        ([1, 1, 1, 1, 2], [1, 1, 1, 1, 2]),
        ([[3.0, None]] * 4 + [[3.0, 1.0]], [[3.0, None]] * 4 + [[3.0, 1.0]]),
    ],
)
def test_a_series_that_never_changes_is_stored_once(values, stored_values):
    assert shortened(values) == stored_values
    assert in_full(stored_values, [1, 2, 3, 4, 5]) == values


def test_packed_numbers_keep_almost_five_digits_and_whole_ones_all():
    values = np.concatenate([numbers(3000) * 1e-3, [16_777_215.0, 1e-40, -0.1, np.inf]])
    found = unpacked(packed(values))
    np.testing.assert_allclose(found, values.astype(np.float32), rtol=FIVE_DIGITS, atol=1e-40)
    assert found[-4] == 16_777_215 and np.isinf(found[-1])
    assert packed(found) == packed(values), "writing again changes nothing"


def test_a_long_series_is_packed():
    values = numbers(100, 60).tolist()
    stored = shortened(values)
    assert isinstance(stored, dict)
    np.testing.assert_allclose(in_full(stored, list(range(1, 101))), values, rtol=FIVE_DIGITS)
    values[3][4] = None  # an absent client
    found = in_full(shortened(values), list(range(1, 101)))
    assert [[number is None for number in row] for row in found] == [[n is None for n in row] for row in values]
    found[3][4] = values[3][4] = 0.0
    np.testing.assert_allclose(found, values, rtol=FIVE_DIGITS)


def test_of_a_series_with_many_absent_clients_only_the_numbers_that_are_there_take_space(tmp_path):
    """A tenth of 100 clients in each of 200 rounds."""
    there = numbers(200, 100) < 0.1
    whole, few = numbers(200, 100), np.where(there, numbers(200, 100), np.nan)
    sizes = [len(json.dumps(shortened(values.tolist()))) for values in (whole, few)]
    assert sizes[1] < 0.2 * sizes[0]
    made = record(loss=(list(range(1, 201)), few.tolist()))
    back = read_record(write_record(made, tmp_path / "r.json"))
    np.testing.assert_allclose(back.values("loss").to_numpy(), few, rtol=FIVE_DIGITS)
    assert write_record(back, tmp_path / "again.json").read_bytes() == (tmp_path / "r.json").read_bytes()


@pytest.mark.parametrize(
    "rounds, stored_rounds",
    [
        ([1, 2, 3, 4], {"first": 1, "last": 4, "step": 1}),
        ([5, 10, 15, 20], {"first": 5, "last": 20, "step": 5}),
        ([5, 10, 15, 17], [5, 10, 15, 17]),  # the last round is always scored
        ([1, 2, 3], [1, 2, 3]),
        ([3, 3, 3, 3], [3, 3, 3, 3]),
        ([4, 3, 2, 1], [4, 3, 2, 1]),
        ([1], [1]),
        ([], []),
    ],
)
def test_equally_spaced_rounds_are_stored_as_a_range(rounds, stored_rounds, tmp_path):
    assert ranged(rounds) == stored_rounds and listed(stored_rounds) == rounds
    values = [[0.5 * at, 1.5] for at in range(len(rounds))]
    path = write_record(record(loss=(rounds, values)), tmp_path / "r.json")
    assert json.loads(path.read_text())["series"]["loss"][0] == stored_rounds
    assert read_record(path).series["loss"] == (rounds, values)


def test_a_diverged_run_can_be_stored(tmp_path):
    read = read_record(write_record(record(loss=([1], [[math.inf, NAN]])), tmp_path / "r.json"))
    assert not np.isfinite(read.values("loss").to_numpy()).any()
    json.loads(
        (tmp_path / "r.json").read_text(encoding="utf-8"),
        parse_constant=lambda name: pytest.fail(f"{name} is not JSON"),
    )


# ---- damage ---------------------------------------------------------------------------------------------------------


def flipped(content: bytes) -> bytes:
    at = content.index(b'"correct"') + 20
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


DAMAGE = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "last byte lost": lambda content: content[:-2],
    "one bit flipped": flipped,
    "not JSON": lambda content: b"correct: 12",
    "not text": lambda content: b"\xff\xfe\x00" + content,
    "a list": lambda content: b"[]",
    "a number": lambda content: b"17",
    "a text": lambda content: b'"record"',
    "null": lambda content: b"null",
    "nested too deeply": lambda content: b"[" * 100_000,
    "an empty object": lambda content: b"{}",
    "zeros": lambda content: bytes(len(content)),
    "another seed": lambda content: content.replace(b'"seed":0', b'"seed":1', 1),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_record_is_renamed_and_computed_again(kind, spec, store):
    made = spec(rounds=1)
    (first,) = sweep([made], jobs=1, store=store)
    path = store.path(made.key())
    damaged = DAMAGE[kind](path.read_bytes())
    path.write_bytes(damaged)
    with pytest.warns(UserWarning, match=rf"{path.name}.*damaged.*renamed to") as caught:
        assert store.get(made.key()) is None
    assert len(caught) == 1
    assert not path.exists()
    (aside,) = store.root.glob("*damaged*")
    assert aside.read_bytes() == damaged
    (again,) = sweep([made], jobs=1, store=store)
    assert again.state == first.state and store.get(made.key()) is not None


NEWER = {
    "a format": lambda content: content,
    "no key": lambda content: {name: part for name, part in content.items() if name != "key"},
    "series as a list": lambda content: content | {"series": [[1, 2]]},
    "another packing": lambda content: content | {"arrays": {"a": {"dtype": "int32", "shape": [2], "data": "AAAA"}}},
    "a spec of other fields": lambda content: content | {"spec": {"runs": []}},
    "the number of the format as text": lambda content: content | {"schema": "2030-01"},
    "another form under this format": lambda content: content | {"schema": SCHEMA, "series": None},
}


@pytest.mark.parametrize("kind", NEWER)
def test_a_record_that_cannot_be_read_here_stays_and_is_never_replaced(kind, spec, store, tmp_path):
    """Of a newer version: its key is refused before anything is computed, and the other runs of a sweep are made."""
    made, other = spec(rounds=1), spec(rounds=1, seed=1)
    path = store.put(execute(made, Store(tmp_path / "elsewhere", store.results)))
    content = NEWER[kind](read_content(path) | {"schema": SCHEMA + 1})
    path.write_text(json.dumps(content | {"sha256": checksum(content)}), encoding="utf-8")
    before = path.read_bytes()
    with pytest.warns(UserWarning, match=f"record {path.name} is skipped"):
        assert list(store) == [] and store.get(made.key()) is None
        for refused in (
            lambda: execute(made, store, on_round=lambda done: pytest.fail("computed")),
            lambda: store.put(record(made.key(), made)),
        ):
            with pytest.raises(ValueError, match=f"{path.name} is not replaced: it cannot be read here"):
                refused()
        with pytest.raises(SweepError, match="1 of 2 runs failed"):
            sweep([made, other], jobs=1, store=store)
        assert path.read_bytes() == before and [run.key for run in store] == [other.key()]


def test_a_key_whose_place_is_taken_is_refused_before_it_is_computed(spec, store):
    store.path(spec().key()).mkdir(parents=True)
    with pytest.warns(UserWarning, match="cannot be read"), pytest.raises(ValueError, match="is not replaced"):
        execute(spec(), store, on_round=lambda done: pytest.fail("computed"))


def test_every_flipped_bit_is_detected(tmp_path):
    path = write_record(full_record(), tmp_path / "r.json")
    whole, content = read_record(path), path.read_bytes()
    stream = random.Random(0)
    for at in stream.sample(range(len(content)), 300):
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << stream.randrange(8))]) + content[at + 1 :])
        try:
            read = read_record(path)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        assert same(read, whole), f"byte {at}"


def test_reading_all_records_renames_damaged_ones_and_continues(spec, store):
    kept, lost = spec(rounds=1, seed=1), spec(rounds=1, seed=2)
    sweep([kept, lost], jobs=1, store=store)
    store.path(lost.key()).write_text("{", encoding="utf-8")
    with pytest.warns(UserWarning, match="damaged"):
        assert [r.spec.seed for r in store] == [1]
    assert [r.spec.seed for r in store] == [1]


def test_a_record_under_another_runs_name_is_renamed(spec, store):
    one, other = (spec(rounds=1, seed=seed) for seed in (0, 1))
    sweep([one], jobs=1, store=store)
    store.path(one.key()).rename(store.path(other.key()))
    with pytest.warns(UserWarning, match=f"it belongs to run {one.key()}"):
        assert store.get(other.key()) is None


def test_what_is_not_a_file_is_skipped(spec, store):
    (made,) = sweep([spec(rounds=1)], jobs=1, store=store)
    (store.root / f"{'0' * 16}.json").mkdir()
    (store.root / "notes.json").write_text("{}", encoding="utf-8")
    with pytest.warns(UserWarning, match="0000.json cannot be read"):
        assert [record.key for record in store] == [made.key]


def test_a_changed_run_requested_as_the_presets_own_is_stored_as_such(spec, store):
    changed = spec(rounds=1, paper="fedselect", preset="ci", changed=True)
    sweep([changed], jobs=1, store=store)
    own = dataclasses.replace(changed, changed=False)
    assert store.get(changed.key()).spec.preset_label == "ci, changed"
    sweep([own], jobs=1, store=store)
    assert store.get(own.key()).spec.preset_label == "ci"
    sweep([changed], jobs=1, store=store)
    assert store.get(own.key()).spec.preset_label == "ci", "and stays it"


def test_a_record_of_a_method_that_cannot_be_imported_stays(store, tmp_path, monkeypatch):
    """Somebody's own method, seen from a folder without their module: the record stays where it is."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine_for_now.py").write_text(
        "from pfl_core.algorithms.local import Local\nclass Mine(Local): ...\n", encoding="utf-8"
    )
    spec = RunSpec(method={"name": "mine_for_now:Mine"})
    path = write_record(record("aaaa", spec), store.path("aaaa"))
    assert store.get("aaaa") is not None
    content = path.read_bytes()
    (tmp_path / "mine_for_now.py").unlink()
    monkeypatch.delitem(sys.modules, "mine_for_now")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        list(store)
    assert path.exists() and path.read_bytes() == content


# ---- where records lie ----------------------------------------------------------------------------------------------


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_committed_results_are_read_and_never_written(spec, store):
    stored, fresh = spec(rounds=1, seed=1), spec(rounds=1, seed=2)
    elsewhere = Store(store.root.parent / "made_before", store.results)
    (made,) = sweep([stored], jobs=1, store=elsewhere)
    write_record(made, store.results / "fedselect" / f"{made.key}.json")
    before = tree(store.results)
    assert same(store.get(made.key), made)
    sweep([stored, fresh], jobs=1, store=store)
    assert sorted(r.spec.seed for r in store) == [1, 2]
    assert tree(store.results) == before
    assert [path.stem for path in store.root.glob("*.json")] == [fresh.key()]


def test_a_damaged_committed_record_stays_where_it_is(spec, store):
    made = spec(rounds=1)
    path = store.results / "fedselect" / f"{made.key()}.json"
    atomic_write(path, b"{")
    with pytest.warns(UserWarning, match="damaged"):
        (again,) = sweep([made], jobs=1, store=store)
    assert tree(store.results) == {f"fedselect/{made.key()}.json": b"{"}
    assert same(store.get(made.key()), again)


def test_the_same_run_in_both_places_counts_once(spec, store):
    (made,) = sweep([spec(rounds=1)], jobs=1, store=store)
    write_record(made, store.results / f"{made.key}.json")
    assert len(list(store)) == 1


def test_an_empty_or_missing_folder_has_no_records(store):
    assert list(store) == [] and store.get("0" * 16) is None


def test_the_store_lies_in_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    assert Store().root == tmp_path / "runs"


def test_a_raised_version_makes_a_record_stale(spec, monkeypatch):
    made = spec("fedselect")
    kept = record(made.key(), made)
    assert not kept.stale
    monkeypatch.setattr(method("fedselect"), "version", 2)
    assert kept.stale


def test_a_record_is_as_fresh_without_its_data(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    made = spec(data={"name": "mnist"})
    assert not record(made.key(), made).stale
    assert record("a" * 16, made).stale


# ---- other files of the data's name ---------------------------------------------------------------------------------


@pytest.fixture
def mine(spec, tmp_path, monkeypatch):
    """``mine(value)``: a spec on mine.npz, whose pixels are all ``value``; ``mine(None)``: there is no such file."""
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path / "data"))

    def make(value: int | None) -> RunSpec:
        (tmp_path / "data" / "mine.npz").unlink(missing_ok=True)
        if value is not None:
            write_npz(tmp_path / "data", "mine", value)
        return spec(data={"name": "mine"}, partition={"name": "iid"}, clients=2, rounds=1)

    return make


def test_a_run_on_another_file_of_that_name_has_another_key(mine, store):
    made = mine(10)
    (first,) = sweep([made], jobs=1, store=store)
    assert first.key == made.key() and first.data == made.checksums() and not first.stale
    (second,) = sweep([mine(200)], jobs=1, store=store)
    assert second.key == made.key(made.checksums()) != first.key and not second.stale
    assert second.data != first.data and second.state != first.state
    assert sweep([mine(200)], jobs=1, store=store)[0].key == second.key
    assert sweep([mine(10)], jobs=1, store=store)[0].key == first.key, "back to the first file, nothing is made again"
    assert len(list(store)) == 2


def test_a_figure_draws_a_committed_record_whatever_data_are_here(mine, store):
    made = mine(10)
    (first,) = sweep([made], jobs=1, store=store)
    assert store.display_record(mine(None)).key == first.key, "without the data"
    assert store.display_record(mine(200)) is None, "a record of one's own that other data made is not theirs"
    write_record(first, store.results / "real" / f"{first.key}.json")
    assert store.display_record(mine(200)).key == first.key
    (own,) = sweep([mine(200)], jobs=1, store=store)
    assert store.display_record(mine(200)).key == own.key, "a record of the data that are here goes first"


def test_a_worker_with_other_data_refuses(mine, store):
    made = mine(10)
    key, planned = store.key_of(made), made.checksums()
    for given in ({"key": key, "checksums": planned}, {"key": made.key({"mine": "another file"})}):
        with pytest.raises(ValueError, match="data or code on this machine differ"):
            execute(mine(200), store, **given)
    assert not store.root.exists() or not list(store.root.iterdir())


def test_a_file_with_the_name_of_a_generated_set_has_separate_runs(spec, store, tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path / "data"))
    made = spec(data={"name": "digits"}, partition={"name": "iid"}, clients=2, rounds=1)
    write_npz(tmp_path / "data", "digits", 100)
    (of_file,) = sweep([made], jobs=1, store=store)
    (tmp_path / "data" / "digits.npz").unlink()
    (generated,) = sweep([made], jobs=1, store=store)
    assert generated.state != of_file.state and generated.data == {} and not generated.stale
    assert sweep([made], jobs=1, store=store)[0].key == generated.key


def test_of_two_records_of_one_key_the_longer_one_is_read(spec, store):
    made = spec(rounds=4)
    whole = execute(made, Store(store.root.parent / "elsewhere", store.results))
    write_record(whole, store.results / "real" / f"{whole.key}.json")
    execute(made, Store(store.root, store.root.parent / "none"), until=2)
    assert [r.rounds for r in (store.get(made.key()), store.display_record(made), *store)] == [4, 4, 4]


def test_the_folder_of_runs_can_be_set(monkeypatch, tmp_path):
    monkeypatch.setenv("PFL_RUNS_DIR", str(tmp_path / "mine"))
    assert Store().root == tmp_path / "mine"


def test_a_figure_takes_a_record_of_any_device_and_names_it(spec, store):
    (made,) = sweep([spec(rounds=1)], jobs=1, store=store)
    on_gpu = dataclasses.replace(made.spec, device="cuda:0")
    store.path(made.key).unlink()
    store.put(dataclasses.replace(made, key=on_gpu.key(), spec=on_gpu))
    assert store.display_record(spec(rounds=1)).spec.device_kind == "cuda"
    shown = row_of(store.display_record(spec(rounds=1, paper="fedselect", preset="ci")), None)
    assert plots.caption(frame([shown])).endswith(", on cuda")

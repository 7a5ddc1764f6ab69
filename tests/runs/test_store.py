"""Records on disk: they come back as they were; damage is detected; what cannot be read here stays."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pfl_core.algorithm import method
from pfl_core.cli import main
from pfl_core.files import atomic_write, checksum
from pfl_core.runs import Record, RunSpec, Store, SweepError, execute, read_record, sweep, write_record
from pfl_core.runs.store import SCHEMA, read_content
from pfl_core.study import plots
from pfl_core.study.frame import frame, row_of
from tests.helpers import tree
from tests.runs.outside import write_npz
from tests.runs.test_record import NAN, record


def same(one: Record, other: Record) -> bool:
    """Equal in everything; 7 is 7.0, a tuple a list, and NaN equals itself."""
    texts = [json.dumps(dataclasses.asdict(record), sort_keys=True) for record in (one, other)]
    plain = [json.loads(text, parse_int=float, parse_constant=lambda name: None) for text in texts]
    return plain[0] == plain[1]


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


# ---- to disk and back -----------------------------------------------------------------------------------------------


def test_a_record_survives_the_disk(tmp_path):
    written = full_record()
    read = read_record(write_record(written, tmp_path / "deep" / "folder" / "r.json"))
    listed = {"overlap": [[0, 1], [2, 3]], "gate": [0.5, 0.25]}
    assert same(read, dataclasses.replace(written, arrays=listed))
    assert read.spec == written.spec
    assert read.series["upload"][1] == [[11_181_642, 11_181_641], [0, 123_456_789]], "counts are whole, never rounded"
    assert np.isnan(read.values("train_loss").loc[1, 1])
    assert same(read_record(write_record(read, tmp_path / "again.json")), read)


def test_large_arrays_and_long_series_survive_the_disk(tmp_path):
    rounds, values = list(range(1, 201)), np.random.default_rng(0).random((200, 2))
    made = dataclasses.replace(record(loss=(rounds, values.tolist())), arrays={"a": np.arange(6000)})
    path = write_record(made, tmp_path / "r.json")
    read = read_record(path)
    assert read.series["loss"][0] == rounds and (read.arrays["a"] == np.arange(6000)).all()
    np.testing.assert_allclose(read.values("loss").to_numpy(), values, rtol=1e-6)
    assert write_record(read, tmp_path / "again.json").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "fields",
    [
        {"train": dataclasses.replace(RunSpec(method={"name": "fedavg"}).train, lr=1 / 3)},
        {"method": {"name": "fedselect", "alpha": 0.123456789}},
        {"participation": 2 / 3},
        {"partition": {"name": "dirichlet", "alpha": 1.0}},
    ],
)
def test_a_spec_comes_back_from_disk_as_it_was(tmp_path, fields):
    """Values of a run may be shortened, its settings never: they decide which run it is."""
    spec = RunSpec(**{"method": {"name": "fedavg"}, **fields})
    read = read_record(write_record(record(spec.key(), spec), tmp_path / "r.json"))
    assert read.spec == spec and not read.stale


def test_a_diverged_run_can_be_stored(tmp_path):
    path = write_record(record(loss=([1], [[math.inf, NAN]])), tmp_path / "r.json")
    assert not np.isfinite(read_record(path).values("loss").to_numpy()).any()
    json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


# ---- damage ---------------------------------------------------------------------------------------------------------


def flipped(content: bytes) -> bytes:
    at = content.index(b'"correct"') + 20
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


DAMAGE = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "last byte lost": lambda content: content[:-2],
    "one bit flipped": flipped,
    "not text": lambda content: b"\xff\xfe\x00" + content,
    "a list": lambda content: b"[]",
    "null": lambda content: b"null",
    "nested too deeply": lambda content: b"[" * 100_000,
    "an empty object": lambda content: b"{}",
    "zeros": lambda content: bytes(len(content)),
    "another seed": lambda content: content.replace(b'"seed":0', b'"seed":1', 1),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_record_is_renamed_and_counts_as_missing(kind, spec, store):
    made = spec()
    path = store.put(record(made.key(), made))
    damaged = DAMAGE[kind](path.read_bytes())
    path.write_bytes(damaged)
    with pytest.warns(UserWarning, match=rf"{path.name}.*damaged.*renamed") as caught:
        assert store.get(made.key()) is None
    assert len(caught) == 1 and not path.exists()
    (aside,) = store.root.glob("*damaged*")
    assert aside.read_bytes() == damaged
    assert list(store) == [] and store.put(record(made.key(), made)).exists()


def series(change) -> dict:
    return lambda content: content | {"series": content["series"] | change}


def spec_with(**change):
    return lambda content: content | {"spec": content["spec"] | change}


def without(name: str):
    return lambda content: {key: part for key, part in content.items() if key != name}


UNREADABLE = {  # each with a checksum that fits
    "a newer format": lambda content: content | {"schema": SCHEMA + 1},
    "an older format": lambda content: content | {"schema": SCHEMA - 1},
    "no format": without("schema"),
    "the format as text": lambda content: content | {"schema": "2030-01"},
    "no key": without("key"),
    "no seconds": without("seconds"),
    "something more": lambda content: content | {"more": 1},
    "no series": lambda content: content | {"series": None},
    "series as a list": lambda content: content | {"series": [[1, 2]]},
    "no scores": lambda content: content | {"series": {"loss": [[1], [0.5]]}},
    "scores without counts": lambda content: content | {"series": {"correct": content["series"]["correct"]}},
    "scores of one client": series({"correct": [[1, 2], [[1], [2]]]}),
    "a number instead of scores": series({"correct": [[1, 2], [1, 2]], "count": [[1, 2], [4, 4]]}),
    "scores of another round": series({"correct": [[1, 3], [[1, 2], [3, 2]]]}),
    "text as a score": series({"correct": [[1, 2], [["a", 2], [3, 2]]]}),
    "clients that come and go": series({"loss": [[1, 2], [[0.5, 1], [0.5]]]}),
    "too few values": series({"loss": [[1, 2, 3], [[0.5, 1], [0.5, 1]]]}),
    "no rounds": series({"loss": [[], []]}),
    "round 0": series({"loss": [[0, 1], [[0.5, 1], [0.5, 1]]]}),
    "rounds as text": series({"loss": [["1", "2"], [[0.5, 1], [0.5, 1]]]}),
    "another packing": lambda content: content | {"arrays": {"a": {"dtype": "int32", "shape": [2], "data": "AAAA"}}},
    "seconds as text": lambda content: content | {"seconds": "long"},
    "no round done": lambda content: content | {"rounds_done": 0},
    "class counts of one client": lambda content: content | {"clients": {"train": [[1, 2]]}},
    "class counts as text": lambda content: content | {"clients": {"train": "many"}},
    "a spec of other fields": spec_with(runs=[]),
    "a method that is not here": spec_with(method={"name": "no_such_module:Mine"}),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_record_that_cannot_be_read_here_stays_and_is_never_replaced(kind, spec, store):
    """Not readable is not missing: one line, and its key is refused before anything is computed."""
    made = spec(rounds=2)
    path = store.put(dataclasses.replace(full_record(made), key=made.key()))
    content = UNREADABLE[kind]({"schema": SCHEMA} | read_content(path))
    path.write_text(json.dumps(content | {"sha256": checksum(content)}), encoding="utf-8")
    before = path.read_bytes()
    with pytest.warns(UserWarning, match=f"{path.name} is skipped") as caught:
        assert list(store) == []
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    for refused in (
        lambda: execute(made, store, key=made.key(), on_round=lambda done: pytest.fail("computed")),
        lambda: store.put(record(made.key(), made)),
    ):
        with pytest.raises(ValueError, match=f"{path.name} is not replaced"):
            refused()
    assert path.read_bytes() == before


def test_what_cannot_be_read_stops_no_other_run(folders, capsys, spec):
    store, (made, other) = Store(), (spec(rounds=1, seed=seed) for seed in (0, 1))
    content = {"schema": SCHEMA + 1, "key": made.key()}
    atomic_write(store.path(made.key()), json.dumps(content | {"sha256": checksum(content)}).encode())
    with pytest.warns(UserWarning, match="is skipped"):
        with pytest.raises(SweepError, match="1 of 2"):
            sweep([made, other], jobs=1, store=store)
        assert [run.key for run in store] == [other.key()]
        assert main(["runs", "list"]) == main(["runs", "export", "copies"]) == 0
    assert other.key() in capsys.readouterr().out and Path("copies", f"{other.key()}.csv").exists()


def test_a_key_whose_place_is_taken_is_refused_before_it_is_computed(spec, store):
    store.path(spec().key()).mkdir(parents=True)
    (store.root / "notes.json").write_text("{}", encoding="utf-8")
    with pytest.warns(UserWarning, match="cannot be read"):
        with pytest.raises(ValueError, match="is not replaced"):
            execute(spec(), store, on_round=lambda done: pytest.fail("computed"))
        assert list(store) == []


def test_every_flipped_bit_is_detected(tmp_path):
    path = write_record(full_record(), tmp_path / "r.json")
    whole, content = read_record(path), path.read_bytes()
    stream = random.Random(0)
    for at in stream.sample(range(len(content)), 300):
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << stream.randrange(8))]) + content[at + 1 :])
        try:
            read = read_record(path)
        except ValueError:
            continue
        assert same(read, whole), f"byte {at}"


def test_a_record_under_another_runs_name_is_renamed(store):
    store.put(record("a" * 16)).rename(store.path("b" * 16))
    with pytest.warns(UserWarning, match=f"run {'a' * 16}.*renamed"):
        assert list(store) == []
    assert list(store) == [] and (store.root / f"{'b' * 16}.damaged").exists()


def test_a_changed_run_requested_as_the_presets_own_is_stored_as_such(spec, store):
    changed = spec(rounds=1, paper="fedselect", preset="ci", changed=True)
    own = dataclasses.replace(changed, changed=False)
    for asked, label in ((changed, "ci, changed"), (own, "ci"), (changed, "ci")):
        sweep([asked], jobs=1, store=store)
        assert store.get(own.key()).spec.preset_label == label


def test_a_record_of_a_method_that_cannot_be_imported_stays(store, tmp_path, monkeypatch):
    """Somebody's own method, seen from a folder without their module."""
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "from pfl_core.algorithms.local import Local\nclass Mine(Local): ...\n"
    (tmp_path / "mine_for_now.py").write_text(text, encoding="utf-8")
    path = store.put(record("a" * 16, RunSpec(method={"name": "mine_for_now:Mine"})))
    assert store.get("a" * 16) is not None
    content = path.read_bytes()
    (tmp_path / "mine_for_now.py").unlink()
    monkeypatch.delitem(sys.modules, "mine_for_now")
    with pytest.warns(UserWarning, match="skipped"):
        assert list(store) == []
    assert path.read_bytes() == content


# ---- where records lie ----------------------------------------------------------------------------------------------


def test_committed_results_are_read_and_never_written(spec, store):
    stored, fresh = spec(rounds=1, seed=1), spec(rounds=1, seed=2)
    made = execute(stored, Store(store.root.parent / "made_before", store.results))
    assert store.get(made.key) is None
    write_record(made, store.results / "fedselect" / f"{made.key}.json")
    store = Store(store.root, store.results)  # one that lists what was committed since
    before = tree(store.results)
    assert same(store.get(made.key), read_record(store.results / "fedselect" / f"{made.key}.json"))
    sweep([stored, fresh], jobs=1, store=store)
    assert sorted(r.spec.seed for r in store) == [1, 2]
    assert tree(store.results) == before
    assert [path.stem for path in store.root.glob("*.json")] == [fresh.key()]


def test_committed_records_that_are_added_or_removed_show_in_a_new_store(store):
    path = store.results / "a" / "b" / f"{'a' * 16}.json"
    for there in (False, True, False, True):
        write_record(record("a" * 16), path) if there else path.unlink(missing_ok=True)
        new = Store(store.root, store.results)
        assert (new.get("a" * 16) is not None) == ("a" * 16 in new.files()) == there


def test_a_damaged_committed_record_stays_where_it_is(spec, store):
    made = spec(rounds=1)
    atomic_write(store.results / "fedselect" / f"{made.key()}.json", b"{")
    with pytest.warns(UserWarning, match="damaged"):
        (again,) = sweep([made], jobs=1, store=store)
    assert tree(store.results) == {f"fedselect/{made.key()}.json": b"{"}
    assert same(store.get(made.key()), again)


def test_an_empty_or_missing_folder_has_no_records(store):
    assert list(store) == [] and store.get("0" * 16) is None


@pytest.mark.parametrize(("variable", "root"), [("PFL_DATA_DIR", "runs"), ("PFL_RUNS_DIR", "")])
def test_the_folder_of_the_store(variable, root, tmp_path, monkeypatch):
    monkeypatch.setenv(variable, str(tmp_path))
    assert Store().root == tmp_path / root


def test_a_raised_version_makes_a_record_stale(spec, monkeypatch):
    made = spec("fedselect")
    kept = record(made.key(), made)
    assert not kept.stale
    monkeypatch.setattr(method("fedselect"), "version", 2)
    assert kept.stale


def test_a_record_is_as_fresh_without_its_data(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    made = spec(data={"name": "mnist"})
    assert not record(made.key(), made).stale and record("a" * 16, made).stale


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
    first = execute(mine(10), store)
    assert store.display_record(mine(None)).key == first.key, "without the data"
    assert store.display_record(mine(200)) is None, "a record of one's own that other data made is not theirs"
    write_record(first, store.results / "real" / f"{first.key}.json")
    store = Store(store.root, store.results)  # one that lists what was committed since
    assert store.display_record(mine(200)).key == first.key
    own = execute(mine(200), store)
    assert store.display_record(mine(200)).key == own.key, "a record of the data that are here goes first"


def test_a_worker_with_other_data_refuses(mine, store):
    made = mine(10)
    key, planned = store.key_of(made), made.checksums()
    for given in ({"key": key, "checksums": planned}, {"key": made.key({"mine": "another file"})}):
        with pytest.raises(ValueError, match=given["key"]):
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


def test_a_figure_takes_a_record_of_any_device_and_names_it(spec, store):
    made = execute(spec(rounds=1), store)
    on_gpu = dataclasses.replace(made.spec, device="cuda:0")
    store.path(made.key).unlink()
    store.put(dataclasses.replace(made, key=on_gpu.key(), spec=on_gpu))
    assert store.display_record(spec(rounds=1)).spec.device_kind == "cuda"
    shown = row_of(store.display_record(spec(rounds=1, paper="fedselect", preset="ci")), None)
    assert plots.caption(frame([shown])).endswith(", on cuda")

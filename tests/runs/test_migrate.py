"""Migration of records of format 1: converted if the old key is reproduced, else stale; left if data are missing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pfl_core.runs import Store
from pfl_core.runs.migrate import files, migrate, old_key, table
from pfl_core.runs.store import read_content

SPEC = {  # of a record in format 1
    "method": {"name": "fedavg"},
    "data": {"name": "digits"},
    "partition": {"name": "shards", "classes_per_client": 2},
    "model": {"name": "mlp"},
    "train": {"lr": 0.1, "epochs": 1, "batch_size": 10, "momentum": 0.0, "weight_decay": 0.0, "clip_norm": None}
    | {"milestones": [], "decay": 0.1, "augment": "none"},
    "clients": 5,
    "rounds": 2,
    **{"participation": 1.0, "sampling": "each_round", "eval_every": 1, "novel": 0.0, "seed": 0, "device": "cpu"},
    **{"paper": "", "preset": "", "setting": "", "changed": False},
}
KEYS = {
    "fedavg": "a45b2d2deb66bbf9",
    "fedselect": "ea1dacb51b180798",
    "fedpews": "2a8c5532018e6cd8",
    "local": "ca6f0dd9e6d25bc6",
}
SERIES = {name: [[1, 2], [[1, 2], [2, 2]]] for name in ("correct", "count", "loss")}


def write_old(folder: Path, spec: dict, key: str | None = None) -> Path:
    """A record of format 1."""
    content = {"key": key or old_key(spec), "spec": spec, "num_params": 9, "flops": 8, "about": "", "seconds": 1.5}
    content |= {"state": "ab" * 8, "provenance": {"torch": "2.13.0"}, "clients": {}, "arrays": {}, "series": SERIES}
    sum_of_all = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path = folder / f"{content['key']}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**content, "sha256": sum_of_all}), encoding="utf-8")
    return path


def changed(**fields) -> dict:
    return {**SPEC, **fields}


def test_old_keys_are_those_that_the_last_commit_gave():
    """Keys that the commit before the change printed for these specs."""
    assert old_key(SPEC) == KEYS["fedavg"]
    assert old_key(changed(method={"name": "fedselect", "reading": "authors_code", "alpha": 0.5})) == KEYS["fedselect"]
    assert old_key(changed(method={"name": "fedpews", "base": "fedprox", "lam": 1.0})) == KEYS["fedpews"]
    assert old_key(changed(method={"name": "local", "keep_momentum": False})) == KEYS["local"]


def test_tags_and_defaults_make_no_other_key():
    written_out = changed(method={"name": "fedavg", "lr_server": 1}, paper="fedselect", preset="ci")
    assert old_key(written_out) == old_key(SPEC)
    assert old_key(changed(seed=1)) != old_key(SPEC)


def test_a_record_is_rekeyed_and_all_else_stays(tmp_path):
    old = write_old(tmp_path, SPEC)
    before = read_content(old)
    assert migrate(files(tmp_path)) == {"re-keyed": 1}
    (new,) = files(tmp_path)
    after = read_content(new)
    store = Store(tmp_path, tmp_path / "none")
    (record,) = store
    assert new.stem == record.key == record.spec.key() != before["key"] and not record.stale
    assert record.versions["method fedavg"] == 1
    before["spec"]["train"]["partial_batch"] = "keep"  # fields that are new since have their defaults
    before["spec"]["metrics"] = []
    for name in before.keys() - {"key"}:
        assert after[name] == before[name], name
    assert migrate(files(tmp_path)) == {"current": 1}


def test_a_record_whose_key_is_not_reproduced_is_stale(tmp_path):
    """It stays as it is: with the file that it was made from it may still be shown to be current."""
    path, lines = write_old(tmp_path, SPEC, key="0" * 16), []
    before = path.read_bytes()
    assert migrate(files(tmp_path), lines.append) == {"stale": 1}
    (record,) = Store(tmp_path, tmp_path / "none")
    assert record.key == "0" * 16 and record.stale and path.read_bytes() == before
    assert "stale" in lines[0] and path.name in lines[0]


def test_a_run_that_was_made_again_meanwhile_stays(tmp_path):
    write_old(tmp_path, SPEC)
    migrate(files(tmp_path))
    (new,) = files(tmp_path)
    before = new.read_bytes()
    write_old(tmp_path, SPEC)
    assert migrate(files(tmp_path)) == {"superseded": 1, "current": 1}
    assert list(files(tmp_path)) == [new] and new.read_bytes() == before


def test_records_without_data_or_method_are_left_and_the_others_converted(tmp_path):
    write_old(tmp_path, changed(method={"name": "no_such_module:Mine"}), key="2" * 16)
    write_old(tmp_path, changed(data={"name": "gone"}), key="3" * 16)
    write_old(tmp_path, SPEC)
    assert migrate(files(tmp_path)) == {"left": 2, "re-keyed": 1}


def test_a_record_whose_data_are_absent_is_left_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path / "data"))
    path = write_old(tmp_path / "runs", changed(data={"name": "cifar10"}), key="1" * 16)
    before = path.read_bytes()
    assert migrate(files(tmp_path / "runs")) == {"left": 1}
    assert path.read_bytes() == before


def test_module_paths_become_registered_names(tmp_path):
    split = {"name": "pfl_core.partition.sampled:paired_sample", "images": 40, "alpha": 0.5}
    watch = {"name": "pfl_core.algorithms.star_pfl_likeness:Likeness", "history_len_local": 4}
    write_old(tmp_path, changed(method=watch, partition=split))
    assert migrate(files(tmp_path)) == {"re-keyed": 1}
    (record,) = Store(tmp_path, tmp_path / "none")
    assert (record.spec.method["name"], record.spec.partition["name"]) == ("star_pfl_likeness", "paired_sample")


def test_records_of_a_users_code_are_not_converted(tmp_path):
    assert old_key(changed(method={"name": "my_module:Mine"})) is None


def test_a_damaged_file_is_reported_and_the_others_converted(tmp_path):
    path = write_old(tmp_path, changed(seed=1))
    path.write_text("{", encoding="utf-8")
    write_old(tmp_path, {k: v for k, v in SPEC.items() if k != "partition"}, key="4" * 16)
    write_old(tmp_path, SPEC)
    lines = []
    counts = migrate(files(tmp_path), lines.append)
    assert counts["damaged"] == 2 and counts["re-keyed"] == 1
    assert any(path.name in line and "not JSON" in line for line in lines)


def test_the_table_is_of_all_methods_of_that_time():
    assert len(table()["methods"]) == 29 and all(len(codes) == 7 for codes in table()["code"].values())

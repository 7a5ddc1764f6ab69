"""Atomic writing, and caches in JSON files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pfl_core.files import PART, atomic_write, cached, remove
from tests.helpers import tree

# ---- atomic writing -------------------------------------------------------------------------------------------------


def test_writing_makes_folders_and_leaves_only_the_file(tmp_path):
    atomic_write(tmp_path / "a" / "b" / "f.json", b"one")
    atomic_write(tmp_path / "a" / "b" / "f.json", b"two")
    assert tree(tmp_path) == {"a/b/f.json": b"two"}


@pytest.mark.parametrize("failures", [2, 99])
def test_replacing_a_file_that_another_process_has_open_is_tried_again(tmp_path, monkeypatch, failures):
    """On Windows, os.replace raises PermissionError while another process reads the target."""
    path, calls, replace = tmp_path / "f.json", [], os.replace
    atomic_write(path, b"old")

    def busy(source, target):
        calls.append(target)
        if len(calls) <= failures:
            raise PermissionError("the file is in use")
        replace(source, target)

    monkeypatch.setattr(os, "replace", busy)
    monkeypatch.setattr("pfl_core.files.REPLACE_SECONDS", 0.0)
    if failures == 2:
        atomic_write(path, b"new")
        assert tree(tmp_path) == {"f.json": b"new"} and len(calls) == 3
    else:
        with pytest.raises(OSError, match=r"f\.json cannot be written: the file is in use"):
            atomic_write(path, b"new")
        assert tree(tmp_path) == {"f.json": b"old"}


def test_a_temporary_file_that_another_process_has_open_stays(tmp_path, monkeypatch):
    def busy(self, missing_ok=False):
        raise PermissionError("the file is in use")

    monkeypatch.setattr(Path, "unlink", busy)
    remove(tmp_path / "0123.round")


@pytest.mark.parametrize("step", ["write_bytes", "replace"])
def test_a_failed_write_leaves_the_old_file_and_no_part(tmp_path, monkeypatch, step):
    path = tmp_path / "f.json"
    atomic_write(path, b"old")

    def full(*args, **kwargs):
        if step == "write_bytes":
            args[0].open("wb").close()
        raise OSError("no space left on device")

    monkeypatch.setattr(*((Path, "write_bytes") if step == "write_bytes" else (os, "replace")), full)
    with pytest.raises(OSError, match="no space left"):
        atomic_write(path, b"new")
    assert tree(tmp_path) == {"f.json": b"old"}


def test_temporary_names_differ_between_machines(tmp_path, monkeypatch):
    """Two containers on a shared folder have processes of the same number."""
    names: list[str] = []
    monkeypatch.setattr(os, "replace", lambda source, target: names.append(source.name))
    monkeypatch.setattr(os, "getpid", lambda: 7)
    for _ in range(2):
        atomic_write(tmp_path / "f.json", b"")
    assert names[0] != names[1]
    assert all(Path(name).match(PART) for name in names)


# ---- caches ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def computed() -> list[int]:
    return []


def test_a_value_is_computed_once_for_each_key(tmp_path, computed):
    def value(key):
        return cached(tmp_path / "a" / "c.json", key, lambda: computed.append(1) or {"n": [1, 2.5]})

    assert value(["x", 1]) == value(("x", 1)) == {"n": [1, 2.5]}
    assert len(computed) == 1
    value(["x", 2])
    value(["x", 1])
    assert len(computed) == 3, "a file has one key"


def test_a_changed_byte_is_noticed(tmp_path, computed):
    path = tmp_path / "c.json"

    def value():
        return cached(path, "x", lambda: computed.append(1) or 1234)

    value()
    content = path.read_bytes()
    for damaged in (content.replace(b"1234", b"1235"), content[:20], b"", b"[1]", b"null", b"\xff\x00", b"[" * 100_000):
        path.write_bytes(damaged)
        assert value() == 1234 and path.read_bytes() == content
    assert len(computed) == 8


def test_a_cache_that_cannot_be_written_costs_nothing(tmp_path):
    (tmp_path / "file").touch()
    assert cached(tmp_path / "file" / "c.json", "x", lambda: 5) == 5

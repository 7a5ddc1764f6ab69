"""The index of a store: it saves reading, and is never wrong."""

import dataclasses
import os

import pytest

from pfl_core.runs import RunSpec, Store, write_record
from pfl_core.runs import index as module
from pfl_core.runs.index import indexed
from pfl_core.runs.record import Record


def record(seed=0, accuracy=0, rounds=2, **method):
    spec = RunSpec(method={"name": "local", **method}, seed=seed, rounds=2)
    series = {"correct": ([rounds], [[accuracy]]), "count": ([rounds], [[9]])}
    return Record(spec.key(), spec, series, rounds_done=rounds)


@pytest.fixture
def seen(store, monkeypatch):
    """The index of (key, accuracy), as a function; its list ``reads`` has the files that were read. Files count as
    settled at once.
    """
    monkeypatch.setattr("pfl_core.files.SETTLED", 0)
    reads, read = [], Store.read
    monkeypatch.setattr(Store, "read", lambda self, path: reads.append(path.stem) or read(self, path))

    def values():
        reads.clear()
        return dict(indexed(store, "test", lambda record, path: [record.key, record.series["correct"][1][0][0]]))

    values.reads = reads
    return values


def test_an_unchanged_record_is_read_once(store, seen):
    store.put(record())
    wanted = {record().key: 0}
    assert seen() == wanted and seen.reads == [record().key]
    assert seen() == wanted and seen.reads == []


def test_records_that_were_added_replaced_or_removed_show(store, seen):
    one, two = record(seed=1), record(seed=2)
    store.put(one)
    seen()
    store.put(two)
    assert seen() == {one.key: 0, two.key: 0} and seen.reads == [two.key]
    times = store.path(one.key).stat()
    store.put(record(seed=1, accuracy=7))  # as many bytes
    os.utime(store.path(one.key), ns=(times.st_atime_ns, times.st_mtime_ns))
    assert seen()[one.key] == 7 and seen.reads == [one.key]
    store.path(one.key).unlink()
    assert seen() == {two.key: 0} and seen.reads == []


def test_a_record_that_changed_just_now_is_read_each_time(store, seen, monkeypatch):
    monkeypatch.setattr("pfl_core.files.SETTLED", 10**12)
    store.put(record())
    for _ in range(2):
        assert seen() and seen.reads == [record().key]


@pytest.mark.parametrize(
    "damage", [lambda text: text[:-9], lambda text: text.replace('", 0]', '", 1]'), lambda text: "[]"]
)
def test_a_damaged_index_is_replaced(store, seen, damage):
    store.put(record())
    wanted = seen()
    path = store.root / "cache" / "index-test.json"
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    assert seen() == wanted and seen.reads == [record().key]
    assert seen() == wanted and seen.reads == []


def test_another_version_of_the_package_reads_all_records_again(store, seen, monkeypatch):
    store.put(record())
    seen()
    monkeypatch.setattr(module, "code_digest", lambda: "other")
    assert seen() and seen.reads == [record().key]


def test_an_index_that_cannot_be_written_costs_nothing(store, seen):
    store.put(record())
    (store.root / "cache").touch()  # a file where the folder should be
    for _ in range(2):
        assert seen() == {record().key: 0} and seen.reads == [record().key]


def test_a_damaged_record_is_left_out(store, seen):
    store.put(record())
    seen()
    store.path(record().key).write_text("{}", encoding="utf-8")
    with pytest.warns(UserWarning, match="is damaged"):
        assert seen() == {}


def test_records_with_code_of_the_user_are_read_each_time(store, seen):
    spec = dataclasses.replace(record().spec, data={"name": "tests.runs.test_index:points"})
    store.put(dataclasses.replace(record(), spec=spec))
    for _ in range(2):
        assert seen() and seen.reads == [record().key]


def points():
    """A data set of the user; its code is not executed."""


def test_only_files_that_name_the_paper_are_read(store, seen):
    ours, other, mentions = (record(seed) for seed in (1, 2, 3))
    ours = dataclasses.replace(ours, spec=dataclasses.replace(ours.spec, paper="fedpews"))
    mentions = dataclasses.replace(mentions, provenance={"paper": "fedpews"})
    for made in (ours, other, mentions):
        store.put(made)
    for reads in ({ours.key, mentions.key}, set()):
        seen.reads.clear()
        assert indexed(store, "test", lambda record, path: record.key, "fedpews") == [ours.key]
        assert set(seen.reads) == reads
    assert set(seen()) == {ours.key, other.key, mentions.key}  # the index of all records is another one


def test_of_two_files_with_a_key_the_longer_run_counts(store, seen):
    store.put(record(accuracy=1, rounds=1))
    write_record(record(accuracy=2), store.results / f"{record().key}.json")
    for _ in range(2):
        assert seen() == {record().key: 2}

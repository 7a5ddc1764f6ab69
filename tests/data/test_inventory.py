"""Listing, checksums, and the rows of `pfl data`."""

import os
import re
import sys
from pathlib import Path

import pytest

from pfl_core.cli import main
from pfl_core.data import VERSIONS, checksum, fetch, names, registry, versions
from pfl_core.data import catalogue as module
from pfl_core.data.combine import RECIPES
from pfl_core.data.medmnist_sets import info_table


def test_names_lists_available_sets(write_npz):
    before = names()
    assert before["digits"].available and before["fashion_small"].available and before["synthetic_32k"].available
    assert not before["cifar10"].available and not before["cifar_mnist"].available
    write_npz("cifar10", classes=10, train=10, shape=(32, 32, 3))
    write_npz("mnist", classes=10, train=10)
    write_npz("mine")
    after = names()
    assert after["cifar10"].available and after["cifar_mnist"].available and after["mine"].where == "your own file"
    assert set(after) - set(before) == {"mine"}
    for info in after.values():
        assert info.licence and info.where and info.size


def test_files_that_have_no_usable_name_are_left_out(write_npz, folder):
    for name in ("two words", "a+b", "chestmnist", "cifar_mnist", ".hidden"):
        write_npz(name)
    (folder / "a_folder.npz").mkdir()
    assert set(names()) == set(names("nowhere"))


def test_checksum_follows_content_and_nothing_else(write_npz, folder, tmp_path_factory):
    write_npz("mine")
    path = folder / "mine.npz"
    first = checksum("mine", normalise="half", resize=8, offline=True)
    assert first == checksum("mine") and len(first) == 64
    os.utime(path, (1, 1))
    assert checksum("mine") == first
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "mine.npz").write_bytes(path.read_bytes())
    assert checksum("mine", folder=elsewhere) == first
    write_npz("mine", train=7)
    assert checksum("mine") != first


@pytest.fixture
def reads(monkeypatch):
    """The files that were read for a checksum; files count as settled at once."""
    monkeypatch.setattr("pfl_core.files.SETTLED", 0)
    read, sum_of_file = [], module._sum_of_file
    monkeypatch.setattr(module, "_sum_of_file", lambda path, kind: read.append(path.name) or sum_of_file(path, kind))
    yield read
    module._cached_sum.cache_clear()


def test_an_unchanged_file_is_read_once(write_npz, reads):
    write_npz("mine")
    assert checksum("mine") == checksum("mine")
    assert reads == ["mine.npz"]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("how", ["replaced", "written"])
def test_new_content_of_equal_size_and_time_has_another_checksum(write_npz, folder, monkeypatch, reads, large, how):
    monkeypatch.setattr(module, "CACHED_SIZE", 1 if large else 10**9)
    write_npz("mine")
    path = folder / "mine.npz"
    os.utime(path, (1, 1))
    first, content, before = checksum("mine"), path.read_bytes(), path.stat()
    new = path if how == "written" else folder / "new.npz"
    while not new.exists() or new.stat().st_ctime_ns == before.st_ctime_ns:  # until the file system's clock has moved
        new.write_bytes(content[:-1] + b"!")
        os.utime(new, (1, 1))
    os.replace(new, path)
    assert path.stat().st_size == len(content) and path.stat().st_mtime_ns == 10**9
    assert checksum("mine") != first


def test_a_file_that_changed_just_now_is_read_each_time(write_npz, folder):
    """Two changes within the resolution of the file system's clock give equal times."""
    write_npz("mine")
    path, state = folder / "mine.npz", (folder / "mine.npz").stat()
    first = checksum("mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "stat", lambda self, **_: state)  # as if the clock had not moved
        path.write_bytes(b"x" * state.st_size)
        assert checksum("mine") != first


def test_checksums_of_large_files_are_kept_on_disk(write_npz, folder, monkeypatch, reads):
    """Without pickles. A new process reads the file again only if it or the note of its checksum has changed."""
    monkeypatch.setattr(module, "CACHED_SIZE", 1)
    write_npz("mine")
    first = checksum("mine")
    (note,) = folder.glob("runs/cache/checksum-*.json")
    whole = note.read_bytes()
    for content in (whole, whole.replace(first_sum(note), b"0" * 64), b""):
        note.write_bytes(content)
        module._cached_sum.cache_clear()
        assert checksum("mine") == first and note.read_bytes() == whole
    assert len(reads) == 3  # at first, and after each damage
    os.utime(folder / "mine.npz", (1, 1))
    module._cached_sum.cache_clear()
    assert checksum("mine") == first and len(reads) == 4
    assert not list(folder.glob("runs/**/*.pkl"))


def first_sum(note):
    return re.search(rb"[0-9a-f]{64}", note.read_bytes()).group()


def test_checksum_covers_all_files_of_a_set(write_cifar):
    base = write_cifar("CIFAR10", "labels", 10)
    first = checksum("cifar10")
    (base / "test_batch").write_bytes(b"changed")
    assert checksum("cifar10") != first


def test_generated_sets_have_no_checksum():
    assert [checksum(name) for name in ("digits", "fashion_small", "synthetic_32k", "synthetic_3200")] == [""] * 4


def test_versions_name_every_reader_that_a_set_passes_through(tmp_path, monkeypatch):
    assert versions("digits") == {"digits": 1}
    assert versions("cifar_mnist") == {"combine": 1, "mnist": 1, "cifar10": 1}
    monkeypatch.setitem(VERSIONS, "mnist", 2)
    assert versions("mnist+digits") == {"combine": 1, "mnist": 2, "digits": 1}
    (tmp_path / "data_made_here.py").write_text("def make():\n    return None\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    (name, code), *_ = versions("data_made_here:make").items()
    assert name == "data_made_here:make" and len(code) == 32


def test_checksum_of_a_combination_follows_its_parts(write_npz):
    write_npz("mine")
    write_npz("yours")
    first = checksum("mine+yours")
    assert checksum("yours+mine") != first
    write_npz("yours", train=7)
    assert checksum("mine+yours") != first


def test_checksum_of_a_set_from_outside_follows_its_arrays(tmp_path, monkeypatch):
    (tmp_path / "someones_data.py").write_text(
        "import torch\nfrom pfl_core.data import Dataset\n"
        "def made(size=3):\n"
        "    y = torch.zeros(size, dtype=torch.int64)\n"
        "    return Dataset('made', torch.ones(size, 2), y, y, y > 0, 1, ('only',))\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "someones_data", raising=False)
    assert checksum("someones_data:made") == checksum("someones_data:made", size=3, normalise="unit")
    assert checksum("someones_data:made", size=4) != checksum("someones_data:made")


def test_checksum_of_missing_files(folder):
    with pytest.raises(FileNotFoundError, match="'cifar10' is not here"):
        checksum("cifar10")
    with pytest.raises(ValueError, match="'cifar11' is unknown"):
        checksum("cifar11")


def test_listing_does_not_mind_damaged_files(write_npz, folder):
    write_npz("mine")
    (folder / "mnist.npz").write_bytes(b"damaged, but nobody asked")
    rows = {row["name"]: row for row in fetch()}
    assert rows["digits"]["status"] == "built in" and rows["mine"]["status"] == "here"
    assert rows["mnist"]["status"] == "here" and rows["cifar_mnist"]["status"] == "missing"
    assert set(rows["mine"]) == {"name", "status", "note", "where", "licence", "size"}


def test_other_images_than_the_published_ones_are_marked(write_npz, folder, capsys):
    write_npz("mnist", classes=10, train=10, shape=(28, 28))
    write_npz("cifar10", classes=10, train=10, shape=(3, 32, 32))
    write_npz("breastmnist", shape=(28, 28))
    write_npz("mine")
    rows = {row["name"]: row for row in fetch()}
    assert (rows["mnist"]["status"], rows["mine"]["status"]) == ("not official", "here")
    assert rows["breastmnist"]["status"] == "not official"
    assert rows["mnist"]["note"] == "mnist is not the official file: 14 images"
    assert rows["cifar_mnist"]["status"] == "not official"
    assert rows["cifar_mnist"]["note"].count("not the official file: 14 images") == 2
    row, medical = fetch(["mnist", "breastmnist"], offline=True)
    assert row["status"] == medical["status"] == "not official"
    assert row["note"] == "not the official file: 14 images; 10 + 4 samples 1x28x28"
    assert medical["note"] == "not the official file: 10 images; 6 + 4 samples 1x28x28"
    for chosen in ((), ("mnist",)):
        assert main(["data", *chosen, "--dir", str(folder)]) == 0
        assert "not the official file: 14 images" in capsys.readouterr().out


def test_listing_reads_a_file_again_only_if_it_was_replaced(write_npz, folder, monkeypatch):
    monkeypatch.setattr(module, "fingerprint", lambda path: (path.stat().st_size,))  # also right after writing
    write_npz("mnist", classes=10, train=10, shape=(28, 28))
    reads, module_load = [], module.load
    monkeypatch.setattr(module, "load", lambda name, **options: reads.append(name) or module_load(name, **options))
    note = next(row["note"] for row in fetch() if row["name"] == "mnist")
    module._cached_difference.cache_clear()  # as in another process
    assert note in {row["note"] for row in fetch()} and reads == ["mnist"]
    write_npz("mnist", classes=10, train=20, shape=(28, 28))
    assert "mnist is not the official file: 24 images" in {row["note"] for row in fetch()}


def test_one_bad_set_does_not_stop_the_others(write_npz, folder):
    write_npz("mine")
    (folder / "mnist.npz").write_bytes(b"damaged")
    rows = fetch(["mnist", "office_home", "mine", "digits"], offline=True)
    assert [row["status"] for row in rows] == ["damaged", "missing", "sound", "built in"]
    assert rows[2]["note"] == "6 + 4 samples 1x4x4" and rows[3]["note"] == "1,258 + 539 samples 1x8x8"
    assert "mnist.npz is damaged" in rows[0]["note"]


def test_a_combination_is_fetched_part_by_part(write_npz):
    write_npz("mnist", classes=10, train=10)
    rows = fetch(["cifar_mnist", "mnist"], offline=True)
    assert [(row["name"], row["status"]) for row in rows] == [("mnist", "not official"), ("cifar10", "missing")]


def test_unknown_names_are_refused_before_anything_is_done(folder):
    with pytest.raises(ValueError, match="'cifar11' is unknown"):
        fetch(["digits", "cifar11"])


def test_the_light_table_of_names_is_the_catalogue(folder):
    assert set(registry.SINGLE) == {*module.ENTRIES, *registry.MEDMNIST} and set(registry.MEDMNIST) <= set(info_table())
    assert registry.COMBINED == tuple(RECIPES) and tuple(names()) == (*registry.SINGLE, *registry.COMBINED)

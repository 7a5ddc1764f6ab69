"""Measurements compared with known values: bytes exactly, seconds by order of size."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from pfl_core.study import profiling as measure
from pfl_core.study.profiling import once, peak_bytes, read, seconds


def test_the_peak_counts_what_lives_together():
    """y and z of 4,000 bytes each together; y is freed before w is made; a view is no memory of its own."""
    x = torch.ones(1000)

    def work():
        y = x + 1
        z = y * 2
        del y
        w = z - 1
        return w.view(10, 100)

    assert peak_bytes(work) == 2 * 4000


def test_what_was_there_before_does_not_count():
    x = torch.ones(1000)
    assert peak_bytes(lambda: x.mul_(2)) == peak_bytes(lambda: x[:500].view(5, 100)) == 0


@pytest.mark.filterwarnings("error")
def test_activations_wait_for_the_backward_pass():
    """Of a chain of ReLUs every output stays for its slope; without slopes two at a time are enough."""
    net = nn.Sequential(*(nn.ReLU() for _ in range(5)))
    x = torch.ones(1000, requires_grad=True)

    def forward():
        with torch.no_grad():
            return net(x)

    assert peak_bytes(forward) == 2 * 4000
    assert peak_bytes(lambda: net(x)) == 5 * 4000
    assert peak_bytes(lambda: net(x).sum().backward()) > 5 * 4000


def test_pieces_of_work_take_turns():
    calls = []

    def burn(name, much):
        calls.append(name)
        end = time.process_time() + much
        while time.process_time() < end:
            pass

    frame = seconds({"a": lambda: burn("a", 0.001), "b": lambda: burn("b", 0.03)}, 2)
    assert calls == ["a", "b"] * 3  # the first turn is not measured
    assert frame[["label", "turn"]].values.tolist() == [["a", 1], ["b", 1], ["a", 2], ["b", 2]]
    wide = frame.pivot(index="turn", columns="label", values="seconds")
    assert (wide["b"] > wide["a"]).all() and (wide["a"] > 0).all()


def test_what_was_measured_once_is_read_again_to_the_bit(tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    table = pd.DataFrame({"ms": [math.pi, 1e-300, 1 / 3], "batch": [1, 2, 3]}, index=["a", "b", "s = 0.5, masked"])
    calls = []

    def work() -> pd.DataFrame:
        calls.append(1)
        return table

    first, again = (once("steps", work, 1) for _ in range(2))
    assert len(calls) == 1
    pd.testing.assert_frame_equal(first, table, check_exact=True)
    pd.testing.assert_frame_equal(again, table, check_exact=True)
    once("other", work, 1)
    once("steps", work, 2)
    assert len(calls) == 3
    assert len(list((tmp_path / "runs").glob("steps-*.measured"))) == 2


def test_other_code_or_a_damaged_file_is_measured_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    calls = []

    def work() -> pd.DataFrame:
        calls.append(1)
        return pd.DataFrame({"ms": [1.5]})

    once("steps", work, 1)
    (path,) = Path(tmp_path).glob("runs/*.measured")
    for made, damage in enumerate((b"", b"[1]", b'{"data": 3}', b"{", b"[" * 100_000), start=2):
        path.write_bytes(damage)
        once("steps", work, 1)
        assert len(calls) == made
    once("steps", work, 2)
    assert len(calls) == 7


def test_a_flipped_bit_of_any_byte_of_a_measurement_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    table = pd.DataFrame({"ms": [1.5, 2.25]}, index=["a", "b"])
    once("steps", lambda: table, 1)
    (path,) = tmp_path.glob("runs/*.measured")
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :])
        found = read(path)
        assert found is None or found.equals(table), f"byte {at}"


def test_a_committed_measurement_is_shown_and_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(measure, "RESULTS", tmp_path / "results")
    table = pd.DataFrame({"ms": [1.5]})
    once("steps", lambda: table, 1, "pfedgate/real")
    (path,) = (tmp_path / "data" / "runs").glob("steps-*.measured")
    (tmp_path / "results" / "pfedgate" / "real").mkdir(parents=True)
    path.rename(tmp_path / "results" / "pfedgate" / "real" / "steps.measured")
    again = once("steps", lambda: pytest.fail("it was measured"), 2, "pfedgate/real")
    pd.testing.assert_frame_equal(again, table)
    other = once("steps", lambda: table + 1, 1)
    assert other["ms"].tolist() == [2.5], "where no committed one is asked for"


def test_a_measurement_that_cannot_be_stored_is_returned(tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    (tmp_path / "runs").touch()  # a file in place of the folder
    table = pd.DataFrame({"a": [1, 2]})
    pd.testing.assert_frame_equal(once("mine", lambda: table, version=1), table)


@pytest.mark.parametrize("path", sorted(measure.RESULTS.rglob("*.measured")), ids=lambda path: path.name)
def test_the_committed_measurements_have_a_checksum(path):
    assert read(path) is not None

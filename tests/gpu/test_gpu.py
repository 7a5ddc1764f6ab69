"""``make gpu-evidence`` on the CPU, with a queue of small runs."""

from __future__ import annotations

from zipfile import ZipFile

import pandas as pd
import pytest
import torch

from pfl_core.runs import Store
from tests.gpu import __main__ as gpu

QUEUE = gpu.QUEUE
SMALL = (("fedselect/02_personalization_limit", "ci", {"method": ("fedselect",)}),)


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(gpu, "QUEUE", SMALL)
    monkeypatch.setattr(gpu, "NETWORKS", {"fc_pews": (5,)})
    monkeypatch.setattr(gpu, "SAMPLES", 64)


def test_tables_and_records_are_written_and_the_queue_continues(tmp_path, monkeypatch, capsys):
    """With three runs of each notebook."""
    every = gpu.papers.specs
    monkeypatch.setattr(gpu.papers, "specs", lambda *asked: every(*asked)[:3])
    command = [str(tmp_path / "out"), "--device", "cpu", "--minutes"]
    assert gpu.main([*command, "0"]) == 0
    same = pd.read_csv(tmp_path / "out" / "agreement.csv")
    assert len(same) == 3 and (same["difference"] == 0).all()  # the same device: bitwise equal
    times = pd.read_csv(tmp_path / "out" / "speed.csv")
    assert list(times["network"]) == ["fc_pews"] and (times["ratio"] > 0).all()
    count = len(gpu.wanted("cpu", SMALL))
    assert f"0 of {count} runs of the queue are finished" in capsys.readouterr().out
    assert gpu.main([*command, "1"]) == 0
    assert f"{count} of {count} runs" in capsys.readouterr().out
    assert gpu.main([*command, "1"]) == 0  # nothing twice
    with ZipFile(tmp_path / "out" / "records.zip") as file:
        names = file.namelist()
    written = {name.removesuffix(".json") for name in names}
    assert len(written) == len(names)
    assert written == {spec.key() for spec in gpu.wanted("cpu", SMALL)} <= {record.key for record in Store()}


def test_nothing_is_computed_on_a_device_that_disagrees(tmp_path, monkeypatch, capsys):
    table = pd.DataFrame({"run": ["fedavg"], "cpu": [80.0], "device": [75.0], "difference": [-5.0]})
    monkeypatch.setattr(gpu, "agreement", lambda device, store: table)
    assert gpu.main([str(tmp_path / "out"), "--device", "cpu"]) == 1
    assert "differ by more than 2 points" in capsys.readouterr().out
    assert not (tmp_path / "out" / "records.zip").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_machine_without_a_gpu_is_told_in_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        gpu.main([str(tmp_path / "out")])
    assert capsys.readouterr().err.startswith("device cuda does not work: ")


@pytest.mark.parametrize("entry", QUEUE, ids=[entry[0] for entry in QUEUE])
def test_the_queue_names_runs_that_exist(entry):
    specs = gpu.wanted("cuda", [entry])
    assert specs and {(spec.device_kind, spec.preset) for spec in specs} == {("cuda", "paper")}

"""The comparison with other implementations, where none of them is installed."""

import os
import sys
from dataclasses import replace

import numpy as np

from tests.benchmarks import peers

SMALL = {
    "fedavg": peers.Case("fedavg", "mlp", (8,), 2, 64),
    "ditto": peers.Case("ditto", "mlp", (8,), 2, 64, passes=2),
    "fedselect": peers.Case("fedselect", "mlp", (8,), 2, 64, passes=2),
}


def test_modules_of_a_checkout_are_gone_afterwards(tmp_path):
    """Those of two checkouts may have the same name."""
    for which in ("one", "two"):
        (tmp_path / which).mkdir()
        (tmp_path / which / "of_a_checkout.py").write_text(f"WHICH = {which!r}\n", encoding="utf-8")
        with peers._importing(tmp_path / which):
            assert peers._module("of_a_checkout").WHICH == which
        assert "of_a_checkout" not in sys.modules and str(tmp_path / which) not in sys.path


def test_pfllibs_files_have_the_samples_of_the_federation(tmp_path):
    fed = SMALL["fedavg"].federation()
    peers.write_pfllib_files(fed, tmp_path)
    for k in range(fed.num_clients):
        data = np.load(tmp_path / f"dataset/peers/train/{k}.npz", allow_pickle=True)["data"].tolist()
        for name, values in zip("xy", fed.splits["train"].client(k), strict=True):
            assert np.array_equal(data[name], values.numpy())


def test_what_is_missing_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peers, "CASES", tuple(SMALL.values()))
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.delenv("FEDSELECT", raising=False)
    monkeypatch.setenv("PFLLIB", str(tmp_path))
    peers.main(["--turns", "1"])
    out = capsys.readouterr().out
    assert f"left out: PFLlib: {tmp_path} has no system/flcore" in out and "left out: Flower: " in out
    assert "left out: the authors' FedSelect: no checkout given (--fedselect or FEDSELECT)" in out
    assert out.count(peers.OURS) == 4 and f"wall clock, {os.cpu_count()} cores" in out


def test_a_case_has_whole_batches():
    """PFLlib drops a last batch that is smaller."""
    assert all(case.samples % peers.BATCH == 0 for case in peers.CASES)
    assert replace(SMALL["fedavg"], clients=3).title == "fedavg, mlp, 3 x 64"

"""Records of a notebook: stored runs are read, missing ones are computed only on request."""

from __future__ import annotations

import dataclasses

import pytest

from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.runs import Store, execute, sweep, write_record
from pfl_core.study.plots import caption
from pfl_core.study.stored import read_or_compute
from pfl_core.training import Training
from tests.study.small_runs import specs


@pytest.mark.parametrize("preset", ["real", "paper"])
def test_a_notebook_does_not_train_at_real_and_paper_by_default(preset, store, capsys, monkeypatch):
    monkeypatch.delenv("PFL_TRAIN", raising=False)
    with pytest.raises(FileNotFoundError, match="none of these 2 runs is stored.*TRAIN = True"):
        read_or_compute(specs(preset), store=store)
    sweep(specs(preset, (1,)), jobs=1, store=store)
    capsys.readouterr()
    assert [record.spec.seed for record in read_or_compute(specs(preset), store=store)] == [1]
    out = capsys.readouterr().out
    assert "not stored, so not drawn: 1 of 2 runs (FedAvg 1)" in out


def test_it_trains_with_its_parameter_or_under_pfl_figures(store, monkeypatch):
    monkeypatch.delenv("PFL_TRAIN", raising=False)
    assert len(read_or_compute(specs(seeds=(0,)), train=True, store=store)) == 1
    monkeypatch.setenv("PFL_TRAIN", "1")
    assert [record.spec.seed for record in read_or_compute(specs(), store=store)] == [0, 1]


def test_small_presets_train_unless_nothing_may(store, monkeypatch):
    monkeypatch.setenv("PFL_TRAIN", "0")
    with pytest.raises(FileNotFoundError, match="none of these 2 runs is stored"):
        read_or_compute(specs("ci"), store=store)
    monkeypatch.delenv("PFL_TRAIN")
    assert len(read_or_compute(specs("ci"), store=store)) == 2


def test_a_partial_run_is_drawn_and_continued_on_request(store, monkeypatch):
    monkeypatch.delenv("PFL_TRAIN", raising=False)
    (spec,) = specs(seeds=(0,))
    execute(spec, store, until=2, keep_state=True)
    (drawn,) = read_or_compute([spec], store=store)
    frame = PAPER.frame([drawn])
    assert drawn.partial and "2 of 3 rounds" in caption(frame)
    assert set(frame["preset"]) == {"real"} and set(frame["rounds"]) == {2} and frame["partial"].all()
    assert frame["data"].str.endswith("2 of 3 rounds").all()
    (whole,) = read_or_compute([spec], train=True, store=store)
    assert not whole.partial and whole.key == drawn.key


def test_runs_with_neither_record_nor_data_are_left_out(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    wanted = [*specs(), *specs(data={"name": "cifar10"})]
    records = read_or_compute(wanted, train=True, store=store)
    assert [record.spec for record in records] == wanted[:2]
    assert "left out, 2 runs: data set 'cifar10' is not here" in capsys.readouterr().out
    one = dataclasses.replace(records[0], key=wanted[2].key(), spec=wanted[2], data={"cifar10": "of a file elsewhere"})
    write_record(one, store.results / "real" / f"{one.key}.json")
    store = Store(store.root, store.results)  # one that lists what was committed since
    assert [record.spec for record in read_or_compute(wanted, store=store)] == wanted[:3]
    with pytest.raises(FileNotFoundError, match="is not here"):
        read_or_compute(wanted[3:], store=store)


def test_runs_that_did_not_train_are_listed(store, capsys, monkeypatch):
    read_or_compute(specs(rounds=30), train=True, store=store)
    assert "did not train" not in capsys.readouterr().out
    diverging = specs(train=Training(lr=1e12))
    read_or_compute(diverging, train=True, store=store)
    out = capsys.readouterr().out
    assert "did not train" in out and all(
        f"FedAvg on tests.runs.outside:blobs, seed {spec.seed}\n" in out for spec in diverging
    )

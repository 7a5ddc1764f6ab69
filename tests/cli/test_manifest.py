"""Evidence without data: the manifest, and notebooks that draw what is stored and train only if asked."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pfl_core.cli import main
from pfl_core.notebooks import manifest
from pfl_core.paper import claims_table
from pfl_core.runs import RESULTS, RunSpec, Store, execute, sweep, write_record
from pfl_core.runs.provenance import ROOT
from pfl_core.runs.store import whole
from pfl_core.study import experiments
from pfl_core.study.experiments import EXPERIMENTS, available, records
from pfl_core.study.metrics import tidy
from pfl_core.study.output import caption
from tests.papers.fedselect.frames import limits
from tests.papers.fedselect.test_claims_limits import TABLE_2
from tests.runs.outside import HERE
from tests.study.frames import frame

BLOBS = {
    **{"data": {"name": f"{HERE}:blobs"}, "model": {"name": "mlp", "hidden": [6]}},
    **{"clients": 4, "rounds": 3, "paper": "fedselect"},
}
NAME = "fedselect/02_personalization_limit"


def specs(preset: str = "real", seeds: tuple[int, ...] = (0, 1), **changes) -> list[RunSpec]:
    return [RunSpec(**{"method": {"name": "fedavg"}, **BLOBS, "preset": preset, "seed": s, **changes}) for s in seeds]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs", tmp_path / "results")


# ---- what a notebook draws ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["real", "paper"])
def test_a_notebook_never_trains_unasked_at_real_and_paper(preset, store, capsys, monkeypatch):
    monkeypatch.delenv("PFL_TRAIN", raising=False)
    with pytest.raises(FileNotFoundError, match="none of these 2 runs is stored.*TRAIN = True"):
        records(specs(preset), store=store)
    sweep(specs(preset, (1,)), jobs=1, store=store)
    capsys.readouterr()
    assert [record.spec.seed for record in records(specs(preset), store=store)] == [1]
    out = capsys.readouterr().out
    assert "not stored, so not drawn: 1 of 2 runs" in out and "seed 0" in out


def test_it_trains_if_asked_by_its_parameter_or_under_pfl_figures(store, monkeypatch):
    monkeypatch.delenv("PFL_TRAIN", raising=False)
    monkeypatch.setenv("PFL_JOBS", "1")
    assert len(records(specs(seeds=(0,)), train=True, store=store)) == 1
    monkeypatch.setenv("PFL_TRAIN", "1")
    assert [record.spec.seed for record in records(specs(), store=store)] == [0, 1]


def test_small_presets_train_as_ever(store, monkeypatch):
    monkeypatch.delenv("PFL_TRAIN", raising=False)
    assert len(records(specs("ci"), store=store)) == 2


def test_a_stopped_run_is_drawn_as_it_is_and_goes_on_if_asked(store, monkeypatch):
    monkeypatch.setenv("PFL_JOBS", "1")
    monkeypatch.delenv("PFL_TRAIN", raising=False)
    (spec,) = specs(seeds=(0,))
    execute(spec, store, until=2, keep_state=True)
    (drawn,) = records([spec], store=store)
    assert drawn.partial and "2 of 3 rounds" in caption([drawn])
    frame = tidy([drawn])
    assert set(frame["preset"]) == {"real"} and set(frame["rounds"]) == {2} and frame["partial"].all()
    assert frame["data"].str.endswith("2 of 3 rounds").all()
    (whole,) = records([spec], train=True, store=store)
    assert not whole.partial and whole.key == drawn.key


def test_stopped_runs_decide_no_claim():
    results = frame(limits(TABLE_2))
    assert claims_table("fedselect", results, [4])["ours"].tolist() == ["holds"]
    assert claims_table("fedselect", results.assign(partial=True), [4])["ours"].tolist() == ["undecided"]


def test_available_is_what_is_stored_or_has_its_data_here(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    wanted = [*specs(), *specs(data={"name": "cifar10"})]
    assert available(wanted, store) == wanted[:2]
    assert "left out, 2 runs: data set 'cifar10' is not here" in capsys.readouterr().out
    (made,) = sweep(wanted[:1], jobs=1, store=store)
    one = dataclasses.replace(made, key=wanted[2].key(), spec=wanted[2], data={"cifar10": "of a file elsewhere"})
    write_record(one, store.results / "real" / f"{one.key}.json")
    assert available(wanted, store) == wanted[:3]
    with pytest.raises(FileNotFoundError, match="is not here"):
        available(wanted[3:], store)


# ---- the manifest ---------------------------------------------------------------------------------------------------


def test_the_committed_manifest_is_what_is_complete():
    """Written by `pfl runs manifest`; every record of it is committed, fresh and whole."""
    keys = {path.stem for path in RESULTS.glob("**/*.json")}
    entries = manifest.read(RESULTS)
    assert {entry.notebook for entry in entries} <= set(EXPERIMENTS)
    for entry in entries:
        assert entry.seeds and entry.keys and set(entry.keys) <= keys, entry.notebook
        wanted = experiments.specs(entry.notebook, entry.preset, entry.seeds)
        assert {spec.key() for spec in wanted} == set(entry.keys), f"{entry.notebook}: run `pfl runs manifest`"


def test_every_committed_record_is_current():
    """No record is stale: what is superseded leaves the folder and stays in git's history."""
    for path in RESULTS.glob("*/**/*.json"):
        content = whole(path)  # its checksum, too
        spec = RunSpec.from_json(content["spec"])
        assert content["schema"] == 2 and path.stem == content["key"] in (spec.key(), spec.key(content["data"]))


def test_a_notebook_is_complete_with_all_runs_of_as_many_seeds(store, monkeypatch):
    def small(preset, wanted, overrides):
        return specs(preset, tuple(wanted))

    monkeypatch.setattr(manifest, "EXPERIMENTS", {NAME: small})
    monkeypatch.setattr(experiments, "EXPERIMENTS", {NAME: small})
    assert manifest.complete(store) == []
    sweep(specs("real", (0, 1, 3)), jobs=1, store=store)
    (entry,) = manifest.complete(store)
    assert (entry.preset, entry.seeds, len(entry.keys)) == ("paper", [0, 1], 2), "the preset is no part of a key"
    path = manifest.write([entry], store.results)
    assert manifest.read(store.results) == [entry]
    path.write_text("[{}]", encoding="utf-8")
    with pytest.raises(ValueError, match="damaged; write it again"):
        manifest.read(store.results)


# ---- pfl figures --evidence -----------------------------------------------------------------------------------------


def test_evidence_is_drawn_from_the_records_alone(tmp_path, monkeypatch, capsys):
    """One notebook of it, with no data on this machine: the committed figures, byte for byte."""
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PFL_FIGURES_DIR", str(tmp_path / "figures"))
    assert main(["figures", "--evidence", "fedselect/05_mask_overlap"]) == 0
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "figures" / "real" / "fedselect").iterdir()}
    assert len(drawn) == 8 and not list((tmp_path / "data").glob("runs/*.json")), "nothing was computed"
    for name, content in drawn.items():
        assert content == (ROOT / "figures" / "real" / "fedselect" / name).read_bytes(), name


@pytest.mark.parametrize("more", ["--preset real", "-p SEEDS [0]", "--device cpu", "--write-notebooks"])
def test_evidence_takes_no_other_parameters(more, capsys):
    assert main(["figures", "--evidence", *more.split()]) == 2
    assert "draws what the manifest says" in capsys.readouterr().err


def test_evidence_that_is_not_there_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pfl_core.runs.store.RESULTS", tmp_path)
    keys = [spec.key() for spec in experiments.specs(NAME, "real", [0])]
    manifest.write([manifest.Evidence(NAME, "real", [0], keys)], tmp_path)
    assert main(["figures", "--evidence"]) == 2
    assert "of the manifest is not in" in capsys.readouterr().err
    manifest.write([manifest.Evidence(NAME, "real", [0], keys[1:])], tmp_path)
    assert main(["figures", "--evidence"]) == 2
    assert "the manifest has other runs than the notebook" in capsys.readouterr().err


def test_evidence_is_drawn_from_committed_records_whatever_the_user_has_run(tmp_path, monkeypatch):
    """Half of a run of one's own is no evidence."""
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PFL_FIGURES_DIR", str(tmp_path / "figures"))
    key = next(entry for entry in manifest.read(RESULTS) if entry.notebook == "fedselect/05_mask_overlap").keys[0]
    own = Store()
    whole = own.get(key)
    own.put(dataclasses.replace(whole, series={k: (t[:1], v[:1]) for k, (t, v) in whole.series.items()}))
    assert main(["figures", "--evidence", "fedselect/05_mask_overlap"]) == 0
    drawn = (tmp_path / "figures" / "real" / "fedselect" / "mask_overlap_contrast.csv").read_bytes()
    assert drawn == (ROOT / "figures" / "real" / "fedselect" / "mask_overlap_contrast.csv").read_bytes()


def test_the_list_of_the_evidence(capsys):
    assert main(["figures", "--evidence", "--list", "fedpews"]) == 0
    assert "fedpews/01_synthetic" in capsys.readouterr().out

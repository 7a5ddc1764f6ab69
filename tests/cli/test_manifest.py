"""The manifest of the best evidence, and figures drawn from it without data."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pfl_core import notebooks, papers
from pfl_core.cli import main
from pfl_core.notebooks import manifest
from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.runs import RESULTS, RunSpec, Store, sweep
from pfl_core.runs.provenance import ROOT
from pfl_core.runs.store import read_content
from tests.study.small_runs import specs

NAME = "fedselect/02_personalization_limit"

# ---- the manifest ---------------------------------------------------------------------------------------------------


def test_the_committed_manifest_is_the_best_evidence():
    """Written by `pfl runs manifest`; every record of it is committed, fresh and whole."""
    keys = {path.stem for path in RESULTS.glob("**/*.json")}
    entries = manifest.read(RESULTS)
    assert entries and all(papers.has_runs(entry.notebook) for entry in entries)
    for entry in entries:
        assert entry.seeds and entry.keys and set(entry.keys) <= keys, entry.notebook
    assert entries == manifest.best(Store(root=Path(os.devnull))), "run `pfl runs manifest`"


def test_committed_records_are_small():
    """At most half a megabyte each, and 75 in all."""
    sizes = {path.name: path.stat().st_size for path in RESULTS.glob("**/*.json")}
    assert max(sizes.values()) <= 0.5e6, max(sizes, key=sizes.__getitem__)
    assert sum(sizes.values()) <= 75e6


def test_every_committed_record_is_current():
    """No record is stale: what is superseded leaves the folder and stays in git's history."""
    for path in RESULTS.glob("*/**/*.json"):
        content = read_content(path)  # its checksum, too
        spec = RunSpec.from_json(content["spec"])
        assert path.stem == content["key"] in (spec.key(), spec.key(content["data"]))


def test_a_notebook_is_complete_with_all_runs_of_as_many_seeds(store, monkeypatch):
    def small(preset, wanted, overrides):
        return specs(preset, tuple(wanted))

    paper, _, section = NAME.partition("/")
    monkeypatch.setattr("pfl_core.papers.fedselect.paper.PAPER", replace(PAPER, experiments={section: small}))
    monkeypatch.setattr(manifest, "STUDIES", [paper])
    assert manifest.best(store) == []
    sweep(specs("real", (0, 1, 3)), jobs=1, store=store)
    (entry,) = manifest.best(store)
    assert (entry.preset, entry.seeds, len(entry.keys)) == ("paper", [0, 1], 2), "the preset is no part of a key"
    path = manifest.write([entry], store.results)
    assert manifest.read(store.results) == [entry]
    for damaged in ("[{}]", "[" * 100_000):
        path.write_text(damaged, encoding="utf-8")
        with pytest.raises(ValueError, match="damaged; write it again"):
            manifest.read(store.results)


def test_without_a_complete_seed_the_preset_with_more_runs_counts(store, monkeypatch):
    def small(preset, wanted, overrides):
        return specs(preset, tuple(wanted)) + specs(preset, tuple(wanted), rounds=2)

    paper, _, section = NAME.partition("/")
    monkeypatch.setattr("pfl_core.papers.fedselect.paper.PAPER", replace(PAPER, experiments={section: small}))
    monkeypatch.setattr(manifest, "STUDIES", [paper])
    sweep(specs("real", (1,)), jobs=1, store=store)
    assert manifest.best(store) == []
    sweep(specs("real", (1, 2, 3), rounds=2), jobs=1, store=store)
    (entry,) = manifest.best(store)
    assert len(entry.keys) == 4 and entry.missing == 2 * len(entry.seeds) - 4
    manifest.check(entry, store)
    with pytest.raises(ValueError, match="other runs than the notebook"):
        manifest.check(replace(entry, keys=["0" * 16]), store)


def test_evidence_that_is_no_longer_complete_is_named(monkeypatch, tmp_path, capsys):
    """An experiment that asks for a run more loses its notebook's evidence until that run is made."""
    monkeypatch.setattr("pfl_core.runs.store.RESULTS", tmp_path)
    monkeypatch.setattr(manifest, "STUDIES", [])
    manifest.write([manifest.Evidence("fedpews/03_baselines", "real", [0], ["0" * 16])], tmp_path)
    assert main(["runs", "manifest"]) == 0
    assert re.search(
        r"no longer complete: fedpews/03_baselines, preset real: \d+ runs are not stored", capsys.readouterr().out
    )
    assert manifest.read(tmp_path) == []


# ---- pfl figures --evidence -----------------------------------------------------------------------------------------


def test_evidence_is_drawn_from_the_committed_records_alone(tmp_path, monkeypatch):
    """One notebook of it, byte for byte, with no data on this machine; half of a run of one's own is no evidence."""
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PFL_FIGURES_DIR", str(tmp_path / "figures"))
    name, own = "fedselect/04_training_size", Store()
    key = next(entry for entry in manifest.read(RESULTS) if entry.notebook == name).keys[0]
    committed = own.get(key)
    own.put(replace(committed, series={k: (t[:1], v[:1]) for k, (t, v) in committed.series.items()}))
    assert main(["figures", "--evidence", name]) == 0
    paths = (tmp_path / "figures" / "real" / "fedselect").iterdir()
    drawn = {path.name: path.read_bytes() for path in paths if path.suffix != ".pdf"}  # no PDF is committed
    computed = {path.stem for path in (tmp_path / "data").glob("runs/*.json")}
    assert len(drawn) == 4 and computed == {key}, "nothing was computed"
    for figure, content in drawn.items():
        assert content == (ROOT / "figures" / "real" / "fedselect" / figure).read_bytes(), figure


def test_nothing_is_deleted_where_the_evidence_is_drawn(tmp_path, monkeypatch, capsys):
    """PFL_FIGURES_DIR may be any folder. What no notebook drew is named."""
    monkeypatch.setenv("PFL_FIGURES_DIR", str(tmp_path))
    first = manifest.read(RESULTS)[:1]  # each notebook's records are checked, which takes seconds
    monkeypatch.setattr(manifest, "read", lambda results: first)
    old = [tmp_path / name for name in ("real/fedselect/a.png", "real/fedselect/old.png", "paper/thesis.tex")]
    for path in old:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1")
        os.utime(path, (1, 1))

    monkeypatch.setattr(notebooks, "run_notebook", lambda *_: old[0].write_bytes(b"2"))
    assert main(["figures", "--evidence"]) == 0
    assert [path.read_bytes() for path in old] == [b"2", b"1", b"1"]
    printed = capsys.readouterr().out.splitlines()
    assert printed[-3].endswith("delete what is out of date: 2") and {*printed[-2:]} == {str(path) for path in old[1:]}


def test_missing_evidence_is_reported_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pfl_core.runs.store.RESULTS", tmp_path)
    keys = [spec.key() for spec in papers.specs(NAME, "real", [0])]
    manifest.write([manifest.Evidence(NAME, "real", [0], keys)], tmp_path)
    assert main(["figures", "--evidence"]) == 2
    assert "of the manifest is missing in" in capsys.readouterr().err
    manifest.write([manifest.Evidence(NAME, "real", [0], keys[1:])], tmp_path)
    assert main(["figures", "--evidence"]) == 2
    assert "the manifest has other runs than the notebook" in capsys.readouterr().err


def test_the_list_of_the_evidence(capsys):
    assert main(["figures", "--evidence", "--list", "fedpews"]) == 0
    assert "fedpews/01_synthetic" in capsys.readouterr().out

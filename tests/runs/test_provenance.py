"""Provenance of a record: versions, commit and machine."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from pfl_core.runs import provenance
from pfl_core.runs.provenance import describe


def test_describe_is_plain_text_with_versions_and_commit():
    described = describe()
    assert json.loads(json.dumps(described)) == described
    assert {"python", "torch", "numpy", "scikit-learn", "commit", "machine", "processor"} <= described.keys()
    assert all(isinstance(value, str) and value for value in described.values())
    assert re.fullmatch(r"\d+\.\d+\.\d+", described["torch"]), "the build (+cpu) is no part of the version"
    assert re.fullmatch(r"[0-9a-f]{10}\+?|unknown", described["commit"])


def git(folder: Path, *args: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    run = subprocess.run(["git", *identity, *args], cwd=folder, capture_output=True, encoding="utf-8", check=True)
    return run.stdout.strip()


def test_the_commit_has_a_plus_where_code_differs(tmp_path, monkeypatch):
    (tmp_path / "pfl_core").mkdir()
    code, notes = tmp_path / "pfl_core" / "ops.py", tmp_path / "notes.md"
    for file in (code, notes):
        file.write_text("one\n", encoding="utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)

    def commit() -> str:
        provenance.commit.cache_clear()
        return provenance.commit()

    head = git(tmp_path, "rev-parse", "HEAD")[:10]
    assert commit() == head
    notes.write_text("two\n", encoding="utf-8")
    assert commit() == head, "files that compute nothing do not count"
    code.write_text("two\n", encoding="utf-8")
    assert commit() == head + "+"
    provenance.commit.cache_clear()


@pytest.mark.parametrize("why", ["no checkout", "no git"])
def test_without_a_checkout_the_commit_is_unknown(tmp_path, monkeypatch, why):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    if why == "no git":
        monkeypatch.setenv("PATH", str(tmp_path))
    provenance.commit.cache_clear()
    assert provenance.commit() == "unknown"
    provenance.commit.cache_clear()


def test_an_installed_package_does_not_take_the_commit_of_the_checkout_around_it(tmp_path, monkeypatch):
    """Somebody's project with a virtual environment inside: its commit says nothing about our code."""
    (tmp_path / "theirs.py").write_text("x = 1\n", encoding="utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "theirs")
    inside = tmp_path / ".venv" / "site-packages"
    (inside / "pfl_core").mkdir(parents=True)
    (inside / "pfl_core" / "ops.py").write_text("x = 1\n", encoding="utf-8")
    monkeypatch.setattr(provenance, "ROOT", inside)
    provenance.commit.cache_clear()
    assert provenance.commit() == "unknown"
    provenance.commit.cache_clear()


@pytest.mark.parametrize(
    ("text", "known", "name"),
    [
        (
            "processor : 0\nmodel name\t: Some CPU @ 2 GHz \nprocessor : 1\nmodel name\t: Some CPU\n",
            "",
            "Some CPU @ 2 GHz",
        ),
        ("processor : 0\n", "arm", "arm"),
        (None, "", "unknown processor"),
    ],
)
def test_the_processors_name(text, known, name, tmp_path, monkeypatch):
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
    monkeypatch.setattr(provenance, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(provenance.platform, "processor", lambda: known)
    provenance.processor.cache_clear()
    assert provenance.processor() == name
    provenance.processor.cache_clear()

"""Where a result comes from: what of the code counts, and what a record tells."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pfl_core
from pfl_core import provenance
from pfl_core.provenance import code_hash, describe

METHOD = '''
"""A module."""
import math

from HELPER import half


class Method:
    """A class."""

    rate: float = 0.5

    def round(self, x):
        """Do it."""
        return half(x) * self.rate  # in the middle
'''
HALF = "def half(x):\n    return x / 2\n"
THIRD = HALF.replace("2", "3")
PLACES = {"ours": "pfl_core.for_this_test", "a package": "somebodys_package", "a folder": ""}

Hash = Callable[..., str]


def forget() -> None:
    """Sources are read once in a process; this is another process."""
    for value in vars(provenance).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
    importlib.invalidate_caches()


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    """Where a method's module and the helper beside it lie."""
    return request.param


@pytest.fixture
def hashed(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hash]:
    """``hashed(method, helper)``: the hash of a method's module with these sources; HELPER and PACKAGE are names."""
    package = PLACES[place]
    folder = tmp_path / package.rpartition(".")[2]
    folder.mkdir(exist_ok=True)
    if package:
        (folder / "__init__.py").touch()
    if place == "ours":
        pfl_core.__path__.append(str(tmp_path))
    else:
        monkeypatch.syspath_prepend(str(tmp_path))

    def write(method: str = METHOD, helper: str = HALF) -> str:
        helper_name, method_name = (f"{package}.{m}".lstrip(".") for m in ("helper_of_test", "method_of_test"))
        for name, source in (("method_of_test", method), ("helper_of_test", helper)):
            named = source.replace("HELPER", helper_name).replace("METHOD", method_name).replace("PACKAGE", package)
            (folder / f"{name}.py").write_text(named)
        forget()
        return code_hash([method_name])

    yield write
    if place == "ours":
        pfl_core.__path__.remove(str(tmp_path))
    for name in [n for n in sys.modules if n.startswith(("pfl_core.for_this_test", "somebodys_package"))]:
        del sys.modules[name]
    forget()


UNCHANGED = {
    "nothing": METHOD,
    "comment": METHOD.replace("# in the middle", "# elsewhere"),
    "docstring of the module": METHOD.replace("A module.", "Another text."),
    "docstring of the class": METHOD.replace("A class.", "Another text."),
    "docstring of the function": METHOD.replace("Do it.", "Another text."),
    "no docstrings": re.sub('""".*"""', "", METHOD),
    "blank lines": METHOD.replace("\n\n", "\n\n\n"),
    "brackets": METHOD.replace("half(x) * self.rate", "(half(x)) * (self.rate)"),
}
CHANGED = {
    "value": METHOD.replace("0.5", "0.25"),
    "operator": METHOD.replace("*", "+"),
    "name": METHOD.replace("rate", "speed"),
    "another line": METHOD + "\n\nLIMIT = 3\n",
    "a text that is no docstring": METHOD + "\n\nTEXT = 'hello'\n",
    "order": METHOD.replace("half(x) * self.rate", "self.rate * half(x)"),
}


@pytest.mark.parametrize("case", UNCHANGED)
def test_what_does_not_compute_does_not_count(case, hashed):
    assert hashed(UNCHANGED[case]) == hashed(METHOD)


@pytest.mark.parametrize("case", CHANGED)
def test_what_computes_counts(case, hashed):
    assert hashed(CHANGED[case]) != hashed(METHOD)


BY_NAME = ["from HELPER import half", "import HELPER", "import math, HELPER as h", "def f():\n    import HELPER"]
IN_PACKAGES = ["from PACKAGE import helper_of_test", "from . import helper_of_test", "from .helper_of_test import half"]


@pytest.mark.parametrize(
    ("place", "line"),
    [(place, line) for place in PLACES for line in BY_NAME]
    + [(place, line) for place in ("ours", "a package") for line in IN_PACKAGES],
    indirect=["place"],
)
def test_imports_are_followed(line, hashed):
    method = METHOD.replace("from HELPER import half", line)
    before = hashed(method, HALF)
    assert hashed(method, THIRD) != before
    assert hashed(method, HALF + "# half\n") == before


def test_imports_for_type_checkers_alone_are_not(hashed):
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from HELPER import half\n"
    assert hashed(typed, HALF) == hashed(typed, THIRD)


def test_circles_of_imports_end(hashed):
    assert hashed(METHOD, "import METHOD\n" + HALF) != hashed(METHOD, "import METHOD\n" + THIRD)


def test_imports_of_modules_that_stand_alone_do_not_count(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "stands_alone.py").write_text("import pfl_core.ops\n")
    forget()
    ours = provenance._skeleton
    before = code_hash([], alone=["stands_alone"])
    monkeypatch.setattr(provenance, "_skeleton", lambda name: "changed" if name == "pfl_core.ops" else ours(name))
    assert code_hash([], alone=["stands_alone"]) == before
    assert code_hash(["stands_alone"]) != before
    forget()


def test_modules_listed_as_equal_go_by_the_older_ones_hash(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "made_faster.py"
    module.write_text("x = 1 + 1\n")
    forget()
    before, old = code_hash(["made_faster"]), provenance._skeleton("made_faster")
    module.write_text("x = 2\n")
    forget()
    new = provenance._skeleton("made_faster")
    assert new != old
    assert code_hash(["made_faster"]) != before
    monkeypatch.setitem(provenance.SAME_RESULTS, new, old)
    forget()
    assert code_hash(["made_faster"]) == before
    module.write_text("x = 2\nimport moved_out\n")
    (tmp_path / "moved_out.py").write_text("y = 3\n")
    forget()
    divided = provenance._skeleton("made_faster")
    monkeypatch.setitem(provenance.SAME_RESULTS, divided, old)
    forget()
    assert code_hash(["made_faster"]) != before
    monkeypatch.setitem(provenance.SAME_RESULTS, provenance._skeleton("moved_out"), "")
    forget()
    assert code_hash(["made_faster"]) == before
    forget()


def test_only_present_modules_are_listed_as_equal(monkeypatch):
    listed = set(provenance.SAME_RESULTS)
    monkeypatch.setattr(provenance, "SAME_RESULTS", {})
    forget()
    names = (name for _, name, _ in pkgutil.walk_packages(pfl_core.__path__, "pfl_core."))
    present = {provenance._skeleton(name) for name in names}
    forget()
    assert listed <= present


def test_the_hash_does_not_depend_on_order():
    modules = ["pfl_core.ops", "pfl_core.layout", "pfl_core.models"]
    assert code_hash(modules) == code_hash(modules[::-1]) == code_hash(iter(modules * 2))


def test_libraries_do_not_count():
    """Their versions stand in the record; a new pandas must not make every run anew."""
    forget()
    assert provenance._imports("pfl_core.ops") == set()
    assert all(name.startswith("pfl_core.") for name in provenance._imports("pfl_core.models"))


# ---- what a record tells --------------------------------------------------------------------------------------------


def test_describe_is_plain_text_with_versions_and_commit():
    told = describe()
    assert json.loads(json.dumps(told)) == told
    assert {"python", "torch", "numpy", "scikit-learn", "commit", "machine"} <= told.keys()
    assert all(isinstance(value, str) and value for value in told.values())
    assert re.fullmatch(r"\d+\.\d+\.\d+", told["torch"]), "the build (+cpu) is no part of the version"
    assert re.fullmatch(r"[0-9a-f]{10}\+?|unknown", told["commit"])


def git(folder: Path, *args: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    run = subprocess.run(["git", *identity, *args], cwd=folder, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_the_commit_has_a_plus_where_code_differs(tmp_path, monkeypatch):
    (tmp_path / "pfl_core").mkdir()
    code, notes = tmp_path / "pfl_core" / "ops.py", tmp_path / "notes.md"
    for file in (code, notes):
        file.write_text("one\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)

    def commit() -> str:
        provenance.commit.cache_clear()
        return provenance.commit()

    head = git(tmp_path, "rev-parse", "HEAD")[:10]
    assert commit() == head
    notes.write_text("two\n")
    assert commit() == head, "files that compute nothing do not count"
    code.write_text("two\n")
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
    (tmp_path / "theirs.py").write_text("x = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "theirs")
    inside = tmp_path / ".venv" / "site-packages"
    (inside / "pfl_core").mkdir(parents=True)
    (inside / "pfl_core" / "ops.py").write_text("x = 1\n")
    monkeypatch.setattr(provenance, "ROOT", inside)
    provenance.commit.cache_clear()
    assert provenance.commit() == "unknown"
    provenance.commit.cache_clear()


def test_code_of_a_notebook_cell_is_one_line():
    with pytest.raises(ValueError, match="put it into a module and import it"):
        provenance.code_hash(["__main__"])

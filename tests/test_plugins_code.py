"""The hash of a user's module and its imports, without libraries and this package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pfl_core import plugins as outside

METHOD = '''
"""A module."""
import math

from HELPER import half


class Method:
    def round(self, x):
        return half(x)
'''
HALF = "def half(x):\n    return x / 2\n"
THIRD = HALF.replace("2", "3")
PLACES = {"a package": "somebodys_package", "a folder": ""}

Hash = Callable[..., str]


def forget() -> None:
    """Sources are read once after each load; this is another process."""
    outside._LOADS.clear()
    outside._HASHES.clear()
    outside.is_users_own.cache_clear()
    importlib.invalidate_caches()


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    """The folder of a method's module and a helper module."""
    return request.param


@pytest.fixture
def hashed(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hash]:
    """``hashed(method, helper)``: the hash of a method's module with these sources; HELPER and PACKAGE are names."""
    package = PLACES[place]
    folder = tmp_path / package
    folder.mkdir(exist_ok=True)
    if package:
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(method: str = METHOD, helper: str = HALF) -> str:
        helper_name, method_name = (f"{package}.{m}".lstrip(".") for m in ("helper_of_test", "method_of_test"))
        for name, source in (("method_of_test", method), ("helper_of_test", helper)):
            named = source.replace("HELPER", helper_name).replace("METHOD", method_name).replace("PACKAGE", package)
            (folder / f"{name}.py").write_text(named, encoding="utf-8")
        forget()
        return outside.code_of(method_name)

    yield write
    for name in [n for n in sys.modules if n.startswith("somebodys_package")]:
        del sys.modules[name]
    forget()


def test_the_hash_depends_on_every_byte(hashed):
    before = hashed(METHOD)
    assert hashed(METHOD) == before
    assert hashed(METHOD + "# a comment\n") != before


BY_NAME = ["from HELPER import half", "import HELPER", "import math, HELPER as h", "def f():\n    import HELPER"]
IN_PACKAGES = ["from PACKAGE import helper_of_test", "from . import helper_of_test", "from .helper_of_test import half"]


@pytest.mark.parametrize(
    ("place", "line"),
    [(place, line) for place in PLACES for line in BY_NAME] + [("a package", line) for line in IN_PACKAGES],
    indirect=["place"],
)
def test_imports_are_followed(line, hashed):
    method = METHOD.replace("from HELPER import half", line)
    assert hashed(method, HALF) != hashed(method, THIRD)


def test_files_that_are_not_imported_do_not_change_the_hash(hashed):
    method = METHOD.replace("from HELPER import half", "")
    assert hashed(method, HALF) == hashed(method, THIRD)


def test_circular_imports(hashed):
    assert hashed(METHOD, "import METHOD\n" + HALF) != hashed(METHOD, "import METHOD\n" + THIRD)


def test_libraries_and_this_package_do_not_change_the_hash():
    assert not any(map(outside.is_users_own, ("torch.nn", "json", "sys", "pfl_core.ops", "no_such_module")))


TOO_DEEP = [b"x = " + b"-" * 100_000 + b"1", b"x = a" + b".b" * 100_000]


@pytest.mark.parametrize("source", [b"def f(:", b"x = '\0'", b"\xff\xfe", *TOO_DEEP])
def test_a_file_that_is_not_python_is_named(source, tmp_path, monkeypatch):
    (tmp_path / "not_python.py").write_bytes(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    with pytest.raises(ValueError, match=r"module not_python is not Python .*; correct .*not_python\.py"):
        outside.code_of("not_python")


@pytest.mark.parametrize("name", ["../mine", "", "a..b", "a b"])
def test_a_text_that_is_no_module_name_is_refused(name):
    with pytest.raises(ValueError, match="is not a module name; give package.module:function"):
        outside.code_of(name)


def test_code_of_a_notebook_cell_is_one_line():
    with pytest.raises(ValueError, match="put it into a module and import it"):
        outside.code_of("__main__")


# ---- the code that runs ---------------------------------------------------------------------------------------------

MINE = """
from dataclasses import dataclass
from functools import cache
import mine_helper
from mine_helper import half

RATE = 0.5
calls = 0

def plain(x, by=1.0, *, to=2):
    return x * by + to

@cache
def kept(x):
    return x + 1

@dataclass
class Method:
    alpha: float = 0.3

    @property
    def beta(self):
        return self.alpha + 1

    @staticmethod
    def gamma():
        return [x + 4 for x in range(3)]

def call():
    global calls
    calls += 1
"""
MINE_HELPER = "def half(x):\n    return x / 2\n"
EDITS = [
    *[
        ("RATE = 0.5", "RATE = 0.6"),
        ("by=1.0", "by=1.5"),
        ("to=2", "to=3"),
        ("x * by", "x / by"),
        ("return x + 1", "return x"),
    ],
    *[("alpha: float = 0.3", "alpha: float = 0.4"), ("self.alpha + 1", "self.alpha"), ("x + 4", "x + 5")],
]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``mine(old, new)`` writes a user's module, and its helper, with a change."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # else an edit within a second would not be loaded

    def write(old: str = "", new: str = "") -> None:
        for name, source in (("mine_loaded", MINE), ("mine_helper", MINE_HELPER)):
            (tmp_path / f"{name}.py").write_text(source.replace(old, new) if old else source, encoding="utf-8")

    write()
    forget()
    yield write
    for name in ("mine_loaded", "mine_helper"):
        sys.modules.pop(name, None)
    forget()


@pytest.mark.parametrize(("old", "new"), EDITS)
def test_the_hash_is_that_of_the_code_in_memory(old, new, mine):
    module = importlib.import_module("mine_loaded")
    first = outside.code_of("mine_loaded")
    mine(old, new)
    assert outside.code_of("mine_loaded") == first, "edited, not reloaded"
    importlib.reload(module)
    assert (second := outside.code_of("mine_loaded")) != first, "reloaded"
    mine()
    importlib.reload(module)
    assert outside.code_of("mine_loaded") == first != second, "and back"


@pytest.mark.parametrize(("old", "new"), EDITS)
def test_code_that_was_edited_between_its_import_and_its_first_use_is_refused(old, new, mine):
    module = importlib.import_module("mine_loaded")
    module.call()  # a counter may change
    mine(old, new)
    with pytest.raises(ValueError, match="module mine_loaded runs other code than mine_loaded has on disk"):
        outside.code_of("mine_loaded")
    importlib.reload(module)
    assert outside.code_of("mine_loaded")


def test_a_function_of_a_module_that_was_reloaded_alone_is_refused(mine):
    """`from mine_helper import half` keeps the old function."""
    module = importlib.import_module("mine_loaded")
    first = outside.code_of("mine_loaded")
    mine("x / 2", "x / 3")
    importlib.reload(sys.modules["mine_helper"])
    with pytest.raises(ValueError, match="module mine_loaded runs other code than mine_helper has on disk"):
        outside.code_of("mine_loaded")
    importlib.reload(module)
    assert outside.code_of("mine_loaded") != first


def test_a_comment_or_another_line_is_no_other_code(mine):
    importlib.import_module("mine_loaded")
    mine("RATE = 0.5", "# half\nRATE = 0.5")
    assert outside.code_of("mine_loaded")

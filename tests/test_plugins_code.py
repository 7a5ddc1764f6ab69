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
    """Sources are read once in a process; this is another process."""
    outside.code_of.cache_clear()
    outside._is_users_own.cache_clear()
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
    assert not any(map(outside._is_users_own, ("torch.nn", "json", "sys", "pfl_core.ops", "no_such_module")))


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

"""Lookup by name: functions registered in the package, and a user's functions as ``package.module:function``."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from pfl_core.options import choices
from pfl_core.seeding import Key, seeded

PACKAGE = "pfl_core"
INSTALLED = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def find(kind: str, name: str, table: Mapping[str, Callable]) -> Callable:
    """The function registered in ``table`` under ``name``, or imported from ``package.module:function``.

    ``kind`` ("model", "partition", ...) is used in error messages. Raises ValueError for an unknown name.
    """
    if ":" not in name:
        if name in table:
            return table[name]
        raise ValueError(f"unknown {kind} {name!r}{choices(name, table)}, or package.module:function for your own")
    module_name, _, attribute = name.partition(":")
    if not _is_module_name(module_name):
        raise ValueError(f"{kind} {name!r}: {module_name!r} is not a module name; give package.module:function")
    try:
        with seeded(0, "import", module_name) if module_name not in sys.modules else nullcontext():
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything while it is imported
        reason = f"{type(error).__name__}: {text_of(error)}"
        top = module_name.partition(".")[0]
        missing = isinstance(error, ModuleNotFoundError) and error.name == top
        hint = f"start in the folder that has {top}, or add it to PYTHONPATH" if missing else "correct the module"
        raise ValueError(f"{kind} {name!r}: {module_name} cannot be imported ({reason}); {hint}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ValueError(f"{kind} {name!r}: module {module_name} has no function {attribute!r}")
    return function


def _is_module_name(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def text_of(error: BaseException) -> str:
    """The message of an error, or "" if a user's exception class fails to give one."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # its __str__ may raise anything
        return ""


@contextmanager
def users_code(kind: str, name: str, seed: int = 0, *key: Key) -> Iterator[None]:
    """Call a user's function ``module:function`` in here: what it draws from global generators depends on seed and key
    alone, and what it raises becomes a ValueError of one line. Other functions are not affected.
    """
    try:
        with seeded(seed, *(key or (kind, name))) if ":" in name else nullcontext():
            yield
    except (Exception, SystemExit) as error:
        if ":" not in name:
            raise
        reason = (text_of(error).splitlines() or [""])[0]
        raise ValueError(f"{kind} {name!r} failed ({type(error).__name__}: {reason}); correct the function") from error


@cache
def code_of(module: str) -> str:
    """Hash of a user's module: the bytes of its file and of all files that it imports, directly or indirectly.

    Installed libraries and this package are left out; the record stores their versions. Each process reads a file once.
    Raises ValueError for ``__main__``, which another process cannot import, for a text that is no module name, and for
    a file that is not Python.
    """
    if not _is_module_name(module):
        raise ValueError(f"{module!r} is not a module name; give package.module:function")
    pending, sources = [module], {}
    while pending:
        name = pending.pop()
        spec = _spec(name) if name not in sources else None
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            sources[name] = Path(spec.origin).read_bytes()
            try:
                imported = list(_imports(name, spec, sources[name]))
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
                reason = str(error) or type(error).__name__
                raise ValueError(f"module {name} is not Python ({reason}); correct {spec.origin}") from None
            pending += [other for other in imported if _is_users_own(other)]
    digest = hashlib.blake2b(digest_size=16)
    for name, source in sorted(sources.items()):
        digest.update(f"{name} {len(source)}\n".encode() + source)
    return digest.hexdigest()


def _imports(module: str, spec: ModuleSpec, source: bytes) -> Iterator[str]:
    """All names that a module imports. A name may be a module, or an object inside a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # from . import x
                is_package = spec.submodule_search_locations is not None
                parent = module.split(".")[: (1 if is_package else 0) - node.level or None]
                base = ".".join([*parent, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def _is_users_own(name: str) -> bool:
    """Whether a name belongs to a module that is not part of this package, not installed and not built in."""
    top = name.partition(".")[0]
    if top == PACKAGE:
        return False
    if (spec := _spec(top)) is None:
        return False
    folders = spec.submodule_search_locations or ()  # of a package
    paths = [Path(place) for place in (*folders, spec.origin) if place]
    return any(p.exists() for p in paths) and not any(p.is_relative_to(lib) for p in paths for lib in INSTALLED)


def _spec(module: str) -> ModuleSpec | None:
    """The import spec of a module; None if there is no such module. Its parent packages are imported."""
    if module == "__main__":
        raise ValueError(
            "code of a notebook cell or script cannot be part of a run: put it into a module and import it"
        )
    package = module.rpartition(".")[0]
    if package and ((parent := _spec(package)) is None or parent.submodule_search_locations is None):
        return None  # an object inside a module, not a module
    return importlib.util.find_spec(module)

"""Names to functions: what the package registers, and what a user brings as ``package.module:function``."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

PACKAGE = "pfl_core"
INSTALLED = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def find(kind: str, name: str, table: Mapping[str, Callable]) -> Callable:
    """The function that ``table`` registers under ``name``, or the one that ``package.module:function`` names.

    ``kind`` ("model", "partition", ...) is for the error only. Raises ValueError if nothing has that name.
    """
    if ":" not in name:
        if name in table:
            return table[name]
        known = ", ".join(table)
        raise ValueError(f"unknown {kind} {name!r}: use one of {known}, or package.module:function for one of your own")
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ValueError(f"{kind} {name!r}: {module_name!r} is no module's name; give package.module:function")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the module does when it is imported
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{kind} {name!r}: {module_name} cannot be imported ({why}); is it on the path?") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ValueError(f"{kind} {name!r}: module {module_name} has no function {attribute!r}")
    return function


@cache
def code_of(module: str) -> str:
    """Hash of a user's module: the bytes of its file and of every file that it imports, directly or not.

    Installed libraries and this package are left out: the record names their versions. Files are read once a process.
    Raises ValueError for ``__main__``, whose code is in no module that another process could import.
    """
    todo, sources = [module], {}
    while todo:
        name = todo.pop()
        spec = _spec(name) if name not in sources else None
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            sources[name] = Path(spec.origin).read_bytes()
            todo += [other for other in _imports(name, spec, sources[name]) if _is_users_own(other)]
    digest = hashlib.blake2b(digest_size=16)
    for name, source in sorted(sources.items()):
        digest.update(f"{name} {len(source)}\n".encode() + source)
    return digest.hexdigest()


def _imports(module: str, spec: ModuleSpec, source: bytes) -> Iterator[str]:
    """The names that a module imports anywhere in its code; a name may be a module or something inside one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # from . import x
                is_package = spec.submodule_search_locations is not None
                above = module.split(".")[: (1 if is_package else 0) - node.level or None]
                base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def _is_users_own(name: str) -> bool:
    """Whether a name is a module that is neither this package's nor installed nor built in."""
    top = name.partition(".")[0]
    if top == PACKAGE:
        return False
    spec = _spec(top)
    places = [] if spec is None else [Path(at) for at in (*(spec.submodule_search_locations or ()), spec.origin) if at]
    return any(at.exists() for at in places) and not any(at.is_relative_to(lib) for at in places for lib in INSTALLED)


def _spec(module: str) -> ModuleSpec | None:
    """Where a module lies; None if there is none. The packages around it are imported, as for any use of it."""
    if module == "__main__":
        raise ValueError(
            "code of a notebook cell or script cannot be part of a run: put it into a module and import it"
        )
    package = module.rpartition(".")[0]
    if package and ((around := _spec(package)) is None or around.submodule_search_locations is None):
        return None  # something inside a module, no module itself
    return importlib.util.find_spec(module)

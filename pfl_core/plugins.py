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

from pfl_core.files import fingerprint
from pfl_core.options import choices, did_you_mean

PACKAGE = "pfl_core"
INSTALLED = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]


class MissingCodeError(ValueError):
    """A user's module cannot be imported, or does not have the class or function."""


class MissingCodeWarning(UserWarning):
    """A stored run is skipped, because of a MissingCodeError."""


def find(kind: str, name: str, table: Mapping[str, Callable]) -> Callable:
    """The function registered in ``table`` under ``name``, or imported from ``package.module:function``.

    ``kind`` ("model", "partition", ...) is used in error messages. Raises ValueError for an unknown name, and
    MissingCodeError if the import fails.
    """
    if ":" not in name:
        if name in table:
            return table[name]
        raise ValueError(f"unknown {kind} {name!r}{choices(name, table)}, or package.module:function for your own")
    module_name, _, attribute = name.partition(":")
    if not _is_module_name(module_name):
        raise ValueError(f"{kind} {name!r}: {module_name!r} is not a module name; give package.module:function")
    from pfl_core.seeding import seeded  # imports torch

    try:
        with seeded(0, "import", module_name) if module_name not in sys.modules else nullcontext():
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything while it is imported
        reason = f"{type(error).__name__}: {text_of(error)}"
        top = module_name.partition(".")[0]
        missing = isinstance(error, ModuleNotFoundError) and error.name == top
        hint = f"start in the folder that has {top}, or add it to PYTHONPATH" if missing else "correct the module"
        raise MissingCodeError(f"{kind} {name!r}: {module_name} cannot be imported ({reason}); {hint}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        alike = did_you_mean(attribute, [known for known, value in vars(module).items() if callable(value)])
        raise MissingCodeError(f"{kind} {name!r}: module {module_name} has no class or function {attribute!r}{alike}")
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
def users_code(kind: str, name: str, seed: int = 0, *key: str | int) -> Iterator[None]:
    """Call a user's function ``module:function`` in here: what it draws from global generators depends on seed and key
    alone, and what it raises becomes a ValueError of one line. Other functions are not affected.
    """
    from pfl_core.seeding import seeded

    try:
        with seeded(seed, *(key or (kind, name))) if ":" in name else nullcontext():
            yield
    except (Exception, SystemExit) as error:
        if ":" not in name:
            raise
        reason = (text_of(error).splitlines() or [""])[0]
        raise ValueError(f"{kind} {name!r} failed ({type(error).__name__}: {reason}); correct the function") from error


Loads = dict[str, tuple[ModuleSpec | None, bytes]]  # module -> its load (None: not loaded yet), and its source then
_LOADS: Loads = {}  # of all modules of the user that were seen in this process
_HASHES: dict[str, tuple[Loads, str]] = {}  # module -> the loads of the module and its imports, and their hash
reloads = 0  # how often a module was seen loaded anew; worker processes are started anew then


def code_of(module: str) -> str:
    """Hash of a user's module: the bytes of its file and of all files that it imports, directly or indirectly.

    It is that of the code in memory: a file counts as it was when its module was loaded. Installed libraries and this
    package are left out; the record stores their versions. Raises ValueError for ``__main__``, which another process
    cannot import, for a text that is no module name, for a file that is not Python, and for one that was changed after
    it was imported and before this process first read it.
    """
    from pfl_core.loaded import check_loaded

    if not _is_module_name(module):
        raise ValueError(f"{module!r} is not a module name; give package.module:function")
    if module in _HASHES and all(_load_of(name) is load for name, (load, _) in _HASHES[module][0].items()):
        return _HASHES[module][1]
    pending, loads = [module], Loads()
    while pending:
        name = pending.pop()
        spec = _spec(name) if name not in loads else None
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            loads[name] = _seen(name, spec.origin)
            try:
                imported = list(_imports(name, spec, loads[name][1]))
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
                reason = str(error) or type(error).__name__
                raise ValueError(f"module {name} is not Python ({reason}); correct {spec.origin}") from None
            pending += [other for other in imported if is_users_own(other)]
    check_loaded({name: source for name, (load, source) in loads.items() if load})
    digest = hashlib.blake2b(digest_size=16)
    for name, (_, source) in sorted(loads.items()):
        digest.update(f"{name} {len(source)}\n".encode() + source)
    _HASHES[module] = loads, digest.hexdigest()
    return digest.hexdigest()


def version_of(module: str, owner: object) -> str:
    """Hash of a user's module, see ``code_of``, and of the files that the function or class ``owner`` reads.

    These are named by its attribute ``files``, as it opens them. Raises ValueError if one cannot be read.
    """
    code, files = code_of(module), getattr(owner, "files", ())
    if not isinstance(files, list | tuple) or not all(isinstance(file, str | Path) for file in files):
        raise ValueError(f"{module}: files={files!r} are not names of files; give a list such as ['sites.csv']")
    sums = [_sum_of_file(module, Path(file).absolute()) for file in files]
    return hashlib.blake2b(" ".join((code, *sums)).encode(), digest_size=16).hexdigest() if sums else code


def _sum_of_file(module: str, path: Path) -> str:
    try:
        state = fingerprint(path)
        return _sum(path, state) if state else _sum.__wrapped__(path, state)
    except OSError as error:
        raise ValueError(f"{module}: {path}, named in `files`, cannot be read ({error.strerror})") from None


@cache
def _sum(path: Path, state: tuple[int, ...] | None) -> str:
    """Hash of a file; it is read again only if its ``fingerprint`` is another one."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _load_of(module: str) -> ModuleSpec | None:
    """The spec of a loaded module, a new object after each load; None if it is not loaded."""
    return getattr(sys.modules.get(module), "__spec__", None)


def _seen(module: str, file: str) -> tuple[ModuleSpec | None, bytes]:
    """The load of a module, and its source: read at the first call after each load."""
    global reloads
    known, load = _LOADS.get(module), _load_of(module)
    if known is None or known[0] is not load:
        reloads += known is not None and known[0] is not None
        _LOADS[module] = load, Path(file).read_bytes()
    return _LOADS[module]


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
def is_users_own(name: str) -> bool:
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

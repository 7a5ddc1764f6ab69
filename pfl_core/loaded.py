"""Compares loaded modules with their source: a module that was edited and not reloaded still runs its old code."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType
from typing import Any

CONSTANTS = (bool, int, float, str, tuple, type(None))  # a value of another type may change while it is used


def check_loaded(sources: Mapping[str, bytes]) -> None:
    """Raise ValueError if functions or constants of a loaded module are not those of its source (name -> bytes).

    This includes functions that it imported from another of these modules before that one was reloaded.
    """
    # other loaders may change the code: pytest rewrites the assertions of tests
    loaded = {n: m for n in sources if type(getattr(m := sys.modules[n], "__loader__", None)) is SourceFileLoader}
    files = {module.__file__: name for name, module in loaded.items()}
    known = {name: {*_codes(compile(sources[name], "", "exec", dont_inherit=True))} for name in loaded}
    for name, module in loaded.items():
        codes = [function.__code__ for function in _functions(vars(module).values(), files.values())]
        changed = {of for code in codes if (of := files.get(code.co_filename)) and _content(code) not in known[of]}
        for path, value in _constants(ast.parse(sources[name])):
            with suppress(AttributeError):
                current = functools.reduce(getattr, path, module)
                same_kind = type(current) in CONSTANTS or path[-1] == "__kwdefaults__"
                changed |= {name} if same_kind and repr(current) != repr(value) else set()
        if changed:
            raise ValueError(
                f"module {name} runs other code than {' and '.join(sorted(changed))} has on disk, which was edited "
                "after it was imported; reload the modules, or restart Python"
            )


def _codes(code: CodeType) -> Iterator[tuple]:
    """The content of all functions and classes in the code of a module."""
    yield _content(code)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _content(code: CodeType) -> tuple:
    """What code does, without its place in the file."""
    consts = tuple(_content(c) if isinstance(c, CodeType) else (type(c), c) for c in code.co_consts)
    return code.co_qualname, code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars


def _functions(values: Iterable[Any], modules: Iterable[str], within: str = "") -> Iterator[FunctionType]:
    """The functions among these values, also decorated ones, and those of classes of these modules."""
    for value in values:
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, functools.partial | functools.cached_property):
            value = value.func
        if isinstance(value, type) and value.__module__ in modules and value.__qualname__.startswith(within):
            yield from _functions(vars(value).values(), modules, f"{value.__qualname__}.")
        elif isinstance(value, FunctionType | functools._lru_cache_wrapper):
            with suppress(ValueError):  # it wraps itself
                yield inspect.unwrap(value)


def _constants(scope: ast.Module | ast.ClassDef) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Literals of a module and its classes that are assigned once, and the defaults of functions: path -> value."""
    stored = Counter(_stored(scope))
    stored.update(name for node in ast.walk(scope) if isinstance(node, ast.Global) for name in node.names)
    for node in scope.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and stored[target.id] == 1:
            with suppress(ValueError, TypeError):
                yield (target.id,), ast.literal_eval(node.value)  # type: ignore[attr-defined]
        elif isinstance(node, ast.ClassDef):
            yield from (((node.name, *path), value) for path, value in _constants(node))
        elif isinstance(node, ast.FunctionDef) and not node.decorator_list:
            keywords = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            with suppress(ValueError, TypeError):
                yield (node.name, "__defaults__"), tuple(map(ast.literal_eval, node.args.defaults)) or None
            with suppress(ValueError, TypeError):
                defaults = {arg.arg: ast.literal_eval(value) for arg, value in keywords if value}
                yield (node.name, "__kwdefaults__"), defaults or None


def _stored(node: ast.AST) -> Iterator[str]:
    """The names that are assigned in a module or class itself, not in its functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _stored(child)

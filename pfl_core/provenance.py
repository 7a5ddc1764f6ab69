"""Where a result comes from: versions, commit, and a hash of the code that computed it."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import platform
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

PACKAGE = "pfl_core"
ROOT = Path(__file__).resolve().parent.parent  # the checkout: notebooks/, data/, figures/ lie beside the package


def describe() -> dict[str, str]:
    """Versions, commit and machine kind, as plain strings."""
    packages = ("torch", "numpy", "scikit-learn")
    return {
        "python": platform.python_version(),
        **{name: version(name).partition("+")[0] for name in packages},
        "commit": commit(),
        "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} thread(s)",
    }


@cache
def commit() -> str:
    """The checkout's commit, with a + where files differ from it; "unknown" outside a checkout."""
    try:
        run = [subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True) for args in _GIT]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return run[0].stdout.strip() + ("+" if run[1].stdout.strip() else "")


_GIT = (("rev-parse", "--short=10", "HEAD"), ("status", "--porcelain", "--untracked-files=no", "--", PACKAGE))


def code_hash(modules: Iterable[str], alone: Iterable[str] = ()) -> str:
    """Hash of the syntax trees, without comments and docstrings, of ``modules`` and all that they import here.

    ``alone`` are modules whose imports do not count (readers of data: their files have a checksum of their own).
    """
    names = set(alone)
    todo = set(modules)
    while todo:
        name = todo.pop()
        names.add(name)
        todo |= _imports(name) - names
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(names):
        digest.update(f"{name}:{_skeleton(name)}\n".encode())
    return digest.hexdigest()


@cache
def _tree(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    source = Path(spec.origin).read_text() if spec and spec.origin and spec.origin.endswith(".py") else ""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            del body[0]
    return tree


@cache
def _skeleton(module: str) -> str:
    return hashlib.blake2b(ast.dump(_tree(module)).encode(), digest_size=16).hexdigest()


@cache
def _imports(module: str) -> set[str]:
    """Modules of this package that a module imports by name."""
    names: set[str] = set()
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {n for n in names if n.startswith(f"{PACKAGE}.") and _is_module(n)}


@cache
def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False

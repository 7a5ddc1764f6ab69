"""Where a result comes from: versions, commit, and a hash of the code that computed it."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import platform
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import version
from pathlib import Path

import torch

PACKAGE = "pfl_core"
ROOT = Path(__file__).resolve().parent.parent  # the checkout: notebooks/, data/, figures/ lie beside the package
# Modules that were made faster, divided, or changed where no stored run goes, and give what the one before gave, to the
# bit: hash of the new one -> hash of the old one, under whose name its runs go on; "" for the part that moved out of
# it. Nothing is listed unless stored runs, made again, had the same numbers and the same hash of the final state; a
# hash that no module has any more is dropped (a test sees to it).
SAME_RESULTS = {
    # top_count brackets the cut-off and compares with numpy; changes and steps are taken block by block; a second pass
    # trains its rows in place; gradients of large networks stay where they are until the step
    "d5538750fdd581023291f7f42f35c626": "daccd6f199122ef8338489821ae8d6d8",  # ops
    "a03584508b7aad8f957e4fdd7f65385d": "8a4fa8c506fb2b6066bf494449e69232",  # layout
    "6ec09c8c7bdb2fc54bf3de94d0c4e48a": "817760f1ee345e6f72edd9b4afb75dd8",  # federation
    "901abc0acb839c9762106c9a5bdb5e88": "9b51aa1d7d06da37a4e41a81283572cb",  # federation.rows
    "d2507cf5f9382058d319046b49221a41": "c62fb5e413f0495d27c128e6eb6fde72",  # federation.bound
    "34fe5003188e6a2bfe36f45c3ac309fe": "cf3153b10ef62b4b7c5d1b36aa0c07be",  # federation.records
    "e95a4cb5789410f50c0393ff1c158a0d": "26cbb6e5fec667bf029f1274768afc0b",  # algorithms.alternating
    "784567fb6bde5bdbaf61f7aaca00544a": "23e692daa045ea9223099899321840e7",  # algorithms.fedselect
    "261f6bd484a550215225d8d50288fe93": "701ca682f4655fda52dcc6ed1944fa21",  # algorithms.fedselect_ablation
    # refused: numbers that are not finite, negative rates, modules that fail, labels as large as a file, no public set,
    # no shards, dense nets of impossible widths
    "138ef116d3b1c1850014681594b7818f": "a131ee9fad88ba5d2b99e85ee696f03a",  # algorithm
    "fcd8229c7c03aaacfcd28c2537e75ee2": "69834f26d1098d3e9db795e27ba12445",  # outside
    "3affb2fc3287866d8027e7f2ef1f4685": "f6410f0004cbc457d229ad9bd28be791",  # data.npz
    "23221b9e10e87835874684ff2c14613d": "3477cd9a3d1ba74902ed17e2cd0ba944",  # algorithms.fedmd
    "878c60317136ffa8234897b2cc0c1722": "7996f0eaeb85cc009818adea53a00676",  # models
    "6cc646bab7cf9a00344b3ffaad07eb66": "d60b8736150fdcaed1af6f0466bc3fb1",  # partition.legacy
    # FedPeWS refuses bases that it would train wrongly; Figures 14 and 15 have a second view; the
    # rows that learn have names
    "3b099ed76715c23295edf0bee2da75f4": "1c1c2439db0b84ba4cafbf9ab0db8c88",  # algorithms.fedpews
    "4c081050f7c3fae7583c3cf171f6cb70": "",  # algorithms.fedpews_fixed, from fedpews
    "756bc041015d8e98b5b4e4c09853a27b": "3207ea4969bdb40660a37a944c1ce6d2",  # federation.stack
    "260b5b3ad573755691a9a1cfe9d013a4": "",  # federation.tape, from stack
    # a client's momentum may stay with it, off unless asked for
    "686d442f45c7b045bc7fd9402c72c132": "",  # algorithms.momentum
    "cd8ccc901cd1b727dad14494ea98b4dd": "c3a76a4dd09fb9ab093e7b062bfbc8df",  # algorithms.fedavg
    "e19c54cf5fc8e8686f404e95c7b3da59": "9836054498f8f715584767bac1814d7f",  # algorithms.local
    "d388691332c881626a36b9d9121a85c4": "35fcd86a114a006ec617afe2d196016c",  # algorithms.partial
    "ff1407e0fa2e900cbc9f0ad6ff928b14": "0e78bcee72dd2855f7baffd0d8302174",  # algorithms.ditto
    "15356bc54539228501f66b983053f00d": "08a08d0c2881b651668d625ae350d1be",  # algorithms.fedem
    "5c7c6387a8edf08436de412a0196d0d8": "eeec4f465af357c36c767868fe869b57",  # algorithms.heterofl
    "4b12a3dfa59310f5cbd4eae5312b5f05": "6c74e23ff597d23de7b3230addda69f1",  # algorithms.fedmask
    "74e73464c6687bf1e53893766f5a79a3": "5374512800957b8fb4c1dcca3e3029fb",  # algorithms.perfedavg
    "34f9ac9474623e52074f9a8174409c98": "e1a3a64b1bcdefaf377edc29b8722b0b",  # algorithms.fedpac
    "af637560c3aaacd2cb5b8b6fe3396b48": "9880c53c6f205b4820a3c973f6cc0fe1",  # algorithms.pfedme
    "e67793fbb789047bf64bdbdfa46de586": "86b41e52426a227f0f2572d8ce7ff2de",  # algorithms.scaffold
    "6449c7226ee538a4651258fb757e3526": "d13baa687b6ab6566d1d5b452aa10857",  # algorithms.moon
    # blocks of one size over the whole model, a layout of their own
    "5d35b1436cca79a9c3e2f5d3de7d2a0d": "5eab50eb5ab0ab8ff313bf48e38cce01",  # algorithms.pfedgate_blocks
    "498bd5bf2a44960ab4511aeb5a3281cb": "a835119a208d1e67174cad6ba12fd9f2",  # algorithms.pfedgate_options
    # mended where no stored run goes: novel clients, and test samples sorted by label, heed logit_relu and last_batch
    "bb500537ca2b23e56a66bced5d524158": "76417e3d6b1eb14d37ecc30090807150",  # algorithms.pfedgate
    "ddb561ced647e6d8a0cdc68fd32474b3": "2a52f55ba0b4e3ffa023f1daac30feec",  # algorithms.pfedgate_probe
}
LIBRARIES = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}


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
    """The checkout's commit, with a + where files differ from it; "unknown" outside a checkout of ours."""
    try:
        run = [subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True) for args in _GIT]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    head, changes, inside = (part.stdout.strip() for part in run)
    return "unknown" if inside else head + ("+" if changes else "")  # inside: installed within somebody's checkout


_GIT = (
    ("rev-parse", "--short=10", "HEAD"),
    ("status", "--porcelain", "--untracked-files=no", "--", PACKAGE),
    ("rev-parse", "--show-prefix"),
)


def code_hash(modules: Iterable[str], alone: Iterable[str] = ()) -> str:
    """Hash of the syntax trees, without comments and docstrings, of ``modules`` and all that they import.

    Installed libraries do not count, nor what is imported for type checkers only. ``alone`` are modules whose imports
    do not count (readers of data: their files have a checksum of their own).
    """
    return _code_hash(frozenset(modules), frozenset(alone))


@cache
def _code_hash(modules: frozenset[str], alone: frozenset[str]) -> str:
    names = set(alone)
    todo = set(modules)
    while todo:
        name = todo.pop()
        names.add(name)
        todo |= _imports(name) - names
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(names):
        if skeleton := _skeleton(name):
            digest.update(f"{name}:{skeleton}\n".encode())
    return digest.hexdigest()


@cache
def _tree(module: str) -> ast.Module:
    spec = _spec(module)
    tree = ast.parse(Path(spec.origin).read_text() if spec and spec.origin and spec.origin.endswith(".py") else "")
    for node in _statements(tree):
        body = getattr(node, "body", None)
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            del body[0]
    return tree


@cache
def _skeleton(module: str) -> str:
    digest = hashlib.blake2b(ast.dump(_tree(module)).encode(), digest_size=16).hexdigest()
    return SAME_RESULTS.get(digest, digest)


@cache
def _imports(module: str) -> frozenset[str]:
    """Modules, but for libraries, that a module imports by name."""
    names: set[str] = set()
    for node in _seen_at_run_time(_tree(module)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return frozenset(n for n in names if n != PACKAGE and _is_followed(n.partition(".")[0]) and _spec(n))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but expressions, in which there is neither an import nor a docstring."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _statements(child)


def _seen_at_run_time(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements but those that only a type checker sees."""
    hidden = set()
    for node in _statements(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            hidden |= {id(each) for child in node.body for each in _statements(child)}
        if id(node) not in hidden:
            yield node


def _absolute(module: str, node: ast.ImportFrom) -> str:
    """The module that ``from ... import`` names, dots resolved."""
    if not node.level:
        return node.module
    is_package = _spec(module).submodule_search_locations is not None
    above = module.split(".")[: (1 if is_package else 0) - node.level or None]
    return ".".join([*above, *([node.module] if node.module else [])])


@cache
def _is_followed(top: str) -> bool:
    """Whether a top-level name is this package or a user's own code, and no library."""
    spec = _spec(top)
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), *filter(None, [spec.origin])]
    return (
        top == PACKAGE
        or any(Path(at).is_file() or Path(at).is_dir() for at in places)
        and not any(Path(at).is_relative_to(library) for at in places for library in LIBRARIES)
    )


@cache
def _spec(module: str) -> ModuleSpec | None:
    """Where a module lies, found without running it; None if there is none."""
    top, *rest = module.split(".")
    if top == "__main__":
        raise ValueError(
            "code of a notebook cell or script cannot be part of a run: put it into a module and import it"
        )
    spec = importlib.util.find_spec(top)
    for name in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{name}", spec.submodule_search_locations)
    return spec

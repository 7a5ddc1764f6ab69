"""Bad input: command lines, values from Python, and .npz files. It is refused with one line, or it works."""

from __future__ import annotations

import contextlib
import io
import json
import math
import time
import warnings
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from pfl_core import Training, methods
from pfl_core.cli import main
from pfl_core.data import Dataset
from pfl_core.data.npz import read_npz
from pfl_core.options import field_types
from pfl_core.runs import RunSpec, Store
from tests.fuzz.cases import SMALL, SURVIVED, Wrong, check_message
from tests.runs.outside import HERE

SLOW_SECONDS = 15.0
USERS = "tests.fuzz.users"
# fields that ask for more work the larger they are: a large value is no bad input
MORE_WORK = ("epochs", "rounds", "steps", "iterations", "hidden", "probe", "passes")
TEXTS = [
    "",
    " ",
    ":",
    "a:",
    ":a",
    "..",
    "/",
    "/dev/null",
    "/proc/self",
    "nan",
    "-inf",
    "0x10",
    "1e999",
    "\u0000"[:0],
    "α",
]
TEXTS += [
    "x" * 3000,
    "9" * 5000,
    "[" * 5000,
    '{"a":' * 2000,
    "-1",
    "0",
    "1.5",
    "true",
    "null",
    "[]",
    "{}",
    '[null, "a"]',
]
TEXTS += [
    f"{USERS}:{name}" for name in ("Raises", "Exits", "Nothing", "net", "number", "rule", "missing", "Interrupts")
]
TEXTS += [f"{USERS}:{name}" for name in ("tokens", "leaks", "lazy", "now")]
TEXTS += [
    "fedselect",
    "digits",
    "mlp",
    "shards:2",
    "a+b",
    "digits+digits",
    '"\\ud800"',
    "10000000000",
    "--",
    "-h=1",
    "%s",
]
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    10**30,
    -(10**18),
    math.nan,
    math.inf,
    -0.0,
    "",
    "x",
    "3",
    b"x",
    [],
    [None],
    {},
]
VALUES += [
    {"name": 3},
    {"name": "x"},
    ["a", 1],
    (1, 2),
    object(),
    float,
    np.float64("nan"),
    np.int64(3),
    np.zeros(2),
    1j,
]
FLAGS = ["--paper", "--preset", "--reading", "--data", "--partition", "--clients", "--model", "--lr", "--batch-size"]
FLAGS += ["--participation", "--seed", "--device", "--scheduler", "--until"]
OWNERS = ["", "data.", "partition.", "model.", "train.", "run."]
OPTIONS = [
    "alpha",
    "resize",
    "channels",
    "normalise",
    "folder",
    "offline",
    "corrupt",
    "corrupt_severity",
    "seed",
    "val",
]
OPTIONS += [
    "classes_per_client",
    "min_size",
    "clip_norm",
    "momentum",
    "milestones",
    "decay",
    "augment",
    "partial_batch",
]
OPTIONS += [
    "eval_every",
    "novel",
    "sampling",
    "participation",
    "paper",
    "changed",
    "train",
    "method",
    "name",
    "base",
    "",
]
COMMANDS = [
    "data",
    "compare",
    "figures --list",
    "figures --dry-run -p SEEDS",
    "figures --dry-run -p OVERRIDES",
    "search",
]
COMMANDS += ["runs list --paper", "runs list --preset", "runs export", "runs clean", "methods", "run", "data --dir", ""]


def command(rng: Random, folder: Path) -> str:
    """`pfl` with arguments of which some are nonsense."""
    argv = _run_command(rng) if rng.random() < 0.7 else [*rng.choice(COMMANDS).split(), rng.choice(TEXTS)]
    shown = " ".join(argument[:60] for argument in argv)
    out, err, began = io.StringIO(), io.StringIO(), time.monotonic()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(folder),
        patch("pfl_core.runs.store.RESULTS", folder / "results"),  # reading the committed records takes seconds
    ):
        try:
            status = main(argv)
        except SystemExit as stop:  # --help
            status = stop.code if isinstance(stop.code, int) else 1
        except BaseException as error:
            error.add_note(f"pfl {shown}")
            raise
    text = err.getvalue()
    lines = [line for line in text.splitlines() if line.startswith("pfl: ")]
    if status not in (0, 1, 2) or "Traceback" in text or (status and len(lines) < 1):
        raise Wrong(f"pfl {shown}: status {status}, {text[:300]!r}")
    if time.monotonic() - began > SLOW_SECONDS:
        raise Wrong(f"pfl {shown}: took {time.monotonic() - began:.0f} s")
    if status and len(text.splitlines()) > 1 and argv[:1] == ["run"]:
        raise Wrong(f"pfl {shown}: {text[:300]!r}")
    for line in lines:
        check_message(line)
    if status == 0 and argv[:1] == ["run"]:
        _check_readable()
    return SURVIVED


def value(rng: Random, folder: Path) -> str:
    """One field of a run, of its training or of its method with nonsense; or a method's field of the wrong type."""
    kind = rng.choice(("run", "training", "method", "part"))
    given: dict[str, Any] = {**SMALL, "method": {"name": "fedavg"}, "rounds": 1}
    owner = {"run": RunSpec, "training": Training}.get(kind)
    wrong = rng.choice(VALUES)
    if owner is None:
        name = rng.choice(sorted(methods()))
        fields = {"name", "reading", *field_types(methods()[name].cls)}
        given["method"] = {"name": name, rng.choice(sorted(fields)): wrong}
    if kind == "part":
        part = rng.choice(("data", "partition", "model"))
        given["method"], given[part] = {"name": "fedavg"}, {**SMALL[part], rng.choice(OPTIONS): wrong}
    try:
        if kind == "training":
            given["train"] = Training(**{rng.choice(sorted(field_types(Training))): wrong})
        elif kind == "run":
            given[rng.choice(sorted(field_types(RunSpec)))] = wrong
        spec = RunSpec(**given)
    except (ValueError, OSError) as error:
        check_message(str(error))
        return SURVIVED
    try:
        same = RunSpec.from_json(json.loads(json.dumps(spec.to_json(), allow_nan=False))).key() == spec.key()
    except ValueError as error:
        raise Wrong(f"accepted, but cannot be read back: {error}") from error
    if not same:
        raise Wrong(f"{given}: read back with another key")
    return SURVIVED


def arrays(rng: Random, folder: Path) -> str:
    """Arrays of a wrong shape, type or length for ``Dataset.from_arrays``; what is accepted is saved and read again."""
    n = rng.choice((0, 1, 8, 8, 8))
    x = _array(rng, rng.choice(((n, 4, 4), (n, 3, 4, 4), (n, 5), (n, 4, 4, 4))), rng.choice((np.uint8, np.float64)))
    y = _array(rng, (n,), rng.choice((np.int64, "U3")))
    more: dict[str, Any] = {"test_share": rng.choice((0, 0.5, 0.99))} if rng.random() < 0.7 else {"test": (x, y)}
    more |= {"source": _array(rng, (n,), np.int64)} if rng.random() < 0.3 else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            data = Dataset.from_arrays(x, y, **more)
            read = read_npz(data.save("mine", folder), "mine")
    except ValueError as error:
        check_message(str(error))
        return SURVIVED
    order = data.is_test.to(torch.uint8).argsort(stable=True)
    if not torch.equal(read.prepare(read.x), data.prepare(data.x)[order]):
        raise Wrong(f"read other samples than were saved: {x.dtype} {x.shape}, {y.dtype} {y.shape}")
    return SURVIVED


def npz_content(rng: Random, folder: Path) -> str:
    """An .npz file with arrays that are missing, too many, or of a wrong shape, type or length."""
    arrays: dict[str, Any] = {}
    for part in ("train", "val", "test"):
        n = rng.choice((0, 1, 8, 8, 8))
        if rng.random() < 0.9:
            arrays[f"{part}_images"] = _array(rng, (n, 4, 4), np.uint8)
        if rng.random() < 0.9:
            arrays[f"{part}_labels"] = _array(rng, (n,), np.int64)
        if rng.random() < 0.3:
            arrays[f"{part}_source"] = _array(rng, (n,), np.int64)
    if rng.random() < 0.3:
        arrays[rng.choice(("about", "train_imagse", "train_images.npy", "mean"))] = rng.choice(
            (np.array("x"), np.zeros(2))
        )
    path = folder / "mine.npz"
    np.savez(path, **arrays)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            data = read_npz(path, "mine")
    except (ValueError, OSError) as error:
        check_message(str(error))
        return SURVIVED
    n = len(data.y)
    consistent = len(data.x) == len(data.is_test) == len(data.source) == n > 0
    if not consistent or int(data.y.min()) < 0 or int(data.y.max()) >= data.num_classes or not data.x.numel():
        raise Wrong(f"accepted: { ({name: (a.dtype, a.shape) for name, a in arrays.items()}) }")
    return SURVIVED


def _run_command(rng: Random) -> list[str]:
    argv = ["run", "fedavg", *f"--data {HERE}:blobs --model mlp --clients 4 --rounds 1".split()]
    if rng.random() < 0.2:
        argv[1] = rng.choice([*sorted(methods()), *TEXTS])
    for _ in range(rng.randint(1, 2)):
        if rng.random() < 0.5:
            argv += [rng.choice(FLAGS), rng.choice(TEXTS)]
        else:
            fields = [*OPTIONS, *(field_types(methods()[argv[1]].cls) if argv[1] in methods() else ())]
            fields = [name for name in fields if not any(word in name for word in MORE_WORK)]
            argv += ["--set", f"{rng.choice(OWNERS)}{rng.choice(fields)}={rng.choice(TEXTS)}"]
    return argv


def _check_readable() -> None:
    """Raise Wrong if a record was stored that cannot be read."""
    store = Store()
    paths = list(store.root.glob("*.json"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for path in paths:
            store.get(path.stem)
            path.unlink(missing_ok=True)
    if caught:
        raise Wrong(f"a stored record cannot be read: {caught[0].message}")


def _array(rng: Random, shape: tuple[int, ...], dtype: type) -> Any:
    """An array of this shape and type, or of another one."""
    kind = rng.random()
    if kind < 0.7:
        return (np.arange(math.prod(shape)) % 2).reshape(shape).astype(dtype)
    other = rng.choice(((), (3,), (8, 2), (8, 4, 4, 4, 4), (8, 0, 0), shape))
    of = rng.choice((np.float32, np.int8, np.uint64, bool, "U3", object, complex, "datetime64[s]"))
    content = np.zeros(other, dtype=of)
    if of is np.float32 and content.size:
        content.flat[0] = rng.choice((np.nan, np.inf, -1, 1e30))
    if of is np.int8:
        content[...] = rng.choice((-1, 100))
    return content

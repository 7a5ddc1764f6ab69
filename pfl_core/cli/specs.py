"""The options that describe runs, shared by ``pfl run`` and ``pfl compare``, and the runs that they describe."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_core.cli.names import check, check_method, complete, data_sets
from pfl_core.cli.text import (
    BadArgument,
    add_scheduler,
    add_stop_after,
    device,
    integer,
    number,
    parts,
    positive,
    value,
    values,
)
from pfl_core.data.registry import check_name, data_dir
from pfl_core.options import choices
from pfl_core.papers import STUDIES, study
from pfl_core.registry import INSTRUMENTS, METRICS, MODULES, PARTITIONS
from pfl_core.study.presets import PRESETS

if TYPE_CHECKING:
    from pfl_core.runs import RunSpec

COMPONENTS = ("data", "partition", "model")  # fields of a run that have a name and options
FRAME_FLAGS = ("clients", "rounds", "participation", "lr", "epochs", "batch_size")  # flags that set a field of a run
LISTS = ("reading", *COMPONENTS, *FRAME_FLAGS)  # flags that accept several values
OPTIONS = ("paper", "preset", *LISTS, "seed", "device", "set", "metrics", "jobs", "log", "dry_run")
MAX_RUNS = 10_000  # of one command
# Without --paper. This project's choice: with these, a shared model learns within 20 rounds although each client has 2
# of the 10 classes. FedAvg ends at 88 %; at rate 0.1 with batches of 16 and momentum 0.9 it ends at 59 %.
TRIAL_TRAINING = {"lr": 0.2, "batch_size": 8, "momentum": 0.0}
MAIN_OPTION = {  # partition -> the option that NAME:VALUE sets
    "shards": "classes_per_client",
    "dirichlet": "alpha",
    "paired_dirichlet": "alpha",
    "pathological": "shards",
    "csv": "file",
}


@dataclasses.dataclass(frozen=True)
class Variation:
    """The runs of one method with one combination of the given values, a run for each seed."""

    method: str
    varied: dict[str, Any]  # options with several values -> the value of these runs
    specs: list[RunSpec]

    @property
    def label(self) -> str:
        """The method and the varied options as text."""
        return ", ".join([self.method, *(f"{name}={given}" for name, given in self.varied.items())])


def add_run_options(command: argparse.ArgumentParser) -> None:
    """All options that describe runs, except the method."""
    add = command.add_argument
    complete(add("--paper", help=f"start from the settings of this paper: {', '.join(STUDIES)}"), STUDIES)
    complete(add("--preset", help=f"size of the paper's experiment: {', '.join(PRESETS)} (default quick)"), PRESETS)
    readings = add(
        "--reading",
        type=several(str),
        help="where text and code of a paper differ, follow: paper (default) or authors_code",
    )
    complete(readings, ("paper", "authors_code"))
    complete(add("--data", metavar="D", type=several(str), help="a data set listed by `pfl data`"), data_sets)
    forms = [f"{name}:{option.upper()}" if (option := MAIN_OPTION.get(name)) else name for name in PARTITIONS]
    complete(add("--partition", metavar="P", type=several(partition), help=", ".join(forms)), PARTITIONS)
    add("--clients", type=several(positive), metavar="N", help="number of clients")
    add("--rounds", type=several(positive), metavar="T", help="communication rounds")
    add("--model", metavar="M", type=several(str), help="the network, e.g. mlp, cnn_small, resnet18")
    add("--lr", type=several(number), help="learning rate of local training")
    add("--epochs", type=several(integer), help="local epochs")
    add("--batch-size", type=several(positive), metavar="B", help="batch size of local training")
    add("--participation", type=several(number), help="fraction of the clients in each round, e.g. 0.1")
    add("--seed", type=seeds, metavar="S", help="random seeds, e.g. 0-2 or 0,2,5 (default 0)")
    add("--device", type=device, help="cpu (default), cuda, cuda:1, ...")
    add(
        "--set",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        type=setting,
        help="set a field of the method (alpha=0.5), an option of the data, partition or model (model.width=32), or "
        "another field of training or the run (train.momentum=0.9, run.eval_every=5); VALUE is JSON or plain text; "
        "METHOD.FIELD=VALUE sets a field of this method only",
    )
    add(
        "--metrics",
        type=several(str),
        metavar="NAMES",
        help=f"score each client after the last round: {', '.join(f'{n} ({text})' for n, text in METRICS.items())}; "
        "needs torchmetrics; a stored run without them is computed again",
    )
    add("--jobs", type=positive, metavar="N", help="number of cores, for runs or clients of a run (default: all)")
    add(
        "--log",
        type=Path,
        metavar="DIR",
        help="while a run is computed, add a line for each round to DIR/METHOD-KEY.csv, and events for TensorBoard "
        "where it is installed",
    )
    add("--dry-run", action="store_true", help="count the runs, and estimate time, memory and disk; run nothing")
    add_scheduler(command)
    add_stop_after(command)


def several(of: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """The parser of "a,b,c": each part is parsed by ``of``."""

    def parse(text: str) -> list[Any]:
        return distinct([of(part) for part in parts(text)])

    return parse


def distinct(given: Iterable[Any]) -> list[Any]:
    """The values without repetitions. They may be lists or dictionaries."""
    return list({json.dumps(item, sort_keys=True): item for item in given}.values())


def seeds(text: str) -> list[int]:
    """'0-2' -> [0, 1, 2], '0,2,5' -> [0, 2, 5]."""
    out: list[int] = []
    for part in parts(text):
        if span := re.fullmatch("([0-9]{1,18})-([0-9]{1,18})", part):
            first, last = int(span[1]), int(span[2])
            if not first <= last < first + MAX_RUNS:
                raise BadArgument(f"{part!r} is not a range of 1 to {MAX_RUNS} seeds; give e.g. 0-2")
            out += range(first, last + 1)
        else:
            out.append(integer(part))
    return distinct(out)


def setting(text: str) -> tuple[str, str, list[Any]]:
    """'partition.val=0.1,0.2' -> ("partition", "val", [0.1, 0.2]). A name without a dot is a field of the method."""
    name, equals, value_text = text.partition("=")
    owner, dot, field = name.rpartition(".")
    known = owner in ("", *COMPONENTS, "train", "run", *MODULES, *INSTRUMENTS) or ":" in owner
    if not equals or not field or not known or bool(dot) != bool(owner):
        raise BadArgument(
            f"{text!r} is not FIELD=VALUE with a FIELD such as alpha, data.x, partition.x, train.x or METHOD.x"
        )
    if field == "name":
        raise BadArgument(f"{text!r}: choose the name with METHOD, --data, --partition or --model instead")
    return owner or "method", field, distinct(values(value_text))


def partition(text: str) -> dict[str, Any]:
    """'shards:2' -> {"name": "shards", "classes_per_client": 2}. 'my_module:function' is a user's own partition."""
    name, colon, option = text.partition(":")
    if colon and name not in PARTITIONS and not option.isidentifier():
        raise BadArgument(f"unknown partition {name!r}{choices(name, PARTITIONS)}")
    if name not in PARTITIONS or not colon:
        return {"name": text}
    if name not in MAIN_OPTION:
        raise BadArgument(f"{text!r}: {name} takes no value; set its options with --set partition.OPTION=VALUE")
    return {"name": name, MAIN_OPTION[name]: option if name == "csv" else value(option)}


def variations(args: argparse.Namespace, methods: Sequence[str]) -> list[Variation]:
    """The runs that the arguments describe: for each method, all combinations of the given values.

    Raises ValueError for wrong or incompatible values, and for more than MAX_RUNS runs.
    """
    for owner, field, _ in args.set:
        if owner not in ("method", *COMPONENTS, "train", "run", *methods):
            raise ValueError(f"--set {owner}.{field}: {owner} is not a method of this command: {', '.join(methods)}")
        if owner == "method":
            _check_all_have(methods, field)
    flags = {name: given for name in LISTS if (given := getattr(args, name)) is not None}
    random_seeds = [0] if args.seed is None else args.seed
    axes_of: dict[str, dict[Any, list[Any]]] = {}  # method -> flag, or (owner, field) of --set -> values
    for method in methods:
        general = {(owner, field): given for owner, field, given in args.set if owner not in methods}
        own = {("method", field): given for owner, field, given in args.set if owner == method}
        axes_of[method] = flags | general | own
    total = len(random_seeds) * sum(math.prod(map(len, axes.values())) for axes in axes_of.values())
    if total > MAX_RUNS:
        raise ValueError(f"the given values make {total} runs; give at most {MAX_RUNS}")
    return [
        _variation(args, method, axes, dict(zip(axes, combination, strict=True)), random_seeds)
        for method, axes in axes_of.items()
        for combination in product(*axes.values())
    ]


def _check_all_have(methods: Sequence[str], field: str) -> None:
    """Raises ValueError if only some of the methods have this field. If none has it, the first run's check says so."""
    from pfl_core.algorithm import method

    having = [name for name in methods if field in {f.name for f in dataclasses.fields(method(name))}]
    if having and (missing := [name for name in methods if name not in having]):
        alone = " ".join(f"--set {name}.{field}=VALUE" for name in having)
        raise ValueError(f"--set {field}: {', '.join(missing)} has no such setting; give {alone}")


def _variation(
    args: argparse.Namespace,
    method: str,
    axes: dict[Any, list[Any]],
    chosen: dict[Any, Any],
    random_seeds: Sequence[int],
) -> Variation:
    """One combination: ``chosen`` has a value of each of the ``axes``."""
    flags = dict.fromkeys(LISTS) | {axis: given for axis, given in chosen.items() if isinstance(axis, str)}
    sets = [(*axis, given) for axis, given in chosen.items() if not isinstance(axis, str)]
    one = argparse.Namespace(**{**vars(args), **flags, "method": method, "set": sets})
    varied = {_axis_name(axis): _shown(chosen[axis]) for axis, given in axes.items() if len(given) > 1}
    return Variation(method, varied, [spec_of(one, seed) for seed in random_seeds])


def _axis_name(axis: str | tuple[str, str]) -> str:
    """("method", "alpha") -> "alpha", ("train", "momentum") -> "train.momentum"."""
    return axis if isinstance(axis, str) else ".".join(axis).removeprefix("method.")


def _shown(given: Any) -> Any:
    """A value as it is given on the command line: {"name": "shards", "classes_per_client": 2} -> "shards:2"."""
    return ":".join(map(str, given.values())) if isinstance(given, dict) and "name" in given else given


def spec_of(args: argparse.Namespace, seed: int) -> RunSpec:
    """The run with these arguments, which have one value each. Raises ValueError for wrong or incompatible values.

    The spec is marked as changed if it differs from the preset, so that `pfl compare` does not show it as the preset's
    result.
    """
    from pfl_core.runs.build import with_all_clients
    from pfl_core.study.settings import override

    # --set values by owner: {"method": {...}, "data": {...}, ...}
    sets: dict[str, dict[str, Any]] = {name: {} for name in ("method", *COMPONENTS, "train", "run")}
    for owner, field, given in args.set:
        sets[owner][field] = given
    if args.reading:
        sets["method"]["reading"] = args.reading
    flags = {name: flag for name in FRAME_FLAGS if (flag := getattr(args, name)) is not None}
    changes = flags | sets["train"] | sets["run"]
    changes |= {name: flag for name in COMPONENTS if (flag := getattr(args, name)) is not None}
    if args.paper:
        dataset = _paper_dataset(args, changes)
        base = study(args.paper).settings.spec(
            args.method, preset=args.preset or "quick", dataset=dataset, seed=seed, **sets["method"]
        )
    elif args.preset:
        raise ValueError(f"--preset {args.preset} is the size of a paper's experiment; add --paper")
    else:
        base = trial(args.method, sets["method"], seed)
    spec = override(base, changes)
    components: dict[str, Any] = {name: {**getattr(spec, name), **sets[name]} for name in COMPONENTS if sets[name]}
    spec = dataclasses.replace(spec, **components)
    if args.partition and "clients" not in changes:
        spec = with_all_clients(spec)
    changed = spec.identity() != base.identity()
    return dataclasses.replace(spec, device=args.device or "cpu", metrics=tuple(args.metrics or ()), changed=changed)


def trial(name: str, given: dict[str, Any], seed: int) -> RunSpec:
    """The default run without --paper: TRIAL_TRAINING, and the method's own trial settings.

    The method's trial fields are left out if they are not compatible with the ``given`` fields.
    """
    from pfl_core.algorithm import methods
    from pfl_core.runs import RunSpec
    from pfl_core.study.settings import override

    entry = methods()[name] if name in MODULES else None
    spec = None
    if entry and entry.trial:
        with suppress(ValueError):  # an error in the given fields themselves is raised below
            spec = RunSpec(method={"name": name, **entry.trial, **given}, seed=seed)
    spec = spec or RunSpec(method={"name": name, **given}, seed=seed)
    return override(spec, {**TRIAL_TRAINING, **(entry.trial_training if entry else {})})


def check_names(args: argparse.Namespace, methods: Sequence[str]) -> None:
    """Raise ValueError for an unknown method, paper, preset or data set, before anything slow is imported."""
    for method in methods:
        check_method(method)
    check("paper", args.paper, STUDIES)
    if args.paper:
        check("preset", args.preset, PRESETS)
    else:  # with --paper, --data may also name one of the paper's settings
        for name in args.data or ():
            check_name(name, data_dir())


def _paper_dataset(args: argparse.Namespace, changes: dict[str, Any]) -> str | None:
    """The paper's setting that --data names, removed from ``changes``; None for the paper's first setting."""
    from pfl_core.data import names

    settings = study(args.paper).settings.settings.get(args.preset or "quick", {})
    if args.data in settings and (args.data not in names() or settings[args.data].data["name"] == args.data):
        return changes.pop("data")
    return None

"""The options that describe runs, shared by ``pfl run`` and ``pfl compare``, and the runs that they describe.

Each field of ``Schedule`` and ``Training`` is a flag; the comment behind the field is its help.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_core.cli.arguments import (
    BadArgument,
    add_computing,
    device,
    distinct,
    integer,
    known,
    number,
    parts,
    positive,
    several,
    value,
    values,
)
from pfl_core.cli.fields import PACKAGE, declared
from pfl_core.data.registry import check_name, data_dir
from pfl_core.options import choices, did_you_mean
from pfl_core.papers import STUDIES, study
from pfl_core.registry import METHODS, METRICS, PARTITIONS
from pfl_core.study.presets import PRESETS

if TYPE_CHECKING:
    from pfl_core.runs import RunSpec

COMPONENTS = ("data", "partition", "model")  # fields of a run that have a name and options
# --lr, --rounds, ...: a flag for each field, with the comment behind it as help
TRAINING = declared(PACKAGE / "training.py", "Training")
FIELDS = [*declared(PACKAGE / "engine.py", "Schedule"), *TRAINING]
FLAGS = ("clients", *(field.name for field in FIELDS))  # flags that set one field of a run or of its training
LISTS = ("reading", *COMPONENTS, *FLAGS)  # flags that accept several values
PARSERS: dict[str, Callable[[str], Any]] = {  # type of a field -> parser of one value
    "int": integer,
    "NonNegativeInt": integer,
    "PositiveInt": positive,
    "float": number,
    "NonNegativeFloat": number,
    **dict.fromkeys(("Share", "Part"), number),
    **dict.fromkeys(("Sampling", "str"), str),
}
OPTIONS = ("paper", "preset", *LISTS, "seed", "device", "set", "metrics", "jobs", "log", "dry_run")
OWNERS = ("method", *COMPONENTS, "train", "run")  # what --set can set a field of
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
    varied: dict[str, Any]  # options with several values, or with a value of a method's own -> that of these runs
    specs: list[RunSpec]

    @property
    def label(self) -> str:
        """The method and the varied options as text."""
        return ", ".join([self.method, *(f"{name}={given}" for name, given in self.varied.items())])


def add_run_options(command: argparse.ArgumentParser) -> None:
    """All options that describe runs, except the method."""
    add = command.add_argument
    add("--paper", type=known("paper", STUDIES), help=f"start from this paper's settings: {', '.join(STUDIES)}")
    sizes = f"size of the paper's experiment: {', '.join(PRESETS)} (default quick)"
    add("--preset", type=known("preset", PRESETS), help=sizes)
    add(
        "--reading",
        type=several(str),
        help="where text and code of a paper differ, follow: paper (default) or authors_code",
    )
    add("--data", type=several(str), help="a data set listed by `pfl data`")
    forms = [f"{name}:{option.upper()}" if (option := MAIN_OPTION.get(name)) else name for name in PARTITIONS]
    add("--partition", type=several(partition), help=", ".join(forms))
    add("--model", type=several(str), help="the network, e.g. mlp, cnn_small, resnet18")
    add("--clients", type=several(positive), help="number of clients")
    for field in FIELDS:
        add(f"--{field.name.replace('_', '-')}", type=values_of(field.type), help=field.about.replace("%", "%%"))
    add("--seed", type=seeds, help="random seeds, e.g. 0-2 or 0,2,5 (default 0)")
    add("--device", type=device, help="cpu (default), cuda, cuda:1, ...")
    add(
        "--set",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        type=setting,
        help="set a field of the method (alpha=0.5; `pfl methods METHOD` lists them), or an option of the data, "
        "partition or model (model.width=32); VALUE is JSON or plain text; METHOD.FIELD=VALUE sets a field of this "
        "method, or of its training (fedavg.lr=0.1), for this method only",
    )
    add(
        "--metrics",
        type=several(str),
        metavar="NAMES",
        help=f"score each client after the last round: {', '.join(f'{n} ({text})' for n, text in METRICS.items())}; "
        "needs torchmetrics; a stored run without them is computed again",
    )
    add(
        "--log",
        type=Path,
        metavar="DIR",
        help="while a run is computed, add a line for each round to DIR/METHOD-KEY.csv, and events for TensorBoard "
        "where it is installed",
    )
    add("--dry-run", action="store_true", help="count the runs, and estimate time, memory and disk; run nothing")
    add_computing(command)


def values_of(annotation: str) -> Callable[[str], list[Any]]:
    """The parser of a flag's values, from the type of its field. Types such as ``tuple[float, ...]`` take JSON."""
    if found := re.fullmatch(r"Literal\[(.*)\]", annotation):
        return several(known("value", [word.strip("'") for word in found[1].split(", ")]))
    return several(PARSERS[annotation]) if annotation in PARSERS else values


def unknown_option(text: str, following: Sequence[str]) -> str:
    """How to give what was given as an option that does not exist, such as ``--alpha 0.5``."""
    name, _, given = text.lstrip("-").partition("=")
    field = name.replace("-", "_")
    if alike := did_you_mean(field, OPTIONS):
        return alike.replace("_", "-")
    assigned = f"{field}={given or next(iter(following), 'VALUE')}"
    return (
        f"; give a field of the method as --set {assigned}, an option of the data, partition or model as "
        f"--set partition.{assigned}"
    )


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
    if not equals or not field or owner == "method" or bool(dot) != bool(owner):
        raise BadArgument(
            f"{text!r} is not FIELD=VALUE with a FIELD such as alpha, data.x, partition.x, train.x or METHOD.x"
        )
    if field == "name":
        raise BadArgument(f"{text!r}: choose the name with METHOD, --data, --partition or --model instead")
    return owner or "method", field, values(value_text)


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
    if args.preset and not args.paper:
        raise ValueError(f"--preset {args.preset} is the size of a paper's experiment; add --paper")
    for name in args.data or () if not args.paper else ():  # with --paper, --data may also name one of its settings
        check_name(name, data_dir())
    for owner, field, _ in args.set:
        if owner not in (*OWNERS, *methods):
            full = next((name for name in methods if owner in name.split(":")), "")  # of a user's module:Class
            hint = f" (did you mean {full}.{field}?)" if full else choices(owner, (*OWNERS[1:], *methods))
            raise ValueError(f"--set {owner}.{field}: {owner} is not a method of this command{hint}")
        if owner == "method":
            _check_all_have(methods, field)
    flags = {name: given for name in LISTS if (given := getattr(args, name)) is not None}
    if twice := flags.keys() & {_axis(owner, field) for owner, field, _ in args.set if owner in OWNERS}:
        raise ValueError(f"{min(twice)} is given twice; leave out the flag or the --set")
    random_seeds = [0] if args.seed is None else args.seed
    axes_of: dict[str, dict[Any, list[Any]]] = {}  # method -> flag, or (owner, field) of --set -> values
    for method in methods:
        in_order = sorted(args.set, key=lambda given: given[0] == method)  # what only this method is given counts last
        axes_of[method] = flags | {
            _axis(owner, field): given for owner, field, given in in_order if owner in (*OWNERS, method)
        }
    # training fields that some method is given for itself are named in all rows
    own = {
        axis: None for owner, field, _ in args.set if owner in methods and isinstance(axis := _axis(owner, field), str)
    }
    total = len(random_seeds) * sum(math.prod(map(len, axes.values())) for axes in axes_of.values())
    if total > MAX_RUNS:
        raise ValueError(f"the given values make {total} runs; give at most {MAX_RUNS}")
    found = []
    for method, axes in axes_of.items():
        for combination in product(*axes.values()):
            chosen = dict(zip(axes, combination, strict=True))
            specs = [spec_of(args, method, chosen, seed) for seed in random_seeds]
            varied = {name: getattr(specs[0].train, name) for name in own}
            varied |= {_axis_name(axis): _shown(chosen[axis]) for axis, given in axes.items() if len(given) > 1}
            found.append(Variation(method, varied, specs))
    return found


def _axis(owner: str, field: str) -> str | tuple[str, str]:
    """What a --set sets: the flag of a training field, or (owner, field). A method's own field of that name has
    priority: ("fedavg", "lr") -> "lr", ("ditto", "lam") -> ("method", "lam").
    """
    if field in (f.name for f in TRAINING) and (owner == "train" or owner not in OWNERS and not _has(owner, field)):
        return field
    return (owner if owner in OWNERS else "method"), field


def _has(method: str, field: str) -> bool:
    """Whether a method has a field of this name."""
    from pfl_core import algorithm

    return field in {f.name for f in dataclasses.fields(algorithm.method(method))}


def _check_all_have(methods: Sequence[str], field: str) -> None:
    """Raises ValueError if only some of the methods have this field. If none has it, the first run's check says so."""
    having = [name for name in methods if _has(name, field)]
    if having and (missing := [name for name in methods if name not in having]):
        alone = " ".join(f"--set {name}.{field}=VALUE" for name in having)
        raise ValueError(f"--set {field}: {', '.join(missing)} has no such setting; give {alone}")


def _axis_name(axis: str | tuple[str, str]) -> str:
    """("method", "alpha") -> "alpha", ("model", "width") -> "model.width"."""
    return axis if isinstance(axis, str) else ".".join(axis).removeprefix("method.")


def _shown(given: Any) -> Any:
    """A value as it is given on the command line: {"name": "shards", "classes_per_client": 2} -> "shards:2"."""
    return ":".join(map(str, given.values())) if isinstance(given, dict) and "name" in given else given


def spec_of(args: argparse.Namespace, method: str, chosen: dict[Any, Any], seed: int) -> RunSpec:
    """One run. ``chosen``: flag, or (owner, field) of --set -> its value. Raises ValueError for wrong values.

    The spec is marked as changed if it differs from the preset, so that `pfl compare` does not show it as the preset's
    result.
    """
    from pfl_core.runs.build import with_all_clients
    from pfl_core.study.settings import override

    # values of --set by owner: {"method": {...}, "data": {...}, ...}
    sets: dict[str, dict[str, Any]] = {name: {} for name in OWNERS}
    changes: dict[str, Any] = {}
    for axis, given in chosen.items():
        if axis == "reading":
            sets["method"]["reading"] = given
        elif isinstance(axis, str):
            changes[axis] = given
        else:
            owner, field = axis
            sets[owner][field] = given
    changes |= sets["train"] | sets["run"]
    if args.paper:
        setting = _paper_setting(args, changes)
        base = study(args.paper).settings.spec(
            method, preset=args.preset or "quick", setting=setting, seed=seed, **sets["method"]
        )
    else:
        base = trial(method, sets["method"], seed)
    spec = override(base, changes)
    components: dict[str, Any] = {name: {**getattr(spec, name), **sets[name]} for name in COMPONENTS if sets[name]}
    spec = dataclasses.replace(spec, **components)
    if "partition" in changes and "clients" not in changes:
        spec = with_all_clients(spec)
    changed = dataclasses.replace(spec, device=base.device).identity() != base.identity()
    where, metrics = args.device or device(spec.device), tuple(args.metrics or ())
    return dataclasses.replace(spec, device=where, metrics=metrics, changed=changed)


def trial(name: str, given: dict[str, Any], seed: int) -> RunSpec:
    """The default run without --paper: TRIAL_TRAINING, and the method's own trial settings.

    The method's trial fields are left out if they are not compatible with the ``given`` fields.
    """
    from pfl_core.algorithm import methods
    from pfl_core.runs import RunSpec
    from pfl_core.study.settings import override

    entry = methods()[name] if name in METHODS else None
    spec = None
    if entry and entry.trial:
        with suppress(ValueError):  # an error in the given fields themselves is raised below
            spec = RunSpec(method={"name": name, **entry.trial, **given}, seed=seed)
    spec = spec or RunSpec(method={"name": name, **given}, seed=seed)
    return override(spec, {**TRIAL_TRAINING, **(entry.trial_training if entry else {})})


def _paper_setting(args: argparse.Namespace, changes: dict[str, Any]) -> str | None:
    """The paper's setting that --data names, removed from ``changes``; None for the paper's first setting."""
    from pfl_core.data import names

    settings, data = study(args.paper).settings.settings.get(args.preset or "quick", {}), changes.get("data")
    if isinstance(data, str) and data in settings and (data not in names() or settings[data].data["name"] == data):
        return changes.pop("data")
    return None

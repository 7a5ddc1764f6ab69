"""``pfl run``: one run from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pfl_core.cli.names import check, check_method
from pfl_core.cli.text import BadArgument, as_json, device, duration, positive, value
from pfl_core.data.registry import check_name, data_dir
from pfl_core.options import did_you_mean
from pfl_core.papers import PAPERS, paper
from pfl_core.registry import MODULES, PARTITIONS
from pfl_core.study.presets import PRESETS

if TYPE_CHECKING:
    from pfl_core.algorithm import MechanismCheck
    from pfl_core.runs import Record, RunSpec, Store

PARTS = ("data", "partition", "model")
FRAME = ("clients", "rounds", "participation", "lr", "epochs", "batch_size")  # flags that are fields of a run
TRIAL = {"lr": 0.1, "batch_size": 16, "momentum": 0.9}  # without --paper: so that 20 rounds are enough to learn
SHORT = {"shards": "classes_per_client", "dirichlet": "alpha", "paired_dirichlet": "alpha", "pathological": "shards"}


def add(commands: argparse._SubParsersAction) -> None:
    run = commands.add_parser(
        "run",
        help="one run of one method",
        description="One run. METHOD, --data and --model may be one's own: my_module:Thing, found in this folder. "
        "Without --paper: handwritten digits, 10 clients with 2 classes each, a small convolutional network, 20 rounds "
        "in batches of 16 at rate 0.1 with momentum 0.9; some methods with settings that suit so short a run.",
    )
    run.add_argument("method", metavar="METHOD", help="see pfl methods")
    run.add_argument("--paper", help="start from this paper's settings (fedselect, ...)")
    run.add_argument("--preset", help=f"their size: {', '.join(PRESETS)} (default quick)")
    run.add_argument("--reading", help="paper (default) or authors_code")
    run.add_argument("--data", metavar="D", help="see pfl data")
    forms = [f"{name}:{option.upper()}" if (option := SHORT.get(name)) else name for name in PARTITIONS]
    run.add_argument("--partition", metavar="P", type=partition, help=", ".join(forms))
    run.add_argument("--clients", type=positive, metavar="N")
    run.add_argument("--rounds", type=positive, metavar="T")
    run.add_argument("--model", metavar="M")
    run.add_argument("--lr", type=float)
    run.add_argument("--epochs", type=int, help="local epochs")
    run.add_argument("--batch-size", type=positive)
    run.add_argument("--participation", type=float, help="share of the clients in a round, e.g. 0.1")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--device", type=device, default="cpu")
    run.add_argument(
        "--set",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        type=setting,
        help="a field of the method, an option of a part (data.x=, partition.x=, model.x=), or another field of the "
        "training or the run (train.momentum=0.9, run.eval_every=5); values as in JSON",
    )
    run.add_argument(
        "--until", type=positive, metavar="T", help="stop after T rounds and store them as a partial record"
    )
    run.add_argument("--keep-state", action="store_true", help="keep the last state, so that a stopped run can go on")
    run.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    run.set_defaults(do=do_run)


def setting(text: str) -> tuple[str, str, Any]:
    """'partition.val=0.1' -> ("partition", "val", 0.1); a name without a dot belongs to the method."""
    name, equals, given = text.partition("=")
    owner, dot, field = name.rpartition(".")
    if not equals or not field or owner not in ("", *PARTS, "train", "run") or bool(dot) != bool(owner):
        raise BadArgument(f"{text!r} is not FIELD=VALUE with FIELD like alpha, data.x, model.x, train.x")
    if field == "name":
        raise BadArgument(f"{text!r}: name it by METHOD, --data, --partition or --model")
    return owner or "method", field, value(given)


def partition(text: str) -> dict[str, Any]:
    """'shards:2' -> {"name": "shards", "classes_per_client": 2}; 'my_module:rule' is a rule of one's own."""
    name, colon, given = text.partition(":")
    if colon and name not in PARTITIONS and not given.isidentifier():
        raise BadArgument(f"no partition {name!r}{did_you_mean(name, PARTITIONS)}; there are {', '.join(PARTITIONS)}")
    if name not in PARTITIONS or not colon:
        return {"name": text}
    if name not in SHORT:
        raise BadArgument(f"{text!r}: {name} takes no value; options by --set partition.x=")
    return {"name": name, SHORT[name]: value(given)}


def spec_of(args: argparse.Namespace) -> RunSpec:
    """The run that the arguments describe; raises ValueError for what does not exist or fit.

    A run is the preset's own only if nothing of the preset's frame became another: else `pfl compare` would show it as
    that preset's result.
    """
    from pfl_core.study.settings import override

    sets = {owner: {f: v for o, f, v in args.set if o == owner} for owner in ("method", *PARTS, "train", "run")}
    if args.reading:
        sets["method"]["reading"] = args.reading
    changes = (
        {name: given for name in FRAME if (given := getattr(args, name)) is not None} | sets["train"] | sets["run"]
    )
    changes |= {name: given for name in PARTS if (given := getattr(args, name)) is not None}
    if args.paper:
        dataset = _paper_dataset(args, changes)
        made = paper(args.paper).settings.spec(
            args.method, preset=args.preset or "quick", dataset=dataset, seed=args.seed, **sets["method"]
        )
    elif args.preset:
        raise ValueError(f"--preset {args.preset} is the size of a paper's experiment; add --paper")
    else:
        made = trial(args.method, sets["method"], args.seed)
    changed = override(made, changes)
    parts = {name: {**getattr(changed, name), **sets[name]} for name in PARTS if sets[name]}
    changed = dataclasses.replace(changed, **parts)
    return dataclasses.replace(changed, device=args.device, changed=changed.identity() != made.identity())


def trial(name: str, given: dict[str, Any], seed: int) -> RunSpec:
    """A run without --paper: TRIAL and the method's own, but for fields that are ``given`` or do not fit with them."""
    from pfl_core.algorithm import methods
    from pfl_core.runs import RunSpec
    from pfl_core.study.settings import override

    entry = methods()[name] if name in MODULES else None
    made = None
    if entry and entry.trial:
        with suppress(ValueError):  # that of the given fields alone comes below
            made = RunSpec(method={"name": name, **entry.trial, **given}, seed=seed)
    made = made or RunSpec(method={"name": name, **given}, seed=seed)
    return override(made, {**TRIAL, **(entry.trial_training if entry else {})})


def check_names(args: argparse.Namespace) -> None:
    """Raise ValueError for a method, paper, preset or data set that does not exist; fast, nothing is imported."""
    check_method(args.method)
    check("paper", args.paper, PAPERS)
    if args.paper:
        check("preset", args.preset, PRESETS)
    elif args.data:  # a paper's own settings have further names
        check_name(args.data, data_dir())


def _paper_dataset(args: argparse.Namespace, changes: dict[str, Any]) -> str | None:
    """The paper's own setting for --data, if it has one (which then is no change); None: its first."""
    from pfl_core.data import names

    frames = paper(args.paper).settings.settings.get(args.preset or "quick", {})
    if args.data in frames and (args.data not in names() or frames[args.data].data["name"] == args.data):
        return changes.pop("data")
    return None


def do_run(args: argparse.Namespace) -> int:
    check_names(args)
    from pfl_core.runs import Store

    spec, store = spec_of(args), Store()
    key, record = store.locate(spec)
    was_stored = record is not None and record.rounds >= min(args.until or spec.rounds, spec.rounds)
    if not args.json:
        print(describe(spec, key))
    if not was_stored:
        record = compute(spec, store, key, args.until, args.keep_state)
    print(as_json(result(record, was_stored)) if args.json else summary(record, was_stored, store, args.keep_state))
    return 0


def compute(spec: RunSpec, store: Store, key: str, until: int | None, keep_state: bool) -> Record:
    """The run, in this process, with a bar on stderr."""
    from tqdm import tqdm

    from pfl_core.runs import execute

    with tqdm(
        total=min(until or spec.rounds, spec.rounds), unit="round", file=sys.stderr, desc=spec.method["name"]
    ) as bar:
        execute(
            spec,
            store,
            key=key,
            until=until,
            keep_state=keep_state,
            on_round=lambda done: bar.update(done - bar.n),
            warn=lambda text: bar.write(f"pfl: {text}", file=sys.stderr),
        )
    return store.get(key, spec)  # as it was written, so that a second call gives the same digits


def inert(check: MechanismCheck) -> str:
    """What is said of a run whose mechanism did not act."""
    found = f"{check.what}: {check.value:.3g} (bound {check.bound:g})"
    return f"the mechanism did not act, so this run does not show the method; {found}; {check.otherwise}"


def result(record: Record, was_stored: bool) -> dict[str, Any]:
    spec = record.spec
    where = {"data": spec.data["name"], "about": record.about, "rounds": record.rounds, "seed": spec.seed}
    where |= {"rounds_planned": spec.rounds} if record.partial else {}
    return {"method": spec.method["name"], **record.summary(), "key": record.key, **where, "stored": was_stored}


def describe(spec: RunSpec, key: str) -> str:
    """The whole configuration, a line for each part."""
    plain = spec.identity(written_out=True)
    lines = [(name, plain.pop(name)) for name in ("method", *PARTS, "train")]
    lines += [
        ("run", plain),
        ("for", {"name": f"{spec.paper or '-'}, preset {spec.made_for or '-'}"}),
        ("key", {"name": key}),
    ]
    return "\n".join(f"{name:<10} {_options(options)}" for name, options in lines)


def _options(options: dict[str, Any]) -> str:
    rest = dict(options)
    first = [str(rest.pop("name"))] if "name" in rest else []
    return "  ".join(first + [f"{name}={given}" for name, given in rest.items()])


def summary(record: Record, was_stored: bool, store: Store, keep_state: bool = False) -> str:
    """The result for people: accuracies, traffic, time, and where it lies."""
    numbers = record.summary()
    lines = [f"{'accuracy, percent':<22}{'mean':>8}{'pooled':>8}{'bottom decile':>15}"]
    for title, suffix in (("last round", ""), ("best round", "_best"), ("before aggregation", "_trained")):
        mean, pooled, decile = (numbers[f"acc_{kind}{suffix}"] for kind in ("mean", "pooled", "bottom_decile"))
        lines.append(f"{title:<22}{mean:>8.2f}{pooled:>8.2f}{decile:>15.2f}")
    lines += [f"data: {record.about}"] if record.about else []
    lines += [f"stopped early: {record.length} rounds"] if record.partial else []
    sent = "not noted" if math.isnan(numbers["upload_mb"]) else f"{numbers['upload_mb']:.2f} MB"
    lines.append(f"sent by clients: {sent}; computing took {duration(record.seconds)}")
    if not math.isfinite(numbers["loss"]):
        lines.append("the training diverged: the loss of the last round is not a number, so accuracies mean nothing")
    lines += [inert(check) for check in record.mechanism if not check.acts]
    lines.append("read from the store, nothing was computed" if was_stored else f"stored in {store.path(record.key)}")
    if keep_state and was_stored:
        lines.append(
            "its state is not kept: that of a stored run is gone; `pfl runs clean --all` makes room to run it again"
        )
    return "\n".join(lines)

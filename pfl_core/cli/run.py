"""``pfl run``: one training run from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pfl_core.cli.names import check, check_method
from pfl_core.cli.text import (
    BadArgument,
    add_scheduler,
    add_stop_after,
    as_json,
    device,
    duration,
    integer,
    positive,
    value,
)
from pfl_core.data.registry import check_name, data_dir
from pfl_core.deadline import deadline
from pfl_core.options import did_you_mean
from pfl_core.papers import PAPERS, paper
from pfl_core.registry import MODULES, PARTITIONS
from pfl_core.study.presets import PRESETS

if TYPE_CHECKING:
    from pfl_core.algorithm import MechanismCheck
    from pfl_core.runs import Record, RunSpec, Store

COMPONENTS = ("data", "partition", "model")  # fields of a run that have a name and options
FRAME_FLAGS = ("clients", "rounds", "participation", "lr", "epochs", "batch_size")  # flags that set a field of a run
TRIAL_TRAINING = {"lr": 0.1, "batch_size": 16, "momentum": 0.9}  # without --paper: learns within 20 rounds
MAIN_OPTION = {  # partition -> the option that NAME:VALUE sets
    "shards": "classes_per_client",
    "dirichlet": "alpha",
    "paired_dirichlet": "alpha",
    "pathological": "shards",
}


def add(commands: argparse._SubParsersAction) -> None:
    run = commands.add_parser(
        "run",
        help="train one method",
        description="Train one method and store the result. METHOD, --data, --partition and --model also accept your "
        "own code, given as my_module:name and imported from the current folder. "
        "Default without --paper: handwritten digits, 10 clients with 2 classes each, a small convolutional network, "
        "20 rounds, batch size 16, learning rate 0.1, momentum 0.9; a few methods have other defaults.",
    )
    run.add_argument("method", metavar="METHOD", help="a method listed by `pfl methods`")
    run.add_argument("--paper", help=f"start from the settings of this paper: {', '.join(PAPERS)}")
    run.add_argument("--preset", help=f"size of the paper's experiment: {', '.join(PRESETS)} (default quick)")
    run.add_argument("--reading", help="where text and code of a paper differ, follow: paper (default) or authors_code")
    run.add_argument("--data", metavar="D", help="a data set listed by `pfl data`")
    forms = [f"{name}:{option.upper()}" if (option := MAIN_OPTION.get(name)) else name for name in PARTITIONS]
    run.add_argument("--partition", metavar="P", type=partition, help=", ".join(forms))
    run.add_argument("--clients", type=positive, metavar="N", help="number of clients")
    run.add_argument("--rounds", type=positive, metavar="T", help="communication rounds")
    run.add_argument("--model", metavar="M", help="the network, e.g. mlp, cnn_small, resnet18")
    run.add_argument("--lr", type=float, help="learning rate of local training")
    run.add_argument("--epochs", type=integer, help="local epochs")
    run.add_argument("--batch-size", type=positive, metavar="B", help="batch size of local training")
    run.add_argument("--participation", type=float, help="fraction of the clients in each round, e.g. 0.1")
    run.add_argument("--seed", type=integer, default=0, help="random seed (default 0)")
    run.add_argument("--device", type=device, default="cpu", help="cpu (default), cuda, cuda:1, ...")
    run.add_argument(
        "--set",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        type=setting,
        help="set a field of the method (alpha=0.5), an option of the data, partition or model (model.width=32), or "
        "another field of training or the run (train.momentum=0.9, run.eval_every=5); VALUE is JSON or plain text",
    )
    run.add_argument("--until", type=positive, metavar="T", help="stop after T rounds and store a partial record")
    run.add_argument("--keep-state", action="store_true", help="keep the final state, to continue a stopped run later")
    add_scheduler(run)
    add_stop_after(run)
    run.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    run.set_defaults(do=do_run)


def setting(text: str) -> tuple[str, str, Any]:
    """'partition.val=0.1' -> ("partition", "val", 0.1). A name without a dot is a field of the method."""
    name, equals, value_text = text.partition("=")
    owner, dot, field = name.rpartition(".")
    if not equals or not field or owner not in ("", *COMPONENTS, "train", "run") or bool(dot) != bool(owner):
        raise BadArgument(f"{text!r} is not FIELD=VALUE with a FIELD such as alpha, data.x, partition.x or train.x")
    if field == "name":
        raise BadArgument(f"{text!r}: choose the name with METHOD, --data, --partition or --model instead")
    return owner or "method", field, value(value_text)


def partition(text: str) -> dict[str, Any]:
    """'shards:2' -> {"name": "shards", "classes_per_client": 2}. 'my_module:function' is a user's own partition."""
    name, colon, option = text.partition(":")
    if colon and name not in PARTITIONS and not option.isidentifier():
        raise BadArgument(
            f"unknown partition {name!r}{did_you_mean(name, PARTITIONS)}; choose from {', '.join(PARTITIONS)}"
        )
    if name not in PARTITIONS or not colon:
        return {"name": text}
    if name not in MAIN_OPTION:
        raise BadArgument(f"{text!r}: {name} takes no value; set its options with --set partition.OPTION=VALUE")
    return {"name": name, MAIN_OPTION[name]: value(option)}


def spec_of(args: argparse.Namespace) -> RunSpec:
    """The run that the arguments describe. Raises ValueError for wrong or incompatible values.

    The spec is marked as changed if it differs from the preset, so that `pfl compare` does not show it as the preset's
    result.
    """
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
        base = paper(args.paper).settings.spec(
            args.method, preset=args.preset or "quick", dataset=dataset, seed=args.seed, **sets["method"]
        )
    elif args.preset:
        raise ValueError(f"--preset {args.preset} is the size of a paper's experiment; add --paper")
    else:
        base = trial(args.method, sets["method"], args.seed)
    spec = override(base, changes)
    components: dict[str, Any] = {name: {**getattr(spec, name), **sets[name]} for name in COMPONENTS if sets[name]}
    spec = dataclasses.replace(spec, **components)
    return dataclasses.replace(spec, device=args.device, changed=spec.identity() != base.identity())


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


def check_names(args: argparse.Namespace) -> None:
    """Raise ValueError for an unknown method, paper, preset or data set, before anything slow is imported."""
    check_method(args.method)
    check("paper", args.paper, PAPERS)
    if args.paper:
        check("preset", args.preset, PRESETS)
    elif args.data:  # with --paper, --data may also name one of the paper's settings
        check_name(args.data, data_dir())


def _paper_dataset(args: argparse.Namespace, changes: dict[str, Any]) -> str | None:
    """The paper's setting that --data names, removed from ``changes``; None for the paper's first setting."""
    from pfl_core.data import names

    settings = paper(args.paper).settings.settings.get(args.preset or "quick", {})
    if args.data in settings and (args.data not in names() or settings[args.data].data["name"] == args.data):
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
    if record is None or not was_stored:
        record = compute(spec, store, key, args.until, args.keep_state)
    print(as_json(result(record, was_stored)) if args.json else summary(record, was_stored, store, args.keep_state))
    return 0


def compute(spec: RunSpec, store: Store, key: str, until: int | None, keep_state: bool) -> Record:
    """Run in this process, or on the cluster if there is one, with a progress bar on stderr."""
    from tqdm import tqdm

    from pfl_core.runs import cluster, execute, sweep

    if cluster.address():
        if until or keep_state:
            raise ValueError("--until and --keep-state need a run on this machine; leave out the scheduler")
        (record,) = sweep([spec], store=store)
        return record

    with tqdm(
        total=min(until or spec.rounds, spec.rounds), unit="round", file=sys.stderr, desc=spec.method["name"]
    ) as bar:
        execute(
            spec,
            store,
            key=key,
            until=until,
            keep_state=keep_state,
            stop_at=deadline(),
            on_round=lambda done: bar.update(done - bar.n),
            warn=lambda text: bar.write(f"pfl: {text}", file=sys.stderr),
        )
    stored = store.get(key, spec)  # read back: numbers are rounded as in the file, like those of later calls
    if stored is None:
        raise OSError(f"the record of run {key} was deleted by another process; run the command again")
    return stored


def inert(check: MechanismCheck) -> str:
    """Warning for a run in which the method's mechanism did not act."""
    measured = f"{check.what}: {check.value:.3g} (bound {check.bound:g})"
    return f"the mechanism did not act, so this run does not show the method; {measured}; {check.otherwise}"


def result(record: Record, was_stored: bool) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    spec = record.spec
    context = {"data": spec.data["name"], "about": record.about, "rounds": record.rounds, "seed": spec.seed}
    context |= {"rounds_planned": spec.rounds} if record.partial else {}
    return {"method": spec.method["name"], **record.summary(), "key": record.key, **context, "stored": was_stored}


def describe(spec: RunSpec, key: str) -> str:
    """The full configuration, one line for each component."""
    plain = spec.identity(written_out=True)
    lines = [(name, plain.pop(name)) for name in ("method", *COMPONENTS, "train")]
    lines += [
        ("run", plain),
        ("paper", {"name": spec.paper or "-", "preset": spec.preset_label or "-"}),
        ("key", {"name": key}),
    ]
    return "\n".join(f"{name:<10} {_options(options)}" for name, options in lines)


def _options(options: dict[str, Any]) -> str:
    rest = dict(options)
    first = [str(rest.pop("name"))] if "name" in rest else []
    return "  ".join(first + [f"{name}={given}" for name, given in rest.items()])


def summary(record: Record, was_stored: bool, store: Store, keep_state: bool = False) -> str:
    """The result as text: accuracies, communication, time, and the record's file."""
    numbers = record.summary()
    lines = [f"{'accuracy, percent':<22}{'mean':>8}{'pooled':>8}{'bottom decile':>15}"]
    for title, suffix in (("last round", ""), ("best round", "_best"), ("before aggregation", "_trained")):
        mean, pooled, decile = (numbers[f"acc_{kind}{suffix}"] for kind in ("mean", "pooled", "bottom_decile"))
        lines.append(f"{title:<22}{mean:>8.2f}{pooled:>8.2f}{decile:>15.2f}")
    lines += [f"data: {record.about}"] if record.about else []
    lines += [f"stopped early: {record.length} rounds"] if record.partial else []
    upload = "not recorded" if math.isnan(numbers["upload_mb"]) else f"{numbers['upload_mb']:.2f} MB"
    lines.append(f"upload of all clients: {upload}; run time {duration(record.seconds)}")
    if not math.isfinite(numbers["loss"]):
        lines.append("training diverged: the loss of the last round is NaN or infinite, so accuracies mean nothing")
    lines += [inert(check) for check in record.mechanism if not check.acts]
    lines.append("read from the store, nothing was computed" if was_stored else f"stored in {store.path(record.key)}")
    if keep_state and was_stored:
        lines.append(
            "--keep-state had no effect: the run is stored already and its state was not kept; "
            "to run it again, first delete all records with `pfl runs clean --all`"
        )
    return "\n".join(lines)

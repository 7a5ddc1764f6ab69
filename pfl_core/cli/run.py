"""``pfl run``: training runs from the command line."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_core.cli.arguments import method, positive
from pfl_core.cli.models import WHICH, folders_for, keep_state, save
from pfl_core.cli.specs import COMPONENTS, TRIAL_TRAINING, add_run_options, variations
from pfl_core.cli.sweeps import frame_of, locate_all, run_all, scores, show_plan
from pfl_core.cli.tables import as_json, duration, table
from pfl_core.files import remove
from pfl_core.registry import METRICS

if TYPE_CHECKING:
    from pfl_core.algorithm import MechanismCheck
    from pfl_core.runs import Record, RunSpec, Store

DIVERGED = 1e4  # a cross-entropy loss; that of chance is the logarithm of the number of classes


def add(commands: argparse._SubParsersAction) -> None:
    run = commands.add_parser(
        "run",
        help="train one method",
        description="Train one method and store the result. METHOD, --data, --partition and --model also accept your "
        "own code, given as my_module:name and imported from the current folder. "
        "Default without --paper: handwritten digits, 10 clients with 2 classes each, a small convolutional network, "
        f"20 rounds, batch size {TRIAL_TRAINING['batch_size']}, learning rate {TRIAL_TRAINING['lr']}, no momentum; a "
        "few methods have other defaults. "
        "Several values with commas between them make a sweep of all combinations: --seed 0-2 --lr 0.01,0.1 "
        "--set alpha=0.1,0.3. The result is then a table with the mean over seeds.",
    )
    run.add_argument("method", type=method, metavar="METHOD", help="a method listed by `pfl methods`")
    add_run_options(run)
    run.add_argument("--until", type=positive, metavar="T", help="stop after T rounds and store a partial record")
    run.add_argument(
        "--keep-state",
        action="store_true",
        help="keep the final state; the same command then continues a stopped run, and with more --rounds a finished "
        "one, unless the method depends on the number of rounds",
    )
    run.add_argument(
        "--save-models",
        type=Path,
        metavar="DIR",
        help="write each client's model to DIR (with several runs to DIR/KEY), in safetensors for load_state_dict, and "
        f"models.json; {WHICH}",
    )
    run.add_argument("--json", action="store_true", help="print the result as JSON, one line for each run")
    run.set_defaults(do=do_run)


def do_run(args: argparse.Namespace) -> int:
    rows = variations(args, [args.method])
    specs = [spec for row in rows for spec in row.specs]
    if args.dry_run:
        show_plan({row.label: row.specs for row in rows}, args, "runs", must_compute=True)
        return 0
    from pfl_core.runs import Store

    store = Store()
    keys, stored = locate_all(specs, store, args)
    folders = folders_for(args.save_models, keys)
    if args.save_models:
        from pfl_core.runs.export import check as check_export

        for spec, key in zip(specs, keys, strict=True):
            check_export(spec, key, folders[key])
    single = len(specs) == 1
    if single and not args.json:
        print(describe(specs[0], keys[0]))
    records = run_all(specs, stored, store, args)
    for record in records:
        if args.until and record.rounds > args.until:
            print(f"pfl: run {record.key} has {record.rounds} rounds already; they all count", file=sys.stderr)
    saved = {}  # key -> text about the models
    for record, was_stored in zip(records, stored, strict=True):
        if args.keep_state and was_stored:
            keep_state(record, store)
        if args.save_models and record.key not in saved:
            saved[record.key] = save(record, store, folders[record.key])
            if not (was_stored or args.keep_state or record.partial):
                remove(store.checkpoint(record.key))
    if args.json:
        varied = [row.varied for row in rows for _ in row.specs]
        for record, was_stored, values in zip(records, stored, varied, strict=True):
            models = {"models": str(folders[record.key])} if saved else {}
            print(as_json(result(record, was_stored) | ({"varied": values} if values else {}) | models))
        return 0
    if single:
        print(summary(records[0], stored[0], store))
    else:
        from pfl_core.study.method_comparison import remarks

        runs = frame_of(rows, records)
        columns, cells = scores(rows, runs, ["upload, MB"])
        lines = [[*map(str, row.varied.values()), *line] for row, line in zip(rows, cells, strict=True)]
        print(table([*rows[0].varied, *columns], lines))
        print(*remarks(runs), f"{sum(stored)} of {len(records)} runs were stored already", sep="\n")
    if args.keep_state:
        print(keeping(records[0]))
    if saved:
        print(*saved.values(), sep="\n")
    return 0


def keeping(record: Record) -> str:
    """What a kept state is good for."""
    from pfl_core.runs.extend import horizon_dependence

    if record.partial:
        return "the state is kept: the same command without --until continues from it"
    if reason := horizon_dependence(record.spec):
        return f"the state is kept, but a run with more rounds cannot continue from it: {reason}"
    return "the state is kept: the same command with more --rounds continues from it"


def per_client(record: Record) -> list[str]:
    """The metrics of the last round over the clients: a line for each, and a header; nothing without metrics."""
    lines = []
    for name in filter(record.series.__contains__, METRICS):
        values = record.values(name).iloc[-1]
        lines.append(f"{f'{name}: {METRICS[name]}':<62}{values.mean():>8.4f}{values.min():>8.4f}{values.max():>9.4f}")
    return [f"{'clients, last round':<62}{'mean':>8}{'lowest':>8}{'highest':>9}", *lines] if lines else []


def inert(check: MechanismCheck) -> str:
    """Warning for a run in which the method's mechanism did not act."""
    measured = f"{check.what}: {check.value:.3g} (bound {check.bound:g})"
    return f"a check of the mechanism failed, so this run does not show the method; {measured}; {check.otherwise}"


def warnings_of(record: Record, loss: float) -> list[str]:
    """Why the numbers of a run with this loss may not mean what they seem to."""
    lines = [inert(check) for check in record.mechanism if not check.acts]
    diverged = f"training diverged: the loss of the last round is {loss:.2g}, so accuracies mean nothing"
    return lines if loss < DIVERGED else [diverged, *lines]


def result(record: Record, was_stored: bool) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    from pfl_core.study.method_comparison import validation

    spec = record.spec
    context = {"data": spec.data["name"], "about": record.about, "rounds": record.rounds, "seed": spec.seed}
    context |= {"rounds_planned": spec.rounds} if record.partial else {}
    numbers = record.summary() | {"acc_val": validation(record)}
    context |= {"warnings": told} if (told := warnings_of(record, numbers["loss"])) else {}
    return {"method": spec.method["name"], **numbers, "key": record.key, **context, "stored": was_stored}


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


def summary(record: Record, was_stored: bool, store: Store) -> str:
    """The result as text: accuracies, communication, time, and the record's file."""
    from pfl_core.study.claims import span
    from pfl_core.study.method_comparison import validation

    numbers = record.summary()
    lines = [f"{'accuracy, percent':<22}{'mean':>8}{'pooled':>8}{'bottom decile':>15}"]
    titles = {"": "last round", "_best": "best round", "_trained": "before aggregation", "_novel": "novel clients"}
    for suffix, title in titles.items():
        if f"acc_mean{suffix}" not in numbers:
            continue
        mean, pooled, decile = (numbers[f"acc_{kind}{suffix}"] for kind in ("mean", "pooled", "bottom_decile"))
        lines.append(f"{title:<22}{mean:>8.2f}{pooled:>8.2f}{decile:>15.2f}")
    if not math.isnan(validated := validation(record)):
        lines.append(f"{'validation samples':<30}{validated:>8.2f}")
    train, test = ([sum(of) for of in record.clients[part]] for part in ("train", "test"))  # samples by client
    lines.append(f"{len(train)} clients with {span(train, 'd')} training and {span(test, 'd')} test samples")
    lines += [f"data: {record.about}"] if record.about else []
    lines += [f"stopped early: {record.length} rounds"] if record.partial else []
    upload = "not recorded" if math.isnan(numbers["upload_mb"]) else f"{numbers['upload_mb']:.2f} MB"
    lines.append(f"upload of all clients: {upload}; run time {duration(record.seconds)}")
    lines += per_client(record) + warnings_of(record, numbers["loss"])
    lines.append("read from the store, nothing was computed" if was_stored else f"stored in {store.path(record.key)}")
    return "\n".join(lines)

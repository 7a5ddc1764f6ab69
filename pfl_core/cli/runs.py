"""``pfl runs``: list, export and delete stored runs."""

from __future__ import annotations

import argparse
import gc
import json
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_core.cli.arguments import known, positive
from pfl_core.cli.models import WHICH, folders_for, save
from pfl_core.cli.specs import MAIN_OPTION, trial
from pfl_core.cli.tables import as_json, duration, size, table
from pfl_core.papers import STUDIES, study
from pfl_core.plugins import MissingCodeWarning
from pfl_core.study.presets import PRESETS

if TYPE_CHECKING:
    from pfl_core.runs import Record, RunSpec, Store


COLUMNS = ("key", "paper", "preset", "method", "variant", "data", "settings", "rounds", "seed", "acc_mean")
IN_COLUMNS = ("method", "data", "rounds", "seed")  # parts of a run that other columns name
LONGEST = 60  # characters of the column "settings"; --json has all
FILTERS = ("paper", "preset", "method", "data")  # options that select runs by a column
SELECTION = {**dict.fromkeys(FILTERS), "newest": None, "all": False}  # options of `list` and `export`


def add(commands: argparse._SubParsersAction) -> None:
    runs = commands.add_parser("runs", help="list, export or delete stored runs")
    runs.set_defaults(do=list_runs, **SELECTION, json=False)
    actions = runs.add_subparsers(dest="action", metavar="list|export|clean|manifest")
    listing = actions.add_parser("list", help="list your runs (default)")
    listing.add_argument("--json", action="store_true", help="print a JSON list of runs")
    listing.set_defaults(do=list_runs)
    export = actions.add_parser(
        "export", help="copy records to a folder, as JSON and as CSV in long format, or write models"
    )
    export.add_argument(
        "where",
        nargs="*",
        metavar="DIR [KEY ...]",
        help="the folder, then keys of any runs; with --results or --models only keys (default: all your runs)",
    )
    target = export.add_mutually_exclusive_group()
    target.add_argument("--results", action="store_true", help="copy the JSON files to data/results/, to commit them")
    target.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help="write the models of one run to DIR, those of several runs to DIR/KEY, as `pfl run --save-models` does; a "
        f"run whose state was not kept is computed again; {WHICH}",
    )
    export.set_defaults(do=export_runs)
    for command in (listing, export):
        add_selection(command)
    clean = actions.add_parser(
        "clean",
        help="delete stale records, damaged files and what killed processes left; data/results/ is never changed",
    )
    kind = clean.add_mutually_exclusive_group()
    kind.add_argument(
        "--stale", action="store_true", help="only stale records: the current code gives them another key"
    )
    kind.add_argument("--damaged", action="store_true", help="only files that were renamed because they are damaged")
    kind.add_argument(
        "--without-code",
        action="store_true",
        help="only records whose code, of your own, cannot be imported from this folder",
    )
    kind.add_argument("--all", action="store_true", help="all records, and the checkpoints of unfinished runs")
    clean.set_defaults(do=delete_runs)
    manifest = actions.add_parser("manifest", help="write data/results/manifest.json, the best stored evidence")
    manifest.set_defaults(do=write_manifest)


def add_selection(command: argparse.ArgumentParser) -> None:
    """The options of SELECTION."""
    command.add_argument("--paper", type=known("paper", STUDIES), help="only runs made for this paper")
    command.add_argument("--preset", type=known("preset", PRESETS), help="only runs of this preset")
    command.add_argument("--method", help="only runs of this method")
    command.add_argument("--data", help="only runs on this data set")
    command.add_argument("--newest", type=positive, metavar="N", help="only the N newest of them, the last one first")
    command.add_argument("--all", action="store_true", help="also the committed runs in data/results/")


def selected(args: argparse.Namespace, keys: Sequence[str] = ()) -> tuple[Store, list[dict[str, Any]]]:
    """The selected runs as rows, and a store that has them.

    Without ``keys`` and --all: only runs in the data folder, not the committed ones. Raises ValueError for an unknown
    key.
    """
    from pfl_core.runs import Store
    from pfl_core.runs.index import indexed

    everything = args.all or bool(keys)
    store = Store() if everything else Store(results=Path(os.devnull))
    here = store.names()
    gc.freeze()  # else the collector goes through all libraries again and again, a third of the time
    rows = [
        {**row, "committed": f"{row['key']}.json" not in here}
        for row in indexed(store, "list" if everything else "own", _row)
    ]
    if unknown := [key for key in keys if key not in {row["key"] for row in rows}]:
        raise ValueError(f"no stored run has the key {unknown[0]!r}; `pfl runs list --all` shows the keys")
    rows = [row for row in rows if all(getattr(args, name) in (None, row[name]) for name in FILTERS)]
    if keys:
        rows = [row for row in rows if row["key"] in keys]
    if args.newest:
        rows = sorted(rows, key=lambda row: row["modified"], reverse=True)[: args.newest]
    return store, rows


def list_runs(args: argparse.Namespace) -> int:
    store, rows = selected(args)
    if args.json:
        print(as_json(rows))
    elif rows:
        print(table((*COLUMNS, "took", "size", "state"), [_cells(row) for row in rows]))
    else:
        print(f"no matching runs in {store.root}" + ("" if args.all else "; --all also lists the committed ones"))
    return 0


def _row(record: Record, path: Path) -> dict[str, Any]:
    """One run as an object of ``pfl runs list --json``; "committed" is added when it is shown."""
    from pfl_core.papers import variant

    spec = record.spec
    return {
        "key": record.key,
        "paper": spec.paper,
        "preset": spec.preset_label,
        "method": spec.method["name"],
        "variant": variant(spec),
        "data": spec.data["name"],
        "settings": _settings(spec),
        "rounds": record.rounds,
        "rounds_planned": spec.rounds,
        "seed": spec.seed,
        "acc_mean": float(record.reported_curve()["acc_mean"].iloc[-1]),
        "seconds": record.seconds,
        "bytes": path.stat().st_size,
        "modified": path.stat().st_mtime,
        "stale": record.stale,
    }


def _settings(spec: RunSpec) -> str:
    """What the other columns leave open: "lr=0.1;model=mlp;partition=dirichlet:0.3".

    That is the name of the paper's setting, if the data have another, and what differs from it; without a paper, what
    differs from `pfl run METHOD`.
    """
    from pfl_core.study.frame import as_text, variant

    setting, usual = _usual(spec.paper, spec.preset, spec.setting, json.dumps(spec.method))
    given, data = _flat(spec.identity()), spec.data["name"]  # without defaults
    changed = {
        name: value
        for name, value in _flat(spec.identity(written_out=True)).items()
        if (value != usual[name] if name in usual else name in given)
    }
    main = f"partition.{MAIN_OPTION.get(spec.partition['name'])}"
    if "partition" in changed and main in changed:
        changed["partition"] += f":{as_text(changed.pop(main))}"
    named = setting.removeprefix(f"{data}, ") if setting != data else ""
    return ";".join(filter(None, (named, variant(changed))))


@cache
def _usual(paper: str, preset: str, setting: str, method: str) -> tuple[str, dict[str, Any]]:
    """The paper's setting with which a run is compared, and its parts for this method (JSON), see ``_flat``.

    A setting that only a notebook has, such as "cifar10, 20 images", is compared with "cifar10".
    """
    fields = json.loads(method)
    name = fields.pop("name")
    for of_paper in (setting, setting.partition(", ")[0]) if paper in STUDIES else ():
        with suppress(ValueError):
            spec = study(paper).settings.spec(name, preset=preset, setting=of_paper, **fields)
            return of_paper, _flat(spec.identity(written_out=True))
    return "", _flat(trial(name, fields, seed=0).identity(written_out=True))


def _flat(identity: dict[str, Any]) -> dict[str, Any]:
    """The parts of a run as `pfl run` takes them: {"model": "mlp", "model.width": 32, "lr": 0.1, "clients": 10}."""
    out: dict[str, Any] = {}
    for part, value in reversed(identity.items()):  # the shortest texts first
        if isinstance(value, dict) and part not in ("method", "train"):
            out |= {part if name == "name" else f"{part}.{name}": option for name, option in value.items()}
        elif part != "method":
            out |= value if part == "train" else {part: value}
    return {name: value for name, value in out.items() if name not in IN_COLUMNS}


def _cells(row: dict[str, Any]) -> list[object]:
    done, planned = row["rounds"], row["rounds_planned"]
    state = ["stale" if row["stale"] else "fresh"]
    state += ["committed"] if row["committed"] else []
    settings = row["settings"] if len(row["settings"]) <= LONGEST else f"{row['settings'][: LONGEST - 3]}..."
    shown = row | {"rounds": f"{done} of {planned}" if done < planned else done, "acc_mean": f"{row['acc_mean']:.2f}"}
    shown |= {"settings": settings}
    return [*(shown[name] for name in COLUMNS), duration(row["seconds"]), size(row["bytes"]), ", ".join(state)]


def export_runs(args: argparse.Namespace) -> int:
    to_folder = not args.results and not args.models
    if to_folder and not args.where:
        raise ValueError("runs export: give the folder to write to")
    keys = args.where[1:] if to_folder else args.where
    if not (to_folder or keys or any(getattr(args, name) for name in SELECTION)):
        option = "--results" if args.results else "--models"
        raise ValueError(f"runs export {option}: select the runs by key, --paper, --preset, --method, --newest, --all")
    if to_folder:
        _check_target(Path(args.where[0]))
    if args.results:
        from pfl_core.notebooks import catalogue

        catalogue.names()  # only a checkout has data/results/
    store, rows = selected(args, keys)
    records = [record for row in rows if (record := store.get(row["key"])) is not None]
    if not records:
        committed = "" if args.all or keys else "; --all also takes the committed ones"
        raise ValueError(f"runs export: no stored run matches, nothing to write{committed}")
    if args.results:
        return _copy_to_results(records)
    if args.models:
        return _export_models(records, store, args.models)
    return _copy_to_folder(records, store, Path(args.where[0]), "" if args.all or keys else "of your ")


def _check_target(folder: Path) -> None:
    """Raise ValueError if a file or a key was given in place of the folder to write to."""
    from pfl_core.runs import Store

    if folder.is_file() or folder.name in Store().files():
        kind = "a file" if folder.is_file() else "the key of a run"
        raise ValueError(f"runs export: {folder} is {kind}; the first argument is the folder to write to")


def _copy_to_folder(records: list[Record], store: Store, folder: Path, whose: str) -> int:
    from pfl_core.files import atomic_write
    from pfl_core.runs.store import write_record

    for record in records:
        write_record(record, folder / f"{record.key}.json")
        atomic_write(folder / f"{record.key}.csv", record.to_frame().to_csv(index=False, lineterminator="\n").encode())
    atomic_write(folder / "runs.csv", _index(records).encode())
    print(f"exported {len(records)} {whose}runs to {folder}: runs.csv, and KEY.json and KEY.csv (long format) of each")
    if stale := [record.key for record in records if record.stale]:
        print(f"stale, with settings at their default as the present code has them: {', '.join(stale)}")
    return 0


def _index(records: list[Record]) -> str:
    """CSV with a row for each run: key, settings, metrics."""
    from pfl_core.study.frame import frame, row_of

    studies = {name: study(name) for name in {record.spec.paper for record in records} if name in STUDIES}
    runs = frame(row_of(record, studies.get(record.spec.paper)) for record in records)
    runs.insert(0, "key", runs.pop("key"))
    return runs.to_csv(index=False, lineterminator="\n")


def _copy_to_results(records: list[Record]) -> int:
    from pfl_core.runs import Store
    from pfl_core.runs.store import write_record

    results = Store().results
    for record in records:
        preset = "other" if record.spec.changed or not record.spec.preset else record.spec.preset
        path = results / (record.spec.paper or "other") / preset / f"{record.key}.json"
        write_record(record, path)
        print(f"{path}  {record.spec.label()}{', STALE' if record.stale else ''}")
    return 0


def _export_models(records: list[Record], store: Store, folder: Path) -> int:
    from pfl_core.runs.export import check as check_export

    folders = folders_for(folder, [record.key for record in records])
    for record in records:
        check_export(record.spec, record.key, folders[record.key])
    for record in records:
        print(save(record, store, folders[record.key]))
    return 0


def write_manifest(args: argparse.Namespace) -> int:
    from pfl_core import papers
    from pfl_core.notebooks import catalogue, manifest
    from pfl_core.runs import Store

    catalogue.names()  # only a checkout has data/results/
    store = Store(root=Path(os.devnull))  # the committed records only
    entries = manifest.best(store)
    print(table(manifest.HEAD, [entry.row for entry in entries]))
    before = manifest.read(store.results)
    whole = {entry.notebook for entry in entries if not entry.missing}
    print(f"written to {manifest.write(entries, store.results)}")
    for entry in before:
        if not entry.missing and entry.notebook not in whole:
            specs = papers.specs(entry.notebook, entry.preset, entry.seeds)
            missing = [spec for spec in specs if store.display_record(spec) is None]
            print(f"no longer complete: {entry.notebook}, preset {entry.preset}: {len(missing)} runs are not stored")
    return 0


def delete_runs(args: argparse.Namespace) -> int:
    """Delete files of the data folder's runs/ and print their names. Reading all records detects the damaged ones."""
    from pfl_core.runs import Store
    from pfl_core.runs.execute import passed_checkpoints
    from pfl_core.runs.prefix import remove_unneeded

    store = Store()
    with warnings.catch_warnings():
        if args.without_code or args.all:  # they are deleted
            warnings.simplefilter("ignore", MissingCodeWarning)
        local = [record for record in store if store.path(record.key).exists()]
    # without a flag: stale records, damaged files and leftovers; each flag selects one kind, or everything
    chosen = args.stale or args.damaged or args.without_code
    found = [path for path in store.without_code if path.parent == store.root] if args.without_code else []
    if args.stale or not chosen:
        found += [store.path(record.key) for record in local if record.stale]
    if args.damaged or not chosen:
        found += store.own("*.damaged")
    left = [] if chosen else [*store.leftovers(), *passed_checkpoints(store)]
    paths = list(dict.fromkeys([*(store.own() if args.all else found), *left]))
    for path in paths:
        file_size = size(path.stat().st_size)
        path.unlink()
        print(f"deleted {path.name}  {file_size}")
    remove_unneeded(store)
    print(f"deleted {len(paths)} files from {store.root}")
    return 0

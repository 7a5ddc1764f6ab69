"""``pfl runs``: list, export and delete stored runs."""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_core.cli.models import WHICH, save
from pfl_core.cli.names import check, complete
from pfl_core.cli.text import as_json, duration, size, table
from pfl_core.papers import STUDIES, study
from pfl_core.study.presets import PRESETS

if TYPE_CHECKING:
    from pfl_core.runs import Record, Store


COLUMNS = ("key", "paper", "preset", "method", "variant", "data", "rounds", "seed", "acc_mean")


def add(commands: argparse._SubParsersAction) -> None:
    runs = commands.add_parser("runs", help="list, export or delete stored runs")
    runs.set_defaults(do=list_runs, paper=None, preset=None, json=False)
    actions = runs.add_subparsers(dest="action", metavar="list|export|clean|manifest")
    listing = actions.add_parser("list", help="list the stored runs (default)")
    listing.add_argument("--json", action="store_true", help="print a JSON list of runs")
    listing.set_defaults(do=list_runs)
    export = actions.add_parser(
        "export", help="copy records to a folder, as JSON and as CSV in long format, or write models"
    )
    export.add_argument(
        "where",
        nargs="*",
        metavar="DIR [KEY ...]",
        help="the folder, then keys; with --results or --models only keys (default: all runs)",
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
        complete(command.add_argument("--paper", help="only runs made for this paper"), STUDIES)
        complete(command.add_argument("--preset", help="only runs of this preset"), PRESETS)
    clean = actions.add_parser(
        "clean",
        help="delete stale records, damaged files and what killed processes left; data/results/ is never changed",
    )
    kind = clean.add_mutually_exclusive_group()
    kind.add_argument(
        "--stale", action="store_true", help="only stale records: the current code gives them another key"
    )
    kind.add_argument("--damaged", action="store_true", help="only files that were renamed because they are damaged")
    kind.add_argument("--all", action="store_true", help="all records, and the checkpoints of unfinished runs")
    clean.set_defaults(do=delete_runs)
    manifest = actions.add_parser("manifest", help="write data/results/manifest.json, the best stored evidence")
    manifest.set_defaults(do=write_manifest)


def list_runs(args: argparse.Namespace) -> int:
    check_names(args)
    from pfl_core.runs import Store
    from pfl_core.runs.index import indexed

    store = Store()
    gc.freeze()  # else the collector goes through all libraries again and again, a third of the time
    here = store.names()
    rows = [
        {**row, "committed": f"{row['key']}.json" not in here}
        for row in indexed(store, "list", _row)
        if args.paper in (None, row["paper"]) and args.preset in (None, row["preset"])
    ]
    if args.json:
        print(as_json(rows))
        return 0
    columns = (*COLUMNS, "took", "size", "state")
    cells = [_cells(row) for row in rows]
    print(table(columns, cells) if rows else f"no matching runs in {store.root}")
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
        "rounds": record.rounds,
        "rounds_planned": spec.rounds,
        "seed": spec.seed,
        "acc_mean": float(record.reported_curve()["acc_mean"].iloc[-1]),
        "seconds": record.seconds,
        "bytes": path.stat().st_size,
        "stale": record.stale,
    }


def _cells(row: dict[str, Any]) -> list[object]:
    done, planned = row["rounds"], row["rounds_planned"]
    state = ["stale" if row["stale"] else "fresh"]
    state += ["committed"] if row["committed"] else []
    shown = row | {"rounds": f"{done} of {planned}" if done < planned else done, "acc_mean": f"{row['acc_mean']:.2f}"}
    return [*(shown[name] for name in COLUMNS), duration(row["seconds"]), size(row["bytes"]), ", ".join(state)]


def record_path(record: Record, store: Store) -> Path:
    """The record's file: in the data folder, else among the committed results."""
    local = store.path(record.key)
    return local if local.exists() else next(store.results.glob(f"**/{record.key}.json"))


def check_names(args: argparse.Namespace) -> None:
    """Raise ValueError for an unknown paper or preset."""
    check("paper", args.paper, STUDIES)
    check("preset", args.preset, PRESETS)


def select_records(store: Store, args: argparse.Namespace, keys: list[str] | None = None) -> list[Record]:
    """The stored records selected by keys, --paper and --preset. Raises ValueError for an unknown key."""
    records = {record.key: record for record in store}
    unknown = [key for key in keys or [] if key not in records]
    if unknown:
        raise ValueError(f"no stored run has the key {unknown[0]!r}; `pfl runs list` shows the keys")
    candidates = [records[key] for key in keys] if keys else records.values()
    return [r for r in candidates if args.paper in (None, r.spec.paper) and args.preset in (None, r.spec.preset_label)]


def export_runs(args: argparse.Namespace) -> int:
    check_names(args)
    from pfl_core.files import atomic_write
    from pfl_core.notebooks import catalogue
    from pfl_core.runs import Store

    store = Store()
    if args.results:
        if not (args.where or args.paper or args.preset):
            raise ValueError("runs export --results: select the runs by key, --paper or --preset")
        catalogue.names()  # only a checkout has data/results/
        return _copy_to_results(select_records(store, args, args.where), store)
    if args.models:
        if not (args.where or args.paper or args.preset):
            raise ValueError("runs export --models: select the runs by key, --paper or --preset")
        return _export_models(select_records(store, args, args.where), store, args.models)
    if not args.where:
        raise ValueError("runs export: give the folder to write to")
    folder, records = Path(args.where[0]), select_records(store, args, args.where[1:])
    if folder.is_file() or folder.name in store.files():
        kind = "a file" if folder.is_file() else "the key of a run"
        raise ValueError(f"runs export: {folder} is {kind}; the first argument is the folder to write to")
    if not records:
        raise ValueError("runs export: no stored run matches, nothing to write")
    for record in records:
        atomic_write(folder / f"{record.key}.json", record_path(record, store).read_bytes())
        atomic_write(folder / f"{record.key}.csv", record.to_frame().to_csv(index=False, lineterminator="\n").encode())
    atomic_write(folder / "runs.csv", _index(records).encode())
    print(f"exported {len(records)} runs to {folder}: runs.csv, and KEY.json and KEY.csv (long format) for each run")
    return 0


def _index(records: list[Record]) -> str:
    """CSV with a row for each run: key, settings, metrics."""
    from pfl_core.study.frame import frame, row_of

    studies = {name: study(name) for name in {record.spec.paper for record in records} if name in STUDIES}
    runs = frame(row_of(record, studies.get(record.spec.paper)) for record in records)
    runs.insert(0, "key", runs.pop("key"))
    return runs.to_csv(index=False, lineterminator="\n")


def _preset(record: Record) -> str:
    """The subfolder of data/results/<paper>/ for a record."""
    return "other" if record.spec.changed or not record.spec.preset else record.spec.preset


def _copy_to_results(records: list[Record], store: Store) -> int:
    from pfl_core.files import atomic_write
    from pfl_core.runs.store import check_replaceable

    if not records:
        raise ValueError("runs export --results: no stored run matches, nothing to write")
    for record in records:
        path = store.results / (record.spec.paper or "other") / _preset(record) / f"{record.key}.json"
        check_replaceable(path)
        atomic_write(path, record_path(record, store).read_bytes())
        print(f"{path}  {record.spec.label()}{', STALE' if record.stale else ''}")
    return 0


def _export_models(records: list[Record], store: Store, folder: Path) -> int:
    from pfl_core.runs.export import check as check_export

    if not records:
        raise ValueError("runs export --models: no stored run matches, nothing to write")
    folders = [folder / record.key if len(records) > 1 else folder for record in records]
    for record, target in zip(records, folders, strict=True):
        check_export(record.spec, record.key, target)
    for record, target in zip(records, folders, strict=True):
        print(save(record, store, target))
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
    local = [record for record in store if store.path(record.key).exists()]
    # without a flag: stale records, damaged files and leftovers; each flag selects one kind, or everything
    stale = [store.path(record.key) for record in local if record.stale and not args.damaged]
    damaged = store.own("*.damaged") if not args.stale else []
    left = [] if args.stale or args.damaged else [*store.leftovers(), *passed_checkpoints(store)]
    paths = list(dict.fromkeys([*(store.own() if args.all else stale + damaged), *left]))
    for path in paths:
        file_size = size(path.stat().st_size)
        path.unlink()
        print(f"deleted {path.name}  {file_size}")
    remove_unneeded(store)
    print(f"deleted {len(paths)} files from {store.root}")
    return 0

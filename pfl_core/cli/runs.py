"""``pfl runs``: what is stored, copied out, brought to today's format, dropped."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pfl_core.cli.names import check
from pfl_core.cli.text import duration, size, table
from pfl_core.papers import PAPERS
from pfl_core.study.presets import PRESETS

if TYPE_CHECKING:
    from pfl_core.runs import Record, Store


def add(commands: argparse._SubParsersAction) -> None:
    runs = commands.add_parser("runs", help="stored runs: list, export, clean, migrate")
    runs.set_defaults(do=show, paper=None, preset=None)
    what = runs.add_subparsers(dest="what", metavar="list|export|clean|migrate|manifest")
    listed = what.add_parser("list", help="every stored run (the default)")
    listed.set_defaults(do=show)
    export = what.add_parser("export", help="copy records out, as JSON and as tidy CSV")
    export.add_argument("where", nargs="*", metavar="DIR [KEY ...]", help="with --results: KEY ...; default: all runs")
    export.add_argument("--results", action="store_true", help="copy the JSON into data/results/, to be committed")
    export.set_defaults(do=copy_out)
    for chosen in (listed, export):
        chosen.add_argument("--paper", help="only runs made for this paper")
        chosen.add_argument("--preset", help="only runs of this preset")
    clean = what.add_parser("clean", help="drop stale and damaged records, or those a flag names; data/results/ stays")
    kind = clean.add_mutually_exclusive_group()
    kind.add_argument(
        "--stale", action="store_true", help="only records that today's code would not make under their key"
    )
    kind.add_argument("--damaged", action="store_true", help="only files that were set aside as damaged")
    kind.add_argument("--all", action="store_true", help="every record, and the checkpoints of unfinished runs")
    clean.set_defaults(do=drop)
    moved = what.add_parser("migrate", help="bring records of the first format, whose keys hashed code, to today's")
    moved.add_argument("--results", action="store_true", help="those committed in data/results/ as well")
    moved.set_defaults(do=bring_along)
    listing = what.add_parser("manifest", help="write data/results/manifest.json: which evidence is complete")
    listing.set_defaults(do=write_manifest)


def show(args: argparse.Namespace) -> int:
    check_names(args)
    from pfl_core.runs import Store

    store = Store()
    records = chosen(store, args)
    columns = (
        "key",
        "paper",
        "preset",
        "method",
        "variant",
        "data",
        "rounds",
        "seed",
        "acc_mean",
        "took",
        "size",
        "state",
    )
    rows = [_row(record, store) for record in records]
    print(table(columns, rows) if rows else f"no such runs in {store.root}")
    return 0


def _row(record: Record, store: Store) -> tuple[object, ...]:
    from pfl_core.papers import variant
    from pfl_core.runs.store import SCHEMA

    spec, path = record.spec, record_path(record, store)
    state = ["first format" if record.schema < SCHEMA else "stale" if record.stale else "fresh"] + [
        "committed"
    ] * path.is_relative_to(store.results)
    return (
        record.key,
        spec.paper,
        spec.made_for,
        spec.method["name"],
        variant(spec),
        spec.data["name"],
        record.length,
        spec.seed,
        f"{record.summary()['acc_mean']:.2f}",
        duration(record.seconds),
        size(path.stat().st_size),
        ", ".join(state),
    )


def record_path(record: Record, store: Store) -> Path:
    """The record's file: in the data folder, else among the committed results."""
    own = store.path(record.key)
    return own if own.exists() else next(store.results.glob(f"**/{record.key}.json"))


def check_names(args: argparse.Namespace) -> None:
    """Raise ValueError for a paper or a preset that does not exist."""
    check("paper", args.paper, PAPERS)
    check("preset", args.preset, PRESETS)


def chosen(store: Store, args: argparse.Namespace, keys: list[str] | None = None) -> list[Record]:
    """The stored records that were asked for. Raises ValueError for a key that does not exist."""
    records = {record.key: record for record in store}
    unknown = [key for key in keys or [] if key not in records]
    if unknown:
        raise ValueError(f"no stored run has the key {unknown[0]!r}; `pfl runs list` shows the keys")
    wanted = [records[key] for key in keys] if keys else records.values()
    return [r for r in wanted if args.paper in (None, r.spec.paper) and args.preset in (None, r.spec.made_for)]


def copy_out(args: argparse.Namespace) -> int:
    check_names(args)
    from pfl_core.runs import Store
    from pfl_core.runs.store import atomic_write

    store = Store()
    if args.results:
        if not (args.where or args.paper or args.preset):
            raise ValueError("pfl runs export --results: name the runs to commit, by key, --paper or --preset")
        return _commit(chosen(store, args, args.where), store)
    if not args.where:
        raise ValueError("pfl runs export: name the folder to write to")
    folder, records = Path(args.where[0]), chosen(store, args, args.where[1:])
    if folder.is_file() or store.get(folder.name) is not None:
        kind = "file" if folder.is_file() else "run's key"
        raise ValueError(f"pfl runs export: {folder} is a {kind}; name the folder to write to first")
    if not records:
        raise ValueError("pfl runs export: no such run is stored, nothing to write")
    for record in records:
        atomic_write(folder / f"{record.key}.json", record_path(record, store).read_bytes())
        atomic_write(folder / f"{record.key}.csv", record.to_frame().to_csv(index=False).encode())
    atomic_write(folder / "runs.csv", _index(records).encode())
    print(f"{len(records)} runs in {folder}: runs.csv, and of each KEY.json and KEY.csv (by round, client and metric)")
    return 0


def _index(records: list[Record]) -> str:
    """One row for each run: its key, settings and numbers, as CSV."""
    from pfl_core.study.frames import summaries

    frame = summaries(records)
    frame.insert(0, "key", [record.key for record in records])
    return frame.to_csv(index=False)


def _preset(record: Record) -> str:
    """The folder of a committed record."""
    return "other" if record.spec.changed or not record.spec.preset else record.spec.preset


def _commit(records: list[Record], store: Store) -> int:
    from pfl_core.runs.store import atomic_write

    if not records:
        raise ValueError("pfl runs export --results: no such run is stored, nothing to write")
    for record in records:
        path = store.results / (record.spec.paper or "other") / _preset(record) / f"{record.key}.json"
        atomic_write(path, record_path(record, store).read_bytes())
        print(f"{path}  {record.spec.label()}{', STALE' if record.stale else ''}")
    return 0


def bring_along(args: argparse.Namespace) -> int:
    """Says what could not be shown to be today's; data/results/ only if asked, for that is the repository's."""
    from pfl_core.runs import Store
    from pfl_core.runs.migrate import files, migrate

    store = Store()
    folders = [store.root, *([store.results] if args.results else [])]
    counts = migrate([path for folder in folders for path in files(folder)], print)
    told = ", ".join(f"{count} {what}" for what, count in sorted(counts.items())) or "none"
    print(f"records: {told}")
    return 1 if counts["damaged"] else 0


def write_manifest(args: argparse.Namespace) -> int:
    from pfl_core import papers
    from pfl_core.notebooks import manifest
    from pfl_core.runs import Store

    store = Store(root=Path(os.devnull))  # what is committed, and nothing else
    entries = manifest.complete(store)
    rows = [(entry.notebook, entry.preset, ", ".join(map(str, entry.seeds)), len(entry.keys)) for entry in entries]
    print(table(("notebook", "preset", "seeds", "runs"), rows))
    before = manifest.read(store.results) if (store.results / manifest.NAME).exists() else []
    lost = [entry for entry in before if entry.notebook not in {entry.notebook for entry in entries}]
    print(f"written to {manifest.write(entries, store.results)}")
    for entry in lost:
        missing = [
            spec for spec in papers.specs(entry.notebook, entry.preset, entry.seeds) if store.drawn(spec) is None
        ]
        print(f"no longer complete: {entry.notebook}, preset {entry.preset}: {len(missing)} runs are not stored")
    return 0


def drop(args: argparse.Namespace) -> int:
    """Only below the data folder's runs/; says what goes. Reading all records is what finds damaged ones."""
    from pfl_core.runs import Store
    from pfl_core.runs.store import SCHEMA

    store = Store()
    own = [record for record in store if store.path(record.key).exists()]
    first = [record for record in own if record.schema < SCHEMA]
    if first and not (args.stale or args.damaged or args.all):
        print(
            f"{len(first)} records of the first format stay: bring them along with `pfl runs migrate`, or use --stale"
        )
        own = [record for record in own if record.schema == SCHEMA]
    stale = [store.path(record.key) for record in own if record.stale and not args.damaged]
    damaged = sorted(store.root.glob("*.damaged")) if not args.stale else []
    everything = [path for path in sorted(store.root.glob("*")) if path.is_file()]  # its folders keep sums, no runs
    paths = everything if args.all else stale + damaged
    for path in paths:
        told = f"dropped {path.name}  {size(path.stat().st_size)}"
        path.unlink()
        print(told)
    print(f"{len(paths)} files dropped from {store.root}")
    return 0

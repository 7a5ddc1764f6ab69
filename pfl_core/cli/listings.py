"""``pfl methods`` and ``pfl data`` list what is available."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_core.cli.names import complete, data_sets
from pfl_core.cli.text import as_json, table
from pfl_core.data.registry import check_name, data_dir

if TYPE_CHECKING:
    from pfl_core.algorithm import MethodEntry


def add(commands: argparse._SubParsersAction) -> None:
    methods = commands.add_parser("methods", help="list the methods: papers, shared parameters, variants, file")
    methods.add_argument("--json", action="store_true", help="print a JSON list of objects, with all fields")
    methods.set_defaults(do=show_methods)

    sets = commands.add_parser("data", help="list the data sets, or download and verify some of them")
    names = sets.add_argument("names", nargs="*", metavar="NAME", help="download and verify these (default: list all)")
    complete(names, data_sets)
    sets.add_argument("--dir", type=Path, help="the data folder (default: PFL_DATA_DIR, else data/)")
    sets.add_argument("--offline", action="store_true", help="verify existing files only; download nothing")
    sets.add_argument("--json", action="store_true", help="print a JSON list of objects")
    sets.set_defaults(do=show_data)


def show_methods(args: argparse.Namespace) -> int:
    from pfl_core import algorithm

    rows = [_method(entry) for _, entry in sorted(algorithm.methods().items())]
    if args.json:
        print(as_json(rows))
        return 0
    cells = [(r["name"], _names(r["papers"]), r["shares"], _names(r["variants"]), r["file"]) for r in rows]
    print(table(("name", "papers", "what is shared", "variants", "file"), cells))
    return 0


def _names(names: Iterable[str]) -> str:
    return ", ".join(names)


def _method(entry: MethodEntry) -> dict[str, Any]:
    """One method as an object of ``pfl methods --json``."""
    from pfl_core.runs import provenance

    path = Path(inspect.getfile(entry.cls))
    in_project = path.is_relative_to(provenance.ROOT)
    return {
        "name": entry.name,
        "papers": list(entry.papers),
        "shares": entry.shares,
        "variants": {name: dict(fields) for name, fields in entry.variants.items()},
        "readings": list(entry.cls.readings),
        "fields": {f.name: f.default for f in dataclasses.fields(entry.cls) if f.default is not dataclasses.MISSING},
        "file": (path.relative_to(provenance.ROOT) if in_project else path).as_posix(),
    }


def show_data(args: argparse.Namespace) -> int:
    for name in args.names:
        check_name(name, data_dir(args.dir))
    from pfl_core import data

    rows = data.fetch(args.names, folder=args.dir, offline=args.offline)
    with_note = [row for row in rows if row["note"]]
    failed = [row for row in with_note if row["status"] in ("missing", "not downloaded", "damaged")]
    if args.json:
        print(as_json(rows))
    else:
        columns = ("name", "status", "licence", "where", "size")
        print(table(columns, [[row[name] for name in columns] for row in rows]))
        for row in with_note:
            if row not in failed:
                print(f"{row['name']}: {row['note']}")
    for row in failed:
        print("pfl:", " ".join(row["note"].split()), file=sys.stderr)
    return 2 if failed else 0

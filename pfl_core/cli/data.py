"""``pfl data``: list the data sets, or download and verify some of them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pfl_core.cli.tables import as_json, table
from pfl_core.data.registry import check_name, data_dir


def add(commands: argparse._SubParsersAction) -> None:
    sets = commands.add_parser("data", help="list the data sets, or download and verify some of them")
    sets.add_argument("data", nargs="*", metavar="NAME", help="download and verify these (default: list all)")
    sets.add_argument("--dir", type=Path, help="the data folder (default: PFL_DATA_DIR, else data/)")
    sets.add_argument("--offline", action="store_true", help="verify existing files only; download nothing")
    sets.add_argument("--json", action="store_true", help="print a JSON list of objects")
    sets.set_defaults(do=do_data)


def do_data(args: argparse.Namespace) -> int:
    for name in args.data:
        check_name(name, data_dir(args.dir))
    from pfl_core import data

    rows = data.fetch(args.data, folder=args.dir, offline=args.offline)
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

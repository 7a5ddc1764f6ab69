"""``pfl methods`` and ``pfl data`` list what is available; ``pfl compare`` compares published and stored results."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_core.cli.names import check
from pfl_core.cli.text import as_json, table
from pfl_core.data.registry import check_name, data_dir
from pfl_core.papers import PAPERS, paper

if TYPE_CHECKING:
    from pfl_core.algorithm import MethodEntry


def add(commands: argparse._SubParsersAction) -> None:
    methods = commands.add_parser("methods", help="list the methods: papers, shared parameters, variants, file")
    methods.add_argument("--json", action="store_true", help="print a JSON list of objects, with all fields")
    methods.set_defaults(do=show_methods)

    sets = commands.add_parser("data", help="list the data sets, or download and verify some of them")
    sets.add_argument("names", nargs="*", metavar="NAME", help="download and verify these (default: list all)")
    sets.add_argument("--dir", type=Path, help="the data folder (default: PFL_DATA_DIR, else data/)")
    sets.add_argument("--offline", action="store_true", help="verify existing files only; download nothing")
    sets.set_defaults(do=show_data)

    compare = commands.add_parser("compare", help="compare the papers' tables with the stored results")
    compare.add_argument("paper", nargs="?", metavar="PAPER", help=f"{', '.join(PAPERS)} (default: all)")
    compare.add_argument("--json", action="store_true", help="print a JSON list of rows")
    compare.set_defaults(do=show_compare)


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
    columns = ("name", "status", "licence", "where", "size")
    print(table(columns, [[row[name] for name in columns] for row in rows]))
    with_note = [row for row in rows if row["note"]]
    failed = [row for row in with_note if row["status"] not in ("built in", "verified", "sound")]
    for row in with_note:
        if row not in failed:
            print(f"{row['name']}: {row['note']}")
    for row in failed:
        print("pfl:", " ".join(row["note"].split()), file=sys.stderr)
    return 2 if failed else 0


def show_compare(args: argparse.Namespace) -> int:
    check("paper", args.paper, PAPERS)
    from pfl_core.runs import Store
    from pfl_core.study.compare import ROW, compare

    papers = [paper(name) for name in ([args.paper] if args.paper else PAPERS)]
    records = list(Store())
    rows_of = {p.name: compare(p.comparison, p.metrics_frame(records)) for p in papers}
    if args.json:
        print(as_json([row for rows in rows_of.values() for row in rows]))
        return 0
    print(
        "\n\n".join(
            _comparison(name, [[_cell(row[c], c) for c in ROW] for row in rows]) for name, rows in rows_of.items()
        )
    )
    return 0


def _comparison(name: str, cells: list[list[str]]) -> str:
    """One paper's table, followed by remarks on its published numbers."""
    from pfl_core.study.compare import ROW
    from pfl_core.study.published import remarks

    return "\n".join([name, table(ROW, cells), *(f"note: {line}" for line in remarks(name))])


def _cell(value: object, column: str) -> str:
    if isinstance(value, bool):
        return ("stale" if column == "stale" else "yes") if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "-" if value in (None, "") else str(value)

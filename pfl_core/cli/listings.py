"""``pfl methods``, ``pfl data`` and ``pfl compare``: what there is, and how it compares."""

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
    methods = commands.add_parser("methods", help="every method: paper, what is shared, variants, file")
    methods.add_argument("--json", action="store_true", help="a list of objects instead of a table")
    methods.set_defaults(do=show_methods)

    sets = commands.add_parser("data", help="list data sets; with names: fetch and verify them")
    sets.add_argument("names", nargs="*", metavar="NAME")
    sets.add_argument("--dir", type=Path, help="the data folder (default: PFL_DATA_DIR, else data/)")
    sets.add_argument("--offline", action="store_true", help="verify only what is here")
    sets.set_defaults(do=show_data)

    compare = commands.add_parser("compare", help="the papers' tables beside the stored results")
    compare.add_argument("paper", nargs="?", metavar="PAPER", help="default: all papers")
    compare.add_argument("--json", action="store_true", help="a list of rows instead of tables")
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
    from pfl_core.runs import provenance

    path = Path(inspect.getfile(entry.cls))
    inside = path.is_relative_to(provenance.ROOT)
    return {
        "name": entry.name,
        "papers": list(entry.papers),
        "shares": entry.shares,
        "variants": {name: dict(fields) for name, fields in entry.variants.items()},
        "readings": list(entry.cls.readings),
        "fields": {f.name: f.default for f in dataclasses.fields(entry.cls) if f.default is not dataclasses.MISSING},
        "file": str(path.relative_to(provenance.ROOT) if inside else path),
    }


def show_data(args: argparse.Namespace) -> int:
    for name in args.names:
        check_name(name, data_dir(args.dir))
    from pfl_core import data

    rows = data.fetch(args.names, folder=args.dir, offline=args.offline)
    columns = ("name", "status", "licence", "where", "size")
    print(table(columns, [[row[name] for name in columns] for row in rows]))
    notes = [row for row in rows if row["note"]]
    bad = [row for row in notes if row["status"] not in ("built in", "verified", "sound")]
    for row in notes:
        if row not in bad:
            print(f"{row['name']}: {row['note']}")
    for row in bad:
        print("pfl:", " ".join(row["note"].split()), file=sys.stderr)
    return 2 if bad else 0


def show_compare(args: argparse.Namespace) -> int:
    check("paper", args.paper, PAPERS)
    from pfl_core.runs import Store
    from pfl_core.study.compare import ROW, compare

    papers = [paper(name) for name in ([args.paper] if args.paper else PAPERS)]
    stored = list(Store())
    found = {each.name: compare(each.comparison, each.metrics_frame(stored)) for each in papers}
    if args.json:
        print(as_json([row for rows in found.values() for row in rows]))
        return 0
    print(
        "\n\n".join(_beside(name, [[_shown(row[c], c) for c in ROW] for row in rows]) for name, rows in found.items())
    )
    return 0


def _beside(name: str, cells: list[list[str]]) -> str:
    """One paper's tables, and below them what to know about its numbers."""
    from pfl_core.study.compare import ROW
    from pfl_core.study.published import remarks

    return "\n".join([name, table(ROW, cells), *(f"note: {line}" for line in remarks(name))])


def _shown(value: object, column: str) -> str:
    if isinstance(value, bool):
        return ("stale" if column == "stale" else "yes") if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "-" if value in (None, "") else str(value)

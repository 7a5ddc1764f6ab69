"""``pfl search``: choose every method's rates and strengths on validation images, and write them down."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pfl_core.cli.names import check
from pfl_core.cli.text import positive, table
from pfl_core.papers import PAPERS, paper
from pfl_core.study.presets import PRESETS

if TYPE_CHECKING:
    from pfl_core.study.paper import Paper
    from pfl_core.study.search import Search

Place = tuple[str, str]  # preset and setting


def add(commands: argparse._SubParsersAction) -> None:
    search = commands.add_parser(
        "search",
        help="choose rates and strengths on validation images",
        description="Tries the grids that a paper's criteria.py states for each method, on validation images, and "
        "writes what it chose into the paper's searched.json, which its settings read. Stored runs are read.",
    )
    search.add_argument("paper", metavar="PAPER")
    search.add_argument("methods", nargs="*", metavar="METHOD", help="default: all that have a grid")
    search.add_argument("--preset", help="default: all that have a search")
    search.add_argument("--setting", help="default: all that have a search")
    search.add_argument("--jobs", type=positive, metavar="N", help="runs at the same time (default: all cores)")
    search.add_argument("--list", action="store_true", help="only list the grids and what was chosen")
    search.set_defaults(do=do_search)


def do_search(args: argparse.Namespace) -> int:
    check("paper", args.paper, PAPERS)
    if args.preset:
        check("preset", args.preset, PRESETS)
    own = paper(args.paper)
    wanted = chosen(own, args)
    if args.list:
        rows = [(*place, one.method, grid_text(one), chosen_text(own, place, one)) for place, one in wanted]
        print(table(("preset", "setting", "method", "grid", "chosen"), rows))
        return 0
    from pfl_core.study.search import run_search, write

    for place, one in wanted:
        row = run_search(one, own.settings, *place, jobs=args.jobs)
        write(own.searched, [row])
        edge = f"; {', '.join(row['edges'])} at an end of the grid" if row["edges"] else ""
        values = ", ".join(f"{name}={value}" for name, value in row["values"].items())
        print(
            f"{', '.join(place)}, {one.method}: {values} ({row['validation']:.2f} % of the validation images; "
            f"{row['runs']} runs, {row['hours']:.2f} hours{edge})",
            flush=True,
        )
    return 0


def chosen(own: Paper, args: argparse.Namespace) -> list[tuple[Place, Search]]:
    """The searches that are asked for. Raises ValueError if there is none."""
    found = [
        (place, one)
        for place, searches in own.searches.items()
        for one in searches
        if args.preset in (None, place[0]) and args.setting in (None, place[1])
        if not args.methods or one.method in args.methods
    ]
    if not found:
        known = [f"{', '.join(place)}: {', '.join(s.method for s in some)}" for place, some in own.searches.items()]
        raise ValueError(f"{own.name} has no such search; it has {'; '.join(known) or 'none'}")
    return found


def grid_text(one: Search) -> str:
    return "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in one.grid.items())


def chosen_text(own: Paper, place: Place, one: Search) -> str:
    values = own.settings.searched.get(place, {}).get(one.method)
    return ", ".join(f"{name}={value}" for name, value in values.items()) if values else "-"

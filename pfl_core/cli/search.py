"""``pfl search``: choose each method's learning rate and regularization strength on validation images."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pfl_core.cli.arguments import add_computing, known
from pfl_core.cli.tables import as_json, table
from pfl_core.options import did_you_mean
from pfl_core.papers import STUDIES, study
from pfl_core.study.presets import PRESETS

if TYPE_CHECKING:
    from pfl_core.study.paper import Study
    from pfl_core.study.search import Search

Location = tuple[str, str]  # preset and setting


def add(commands: argparse._SubParsersAction) -> None:
    search = commands.add_parser(
        "search",
        help="tune hyperparameters on validation images",
        description="Grid search on validation images. The grid of each method is defined in the paper's searches.py. "
        "The chosen values are written to the paper's searched.json, where the paper's settings read them. "
        "Stored runs are reused. A run whose validation loss is NaN for every client ends early.",
    )
    search.add_argument("paper", type=known("paper", STUDIES), metavar="PAPER", help=", ".join(STUDIES))
    search.add_argument("methods", nargs="*", metavar="METHOD", help="default: all methods that have a grid")
    search.add_argument(
        "--preset", type=known("preset", PRESETS), help="only this preset (default: all presets that have a search)"
    )
    search.add_argument("--setting", help="only this setting (default: all settings that have a search)")
    add_computing(search)
    search.add_argument("--list", action="store_true", help="list the grids and the chosen values; run nothing")
    search.add_argument("--json", action="store_true", help="print what --list shows as a JSON list")
    search.set_defaults(do=do_search)


def do_search(args: argparse.Namespace) -> int:
    if args.json and not args.list:
        raise ValueError("--json prints what --list shows; add --list")
    selected_study = study(args.paper)
    selected = selected_searches(selected_study, args)
    if args.list:
        objects, rows = [], []
        for location, search in selected:
            preset, setting = location
            chosen = selected_study.settings.searched.get(location, {}).get(search.method)
            known_as = {"preset": preset, "setting": setting, "method": search.method}
            tried = {**search.grid, **search.each}
            objects.append({**known_as, "grid": tried, "chosen": chosen})
            grid = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in tried.items())
            rows.append((preset, setting, search.method, grid, values_text(chosen or {})))
        print(as_json(objects) if args.json else table(("preset", "setting", "method", "grid", "chosen"), rows))
        return 0
    from pfl_core.study.search import run_search, write

    for location, search in selected:
        row = run_search(search, selected_study.settings, *location, jobs=args.jobs)
        write(selected_study.searched, [row])
        edge = f"; {', '.join(row['edges'])} at the edge of the grid" if row["edges"] else ""
        print(
            f"{', '.join(location)}, {search.method}: {values_text(row['values'])} "
            f"(validation accuracy {row['validation']:.2f} %; {row['runs']} runs, {row['hours']:.2f} hours{edge})",
            flush=True,
        )
    return 0


def selected_searches(study: Study, args: argparse.Namespace) -> list[tuple[Location, Search]]:
    """The searches that the arguments select. Raises ValueError if there is none."""
    selected = [
        (location, search)
        for location, searches in study.searches.items()
        for search in searches
        if args.preset in (None, location[0]) and args.setting in (None, location[1])
        if not args.methods or search.method in args.methods
    ]
    names = {search.method for searches in study.searches.values() for search in searches}
    wrong = next((name for name in args.methods if name not in names), "")
    if wrong or not selected:
        about = f" of {wrong!r}{did_you_mean(wrong, names)}" if wrong else " with this preset and setting"
        raise ValueError(f"{study.name} has no search{about}; `pfl search {study.name} --list` lists all")
    return selected


def values_text(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())

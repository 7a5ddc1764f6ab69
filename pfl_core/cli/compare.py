"""``pfl compare``: the papers' tables beside the stored results, or several methods run side by side."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_core.cli.arguments import BadArgument, known, method
from pfl_core.cli.specs import OPTIONS, add_run_options, variations
from pfl_core.cli.sweeps import COSTS, frame_of, locate_all, run_all, scores, show_plan
from pfl_core.cli.tables import Cells, as_json, latex, table
from pfl_core.papers import PAPERS, paper
from pfl_core.registry import METHODS

if TYPE_CHECKING:
    import pandas as pd

    from pfl_core.cli.specs import Variation

FIGURES = (".pdf", ".png")


def add(commands: argparse._SubParsersAction) -> None:
    compare = commands.add_parser(
        "compare",
        help="compare a paper's tables with the stored results, or several methods with each other",
        description="`pfl compare fedselect ditto` trains these methods and compares the first with each other one, "
        "paired by seed. Options apply to every method; --set METHOD.FIELD=VALUE applies to one. "
        "`pfl compare fedselect`, with one name and at most --json or --latex, trains nothing: it shows the tables of "
        "this paper beside the stored results. `pfl compare` shows those of all papers.",
    )
    compare.add_argument(
        "names", nargs="*", metavar="NAME", help=f"two or more methods; or one paper: {', '.join(PAPERS)}"
    )
    add_run_options(compare)
    compare.add_argument(
        "--figure",
        type=figure_path,
        metavar="FILE",
        help="write a figure of the accuracy by round (.pdf or .png), and the numbers beside it as .csv",
    )
    form = compare.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the rows as JSON")
    form.add_argument(
        "--latex", action="store_true", help="print the tables for LaTeX with booktabs; remarks follow %%"
    )
    compare.set_defaults(do=do_compare)


def figure_path(text: str) -> Path:
    """A path that ends in .pdf or .png."""
    if Path(text).suffix not in FIGURES:
        raise BadArgument(f"{text!r} is not a figure file; give a name that ends in {' or '.join(FIGURES)}")
    return Path(text)


def do_compare(args: argparse.Namespace) -> int:
    is_of_runs = any(getattr(args, name) not in (None, [], False) for name in (*OPTIONS, "figure"))
    return compare_methods(args) if len(args.names) > 1 or is_of_runs else compare_papers(args)


def compare_papers(args: argparse.Namespace) -> int:
    (name,) = args.names or (None,)
    if name in METHODS and name not in PAPERS:
        raise ValueError(f"{name!r} is a method and no paper; give a second method to compare it with")
    selected = [known("paper", PAPERS)(name)] if name else list(PAPERS)
    from pfl_core.runs import Store
    from pfl_core.study.compare import ROW, as_frame, compare, counts
    from pfl_core.study.published import remarks

    store = Store()
    rows_of = {name: compare(paper(name), paper(name).stored(store)) for name in selected}
    if args.json:
        print(as_json([row for rows in rows_of.values() for row in rows]))
        return 0
    heads = ["here" if column == "ours" else column for column in ROW]  # a reader may take "ours" for the paper's
    for i, (name, rows) in enumerate(rows_of.items()):
        totals = [f"{of}: {text}" for of, text in counts(as_frame(rows)).items()]
        notes = [f"note: {line}" for line in remarks(name)]
        if i:
            print()
        print_remarks([name], args)
        print_table(heads, [[_cell(row[column], column) for column in ROW] for row in rows], args)
        print_remarks([*totals, *notes], args)
    return 0


def print_table(columns: list[str], cells: Cells, args: argparse.Namespace) -> None:
    print(latex(columns, cells) if args.latex else table(columns, cells))


def print_remarks(lines: Iterable[str], args: argparse.Namespace) -> None:
    """In LaTeX as comments."""
    for line in lines:
        print(f"% {line}" if args.latex else line)


def compare_methods(args: argparse.Namespace) -> int:
    """Train the methods with the same options, and print a table of them and one of their differences."""
    for name in args.names:
        method(name)
    if len(set(args.names)) < max(2, len(args.names)):
        raise ValueError(
            f"cannot compare {' '.join(args.names) or 'no method'}: give two or more different methods; "
            "without options of a run, `pfl compare PAPER` shows a paper's tables"
        )
    rows = variations(args, args.names)
    if args.dry_run:
        show_plan({row.label: row.specs for row in rows}, args, "runs", must_compute=True)
        return 0
    from pfl_core.runs import Store
    from pfl_core.study.method_comparison import differences, remarks, summary

    store, specs = Store(), [spec for row in rows for spec in row.specs]
    _, stored = locate_all(specs, store, args)
    records = run_all(specs, stored, store, args)
    runs = frame_of(rows, records)
    leads, first = differences(runs), rows[0].label
    if args.figure:
        write_figure(runs, args.figure)
    if args.json:
        about, numbers = runs.groupby("label")["about"].first(), summary(runs).to_dict("index")
        methods = [_method(row) | {"about": about[row.label]} | numbers[row.label] for row in rows]
        pairs = [
            {"first": first, "second": other, "difference": lead.mean, "low": lead.low, "high": lead.high}
            | {"p": lead.p, "seeds": lead.seeds, "significant": significant}
            for other, (lead, significant) in leads.items()
        ]
        print(as_json({"methods": methods, "differences": pairs}))
        return 0
    columns, cells = scores(rows, runs, list(COSTS))
    print_table(["method", *columns], [[row.label, *line] for row, line in zip(rows, cells, strict=True)], args)
    print()
    print_remarks([f"lead of {first} in accuracy, points, paired by seed, with its 95 % interval"], args)
    lines = [(other, lead, "yes" if significant else "no") for other, (lead, significant) in leads.items()]
    print_table(["over", "lead", "significant"], lines, args)
    significance = "significant: at the 5 % level"
    if len(leads) > 1:
        significance += f", with Holm's correction for {len(leads)} comparisons; the intervals are not corrected"
    counted = f"{sum(stored)} of {len(records)} runs were stored already"
    print_remarks([significance, *remarks(runs), counted], args)
    return 0


def _method(row: Variation) -> dict[str, Any]:
    """The fields of ``--json`` that say which runs a row has."""
    return {"label": row.label, "method": row.method, "varied": row.varied, "seeds": [spec.seed for spec in row.specs]}


def write_figure(runs: pd.DataFrame, path: Path) -> None:
    """Write the figure, and the CSV file that it was drawn from. Raises OSError if a file cannot be written."""
    import io

    from pfl_core.files import atomic_write
    from pfl_core.study.method_comparison import accuracy_figure, curves

    image = io.BytesIO()
    accuracy_figure(runs).savefig(image, format=path.suffix[1:], dpi=200)
    atomic_write(path.with_suffix(".csv"), curves(runs).to_csv(index=False, lineterminator="\n").encode())
    atomic_write(path, image.getvalue())


def _cell(value: object, column: str) -> str:
    if isinstance(value, bool):
        return ("stale" if column == "stale" else "yes") if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "-" if value in (None, "") else str(value)

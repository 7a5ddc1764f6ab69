"""``pfl report``: judge the papers' claims, and write the results pages from the committed records."""

from __future__ import annotations

import argparse
import gc
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from pfl_core.cli.arguments import known
from pfl_core.cli.tables import as_json, table
from pfl_core.papers import PAPERS, STUDIES, paper, study

if TYPE_CHECKING:
    from pfl_core.study.pages import Report


def add(commands: argparse._SubParsersAction) -> None:
    report = commands.add_parser(
        "report",
        help="judge the papers' claims and write the results pages",
        description="Judge the claims of each PAPER by the records in data/results/, and write "
        "notebooks/PAPER/RESULTS.md, its pictures and tables (figures/claims, figures/cells), and the answers on the "
        "method pages and the README. "
        "Without PAPER also notebooks/REPRODUCTION.md and ERRATA.md. Nothing is trained.",
    )
    report.add_argument(
        "papers", nargs="*", type=known("paper", PAPERS), metavar="PAPER", help=f"{', '.join(PAPERS)} (default: all)"
    )
    report.add_argument("--json", action="store_true", help="print the claims and their effects as JSON; write nothing")
    report.add_argument(
        "--runs",
        type=Path,
        metavar="FOLDER",
        help="judge the records in this folder and below in place of the committed ones; write nothing",
    )
    report.set_defaults(do=do_report)


def do_report(args: argparse.Namespace) -> int:
    if args.runs is not None and not args.runs.is_dir():
        raise ValueError(f"{args.runs} is no folder; give the one with your records, such as data/runs")
    if args.json or args.runs is not None:
        return _judge(args)
    from pfl_core.files import atomic_write
    from pfl_core.notebooks import catalogue
    from pfl_core.runs.provenance import ROOT
    from pfl_core.runs.sweep import num_jobs
    from pfl_core.study import pages

    catalogue.names()  # the pages are written beside the notebooks, so only in a checkout

    # nothing here makes cycles worth collecting, and looking for them takes an eighth of the time
    with ProcessPoolExecutor(num_jobs(None), initializer=gc.disable) as pool:
        reports = list(pool.map(_report, args.papers or STUDIES))
    written = {path: content for own in reports for path, content in own.files.items()}
    notebooks, readme = ROOT / "notebooks", ROOT / "README.md"
    if not args.papers:
        written |= pages.of_all(reports)
        firsts = {own.name: pages.first_sentence(own.answer) for own in reports}
        written[readme] = pages.with_answer(readme.read_text(encoding="utf-8"), firsts).encode()
    for own in reports:
        page = notebooks / own.name / "README.md"
        text = pages.with_answer(page.read_text(encoding="utf-8"), {own.name: pages.paragraphs(own.answer)})
        written[page] = text.encode()
    for path, content in written.items():
        atomic_write(path, content)
    print("\n".join(path.relative_to(ROOT).as_posix() for path in written))
    return 0


def _report(name: str) -> Report:
    from pfl_core.study import pages

    return pages.report(study(name))


def _judge(args: argparse.Namespace) -> int:
    """Print what the claims' runs say: those of a folder, or the committed ones with the committed measurements."""
    import pandas as pd

    from pfl_core.runs import Store
    from pfl_core.study import claims
    from pfl_core.study.frame import frame

    none = Path(os.devnull)
    store = Store(root=none) if args.runs is None else Store(root=none, results=args.runs)
    if args.runs is not None and not store.files():
        raise ValueError(f"{args.runs} and its folders have no record, such as 0123456789abcdef.json")
    judged: list[claims.Judged] = []
    for own in map(paper, args.papers or PAPERS):
        rows = own.stored(store)
        judged += claims.judge(own, rows if args.runs else pd.concat([rows, frame(own.measured_rows())]))
    if args.json:
        print(as_json([found.to_json() for found in judged]))
        return 0
    print(table(("paper", "claim", "here", "effects"), [(f.paper, f.claim.number, f.word, f.counts) for f in judged]))
    return 0

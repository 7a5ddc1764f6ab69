"""``pfl report``: write the results pages from the committed records."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pfl_core.cli.names import check, complete
from pfl_core.cli.text import as_json
from pfl_core.papers import PAPERS, STUDIES, paper, study


def add(commands: argparse._SubParsersAction) -> None:
    report = commands.add_parser(
        "report",
        help="write the results pages",
        description="Write notebooks/PAPER/RESULTS.md from the records in data/results/: answer, verdicts, tables, "
        "mechanism checks, figures, and what is missing; and the answer on the method page. Without PAPER also "
        "notebooks/REPRODUCTION.md, which has all papers, and the answer of notebooks/across. Nothing is computed.",
    )
    names = report.add_argument("papers", nargs="*", metavar="PAPER", help=f"{', '.join(PAPERS)} (default: all)")
    complete(names, PAPERS)
    report.add_argument("--json", action="store_true", help="print the pages that were written as a JSON list")
    report.set_defaults(do=do_report)


def do_report(args: argparse.Namespace) -> int:
    for name in args.papers:
        check("paper", name, PAPERS)
    from pfl_core.runs import Store
    from pfl_core.runs.provenance import ROOT
    from pfl_core.runs.store import atomic_write
    from pfl_core.study import report

    store = Store(root=Path(os.devnull))  # the committed records only
    found = [report.Evidence.of(paper(name), store) for name in args.papers or PAPERS]
    notebooks = ROOT / "notebooks"
    answers = {evidence.paper.name: report.short_answer(evidence) for evidence in found}
    pages = {notebooks / name / report.PAGE: report.page(own) for name, own in zip(answers, found, strict=True)}
    if not args.papers:
        studies = {name: study(name) for name in STUDIES if name not in PAPERS}
        others = {name: (own, report.study_answer(own, store)) for name, own in studies.items()}
        pages[notebooks / report.OVERVIEW] = report.overview(found, others)
        answers |= {name: answer for name, (_, answer) in others.items()}
    for name, answer in answers.items():
        method_page = notebooks / name / "README.md"
        pages[method_page] = report.with_answer(name, answer, method_page.read_text(encoding="utf-8"))
    for path, text in pages.items():
        atomic_write(path, text.encode())
    written = [path.relative_to(ROOT).as_posix() for path in pages]
    print(as_json(written) if args.json else "\n".join(written))
    return 0

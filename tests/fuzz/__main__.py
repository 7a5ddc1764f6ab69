"""``python -m tests.fuzz`` (`make fuzz`): the large part of the fuzz suite. Prints what went wrong, and a table."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time

from tests.fuzz.cases import OUTCOMES, TRACEBACK, WRONG
from tests.fuzz.suites import SUITES, Count, run, run_case

MAX_FAULTS = 8  # shown of a suite


def main() -> int:
    """0 if no case was wrong or ended in a traceback, else 1."""
    args = _parser().parse_args()
    chosen = [suite for suite in SUITES if not args.only or any(word in suite.name for word in args.only)]
    if args.case is not None:
        print(*run_case(chosen[0], args.case, args.seed))
        return 0
    began = time.monotonic()
    print(f"seed {args.seed}, scale {args.scale}", flush=True)
    counts = {suite.name: Count() for suite in chosen}
    cases = [range(round(suite.large * args.scale)) for suite in chosen]
    for result in run(chosen, cases, args.seed, args.jobs):
        count = counts[result.suite]
        count.add(result)
        if count.outcomes.total() == round(next(s.large for s in chosen if s.name == result.suite) * args.scale):
            print(f"{result.suite}: {count.outcomes.total()} cases, {count.seconds:.0f} s", flush=True)
    for name, count in counts.items():
        for fault in sorted(count.faults)[: None if args.all else MAX_FAULTS]:
            print(f"{name}, {fault}"[:400], file=sys.stderr)
    minutes = (time.monotonic() - began) / 60
    print(f"{table(counts)}\n\nSeed {args.seed}, {minutes:.1f} minutes with {args.jobs} processes.")
    return int(any(count.outcomes[bad] for count in counts.values() for bad in (WRONG, TRACEBACK)))


def table(counts: dict[str, Count]) -> str:
    """Markdown: a row for each suite, and their sum."""
    about = {suite.name: suite.about for suite in SUITES}
    rows = [(name, about[name], count.outcomes) for name, count in counts.items()]
    total = sum((outcomes for *_, outcomes in rows), start=Count().outcomes)
    lines = [
        "| suite | what happens | tried | survived | noticed | wrong | tracebacks |",
        "| --- | --- " + 5 * "| --: " + "|",
    ]
    for name, what, outcomes in [*rows, ("all", "", total)]:
        numbers = [outcomes.total(), *(outcomes[outcome] for outcome in OUTCOMES)]
        lines.append(f"| {name} | {what} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Random faults, counted by their outcome."
    )
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="default: another one each time")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the numbers of cases, e.g. 10")
    parser.add_argument("--only", action="append", metavar="TEXT", help="suites with this text in their name")
    parser.add_argument("--case", type=int, help="run this case of the first suite alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes")
    parser.add_argument("--all", action="store_true", help=f"show all faults, not only {MAX_FAULTS} of each suite")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

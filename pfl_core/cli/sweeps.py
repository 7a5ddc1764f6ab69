"""Several runs at once, for ``pfl run``, ``pfl compare`` and ``pfl figures``: estimated cost, records, scores."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_core.cli.tables import as_json, duration, size, table
from pfl_core.registry import METRICS

if TYPE_CHECKING:
    import pandas as pd

    from pfl_core.cli.specs import Variation
    from pfl_core.runs import Record, RunSpec, Store
    from pfl_core.runs.estimate import Cost, Survey

SCORES = {  # column of a table of scores -> number of the summary, and its format
    "accuracy, %": ("acc_mean", ".2f"),
    "deviation": ("acc_mean_sd", ".2f"),
    "clients' deviation": ("acc_clients_sd", ".2f"),
    "worst tenth, %": ("acc_bottom_decile", ".2f"),
    "novel clients, %": ("acc_mean_novel", ".2f"),
    "validation, %": ("acc_val", ".2f"),
    **{name: (name, ".4f") for name in METRICS},
}
COSTS = {"upload, MB": ("upload_mb", ".2f"), "TFLOP": ("train_tflop", ".3g"), "passes": ("passes", ".3g")}
FORMS = {"seconds": duration, "memory": size, "disk": size}  # estimated costs, and how they are shown


def show_plan(
    groups: Mapping[str, Sequence[RunSpec]], args: argparse.Namespace, column: str, must_compute: bool = False
) -> None:
    """Print stored and missing runs of each group, and the estimated cost of the missing ones.

    Groups (name -> runs) may share runs; the row "total" counts these once. ``column``: title of the names. With
    ``must_compute``, a record of another device does not count as stored, and ValueError is raised if runs are missing
    and none of them can be computed.
    """
    from pfl_core.runs import Store
    from pfl_core.runs.estimate import Survey, Timings, estimate
    from pfl_core.runs.sweep import num_jobs

    store, jobs = Store(), num_jobs(args.jobs)
    timings = Timings.of(store)
    survey = partial(Survey.of, store=store, drawn=not must_compute, until=getattr(args, "until", None))
    surveys = {name: survey(specs) for name, specs in groups.items()}
    rows = [_row(name, found, estimate(found.missing.values(), timings), jobs) for name, found in surveys.items()]
    together = survey([spec for specs in groups.values() for spec in specs])
    total = estimate(together.missing.values(), timings)
    if len(rows) > 1:
        rows.append(_row("total", together, total, jobs))
    cells = [(row["name"], row["stored"], row["missing"], *(_cost(row, name) for name in FORMS)) for row in rows]
    lines = [table((column, "runs stored", "missing", "time", "memory", "disk"), cells)]
    if total.runs:
        lines.append(f"{min(jobs, total.runs)} parallel runs; time estimated {total.basis}")
    failed = must_compute and together.blocked and not total.runs
    for reason, num in together.blocked.items() if not failed else ():
        names = ", ".join(name for name, found in surveys.items() if reason in found.blocked)
        lines.append(f"{names}: {num} runs cannot be computed: {reason}")
    print(as_json(rows) if args.json else "\n".join(lines), flush=True)
    if failed:
        raise ValueError("; ".join(together.blocked))


def _row(name: str, found: Survey, cost: Cost, jobs: int) -> dict[str, Any]:
    """Costs are None if nothing is missing; memory and disk are in bytes."""
    costs = {"seconds": cost.wall(jobs), "memory": cost.memory(jobs), "disk": cost.disk}
    counts = {"name": name, "stored": found.stored, "missing": len(found.missing) + found.num_blocked}
    return counts | (costs if cost.runs else dict.fromkeys(costs))


def _cost(row: Mapping[str, Any], name: str) -> str:
    return "-" if row[name] is None else FORMS[name](row[name])


def locate_all(specs: Sequence[RunSpec], store: Store, args: argparse.Namespace) -> tuple[list[str], list[bool]]:
    """The key of each run, and whether it is stored already. Raises FileNotFoundError if one that is not needs data
    that are missing.
    """
    keys, stored, until = [], [], getattr(args, "until", None)
    for spec in specs:
        key, record = store.locate(spec)
        keys.append(key)
        stored.append(record is not None and record.rounds >= min(until or spec.rounds, spec.rounds))
        if not stored[-1]:
            spec.checksums()
    return keys, stored


def run_all(specs: Sequence[RunSpec], stored: Sequence[bool], store: Store, args: argparse.Namespace) -> list[Record]:
    """The records of the runs, missing ones computed in parallel. ``stored``: see ``locate_all``.

    Each warning is printed once. The error of a single run is raised as it is.
    """
    from tqdm import tqdm

    from pfl_core.runs import SweepError, sweep
    from pfl_core.runs.log import check_folder

    if args.log:
        check_folder(args.log)
    until = getattr(args, "until", None)
    options: dict[str, Any] = {"jobs": args.jobs, "store": store, "log": args.log and args.log.resolve()}
    if "until" in args:
        options |= {"until": until, "keep_state": args.keep_state or bool(args.save_models)}
    told: set[str] = set()

    def warn(text: str) -> None:
        if text not in told:
            told.add(text)
            tqdm.write(f"pfl: {text}", file=sys.stderr)

    try:
        records = sweep(specs, **options, warn=warn)
    except SweepError as error:
        raise error.errors[0] if len(specs) == 1 and error.errors else error from None
    complete_logs(args.log, records, stored)
    return records


def complete_logs(folder: Path | None, records: Sequence[Record], stored: Sequence[bool]) -> None:
    """Write the logs of runs that were read from the store, or computed where this folder is not shared."""
    if folder is None:
        return
    from pfl_core.runs.log import RunLog

    for record, was_stored in zip(records, stored, strict=True):
        with RunLog(folder, record.spec, record.key) as log:
            if was_stored or not log.path.exists():
                log.update(record.series)


def frame_of(rows: Sequence[Variation], records: Sequence[Record]) -> pd.DataFrame:
    """The frame of the rows' runs, see ``method_comparison.runs_of``. ``records`` are in the order of their specs."""
    from pfl_core.study.method_comparison import runs_of

    rest = iter(records)
    return runs_of({row.label: [next(rest) for _ in row.specs] for row in rows})


def scores(rows: Sequence[Variation], runs: pd.DataFrame, costs: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells of a table of scores: a line for each row, with means over its seeds. ``costs``: of COSTS.

    A column without any number is left out, except the deviations.
    """
    from pfl_core.study.method_comparison import summary

    numbers = summary(runs)
    shown = {
        name: (number, form)
        for name, (number, form) in (SCORES | {name: COSTS[name] for name in costs}).items()
        if number in numbers and (numbers[number].notna().any() or "deviation" in name or name in COSTS)
    }
    cells = []
    for row in rows:
        means = numbers.loc[row.label]
        texts = [f"{means[number]:{form}}" for number, form in shown.values()]
        cells.append([str(len(row.specs)), *texts, duration(means["seconds"])])
    return ["seeds", *shown, "time of a run"], cells

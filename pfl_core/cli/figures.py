"""``pfl figures``: run notebooks, and say what was made; or what it would take."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from pfl_core import notebooks
from pfl_core.cli.text import device, duration, positive, size, table, value
from pfl_core.data import data_dir
from pfl_core.presets import PRESETS, override, spec


def add(commands: argparse._SubParsersAction) -> None:
    figures = commands.add_parser("figures", help="run notebooks and write their figures")
    figures.add_argument("wanted", nargs="*", metavar="PAPER or NOTEBOOK", help="default: all")
    figures.add_argument("--preset", choices=PRESETS, metavar="P", help=f"{', '.join(PRESETS)} (default quick)")
    figures.add_argument("--jobs", type=positive, metavar="N", help="runs at the same time (default: all cores)")
    figures.add_argument("--device", type=device, metavar="D", help="cpu (default), cuda, ...")
    figures.add_argument("-p", dest="parameters", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    figures.add_argument("--list", action="store_true", help="only list the notebooks")
    figures.add_argument("--dry-run", action="store_true", help="only tell which runs are missing and what they take")
    figures.add_argument("--write-notebooks", action="store_true", help="refresh the quick outputs kept in notebooks/")
    figures.set_defaults(do=do_figures)


def do_figures(args: argparse.Namespace) -> int:
    chosen = notebooks.chosen(args.wanted)
    parameters = parameters_of(args)
    for name in chosen:
        notebooks.check(name, parameters)
    if args.list:
        print(table(("notebook", "title"), [(name, notebooks.title(name)) for name in chosen]))
        return 0
    check_runs(chosen, parameters)
    if args.dry_run:
        print(plan(chosen, parameters, args.jobs or os.cpu_count() or 1))
        return 0
    if args.write_notebooks and (args.parameters or args.device or args.preset not in (None, "quick")):
        raise ValueError("--write-notebooks refreshes what notebooks/ show, preset quick; give it no other parameters")
    return run_all(chosen, parameters, args)


def parameters_of(args: argparse.Namespace) -> dict[str, Any]:
    """What the notebooks get: PRESET, and OVERRIDES and others as given. Raises ValueError for wrong types."""
    given = {name: value(text) for name, text in args.parameters}
    preset = given.setdefault("PRESET", args.preset or "quick")
    if preset not in PRESETS or args.preset not in (None, preset):
        raise ValueError(f"-p PRESET {preset}: choose one of {', '.join(PRESETS)}, the same as --preset")
    seeds, overrides = given.get("SEEDS"), given.get("OVERRIDES", {})
    if seeds is not None and not (isinstance(seeds, list) and seeds and all(type(seed) is int for seed in seeds)):
        raise ValueError(f"-p SEEDS {seeds!r}: give a list of whole numbers such as [0, 1, 2]")
    if not isinstance(overrides, dict):
        raise ValueError(f"-p OVERRIDES {overrides!r}: give a JSON object such as " + '{"rounds": 5}')
    if args.device:
        overrides = {**overrides, "device": args.device}
    return {**given, "OVERRIDES": overrides} if overrides else given


def experiment(name: str, parameters: Mapping[str, Any]) -> list:
    """The runs that a notebook asks for; none if it is a walkthrough."""
    from pfl_core.experiments import EXPERIMENTS, seeds

    make, preset = EXPERIMENTS.get(name), parameters["PRESET"]
    return make(preset, seeds(preset, parameters.get("SEEDS")), parameters.get("OVERRIDES", {})) if make else []


def check_runs(chosen: list[str], parameters: Mapping[str, Any]) -> None:
    """Raises ValueError for overrides that no run takes, before anything is started."""
    override(spec("fedselect", "local", preset="ci"), parameters.get("OVERRIDES", {}))
    for name in chosen:
        experiment(name, parameters)


def run_all(chosen: list[str], parameters: Mapping[str, Any], args: argparse.Namespace) -> int:
    """One notebook after the other (their runs are what goes in parallel); returns 1 if one failed."""
    from pfl_core.output import figures_dir

    preset, began, failed = parameters["PRESET"], perf_counter(), []
    figures, copies = figures_dir() / preset, data_dir() / "notebooks" / preset
    env = {"PFL_JOBS": str(args.jobs)} if args.jobs else {}
    for i, name in enumerate(chosen, 1):
        print(f"[{i}/{len(chosen)}] {name}, preset {preset}", flush=True)
        before = _files(figures)
        outcome = _refresh(name, copies) if args.write_notebooks else _run(name, copies, parameters, env)
        made = sorted(path for path, stamp in _files(figures).items() if before.get(path) != stamp)
        lines = [f"{duration(outcome.seconds)}{', failed' if outcome.error else ''}", *outcome.error.splitlines()]
        print("\n".join(f"    {line}" for line in [*lines, *map(_short, made)]), flush=True)
        failed += [name] if outcome.error else []
    done, took = len(chosen) - len(failed), duration(perf_counter() - began)
    print(f"{done} of {len(chosen)} notebooks in {took}; executed copies in {_short(copies)}")
    if failed:
        print(f"failed: {', '.join(failed)}; see NAME.failed.ipynb beside the copies")
    return 1 if failed else 0


def _run(name: str, copies: Path, parameters: Mapping[str, Any], env: Mapping[str, str]) -> notebooks.Outcome:
    began, error = perf_counter(), ""
    try:
        notebooks.execute(notebooks.path_of(name), copies / f"{name}.ipynb", parameters, env)
    except notebooks.NotebookError as failure:
        error = str(failure)
    return notebooks.Outcome(perf_counter() - began, error)


def _refresh(name: str, copies: Path) -> notebooks.Outcome:
    return notebooks.rewrite(name, "quick", notebooks.path_of(name), copies)


def _files(folder: Path) -> dict[Path, int]:
    """Files and when they were last written."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("**/*") if path.is_file()}


def _short(path: Path) -> str:
    """Relative to the folder that the user is in, where it lies below."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def plan(chosen: list[str], parameters: Mapping[str, Any], jobs: int) -> str:
    """A row for each notebook: stored and missing runs, and what the missing ones take."""
    from pfl_core.estimate import Survey, estimate
    from pfl_core.runs import Store

    store, everything, rows, notes = Store(), {}, [], []
    for name in chosen:
        survey = Survey.of(experiment(name, parameters), store)
        everything |= survey.missing
        missing = len(survey.missing) + survey.lacking
        rows.append((name, survey.stored, missing, *_costs(estimate(survey.missing.values(), store), jobs)))
        notes += [f"{name}: {survey.lacking} runs cannot be made here: {why}" for why in survey.reasons]
    total = estimate(everything.values(), store)
    rows.append(("together", None, len(everything), *_costs(total, jobs)))
    columns = ("notebook", "runs stored", "missing", "time", "memory", "disk")
    basis = f"preset {parameters['PRESET']}; {jobs} runs at a time; times {total.basis}"
    return "\n".join([table(columns, rows), basis, *notes])


def _costs(cost: Any, jobs: int) -> list[str | None]:
    if not cost.runs:
        return [None, None, None]
    return [duration(cost.wall(jobs)), size(cost.memory(jobs)), size(cost.disk)]

"""``pfl figures``: run notebooks, and say what was made; or what it would take."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pfl_core import notebooks, papers
from pfl_core.cli.text import device, duration, positive, size, table, value
from pfl_core.data.registry import data_dir
from pfl_core.study.presets import PRESETS

if TYPE_CHECKING:
    from pfl_core.runs import RunSpec

Parameters = dict[str, Any]
CHANGED = {"SEEDS", "OVERRIDES"}  # parameters with which a notebook's runs are no longer the preset's


def add(commands: argparse._SubParsersAction) -> None:
    figures = commands.add_parser("figures", help="run notebooks and write their figures")
    figures.add_argument("wanted", nargs="*", metavar="PAPER or NOTEBOOK", help="default: all")
    figures.add_argument("--preset", choices=PRESETS, metavar="P", help=f"{', '.join(PRESETS)} (default quick)")
    figures.add_argument("--jobs", type=positive, metavar="N", help="runs at the same time (default: all cores)")
    figures.add_argument("--device", type=device, metavar="D", help="cpu (default), cuda, ...")
    figures.add_argument(
        "-p",
        dest="parameters",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="a notebook's parameter; with SEEDS '[0]' or OVERRIDES '{\"rounds\": 5}' figures go to the data folder",
    )
    figures.add_argument("--list", action="store_true", help="only list the notebooks")
    figures.add_argument("--dry-run", action="store_true", help="only tell which runs are missing and what they take")
    figures.add_argument("--write-notebooks", action="store_true", help="refresh the quick outputs kept in notebooks/")
    figures.add_argument(
        "--evidence",
        action="store_true",
        help="draw the complete evidence of data/results/ (its manifest), no training",
    )
    figures.set_defaults(do=do_figures)


def do_figures(args: argparse.Namespace) -> int:
    if args.evidence:
        return draw_evidence(args)
    wanted = {name: parameters_of(name, args) for name in notebooks.chosen(args.wanted)}
    if args.write_notebooks and (args.parameters or args.device or args.preset not in (None, "quick")):
        raise ValueError("--write-notebooks refreshes what notebooks/ show, preset quick; give it no other parameters")
    if args.list:
        print(table(("notebook", "title"), [(name, notebooks.title(name)) for name in wanted]))
        return 0
    for name, parameters in wanted.items():  # all that can be wrong, before anything starts
        notebooks.check(name, parameters)
        experiment(name, parameters)
    from pfl_core.runs.sweep import num_jobs

    jobs = num_jobs(args.jobs)
    if args.dry_run or parameters["PRESET"] == "paper":  # hours or days: told before they begin
        print(plan(wanted, jobs), flush=True)
    if args.dry_run:
        return 0
    from pfl_core.study.output import figures_dir

    root = figures_dir()
    if CHANGED & {name for name, _ in args.parameters} and "PFL_FIGURES_DIR" not in os.environ:
        root = data_dir() / "figures"  # those of the preset itself, which are committed, stay as they are
    env = {"PFL_TRAIN": "1"} | ({"PFL_JOBS": str(args.jobs)} if args.jobs else {})
    return run_all(wanted, root, env, refresh=args.write_notebooks)


def draw_evidence(args: argparse.Namespace) -> int:
    """The figures of the complete evidence, from its records alone. Raises ValueError if a record is missing."""
    if args.parameters or args.preset or args.device or args.write_notebooks:
        raise ValueError(
            "--evidence draws what the manifest says; give it papers or notebooks, and no other parameters"
        )
    from pfl_core.notebooks import manifest
    from pfl_core.runs import Store
    from pfl_core.study.output import figures_dir

    store, names = Store(root=Path(os.devnull)), notebooks.chosen(args.wanted)  # the committed records alone
    entries = [entry for entry in manifest.read(store.results) if entry.notebook in names]
    for entry in entries:
        manifest.check(entry, store)
    if args.list or args.dry_run:
        rows = [(e.notebook, e.preset, ", ".join(map(str, e.seeds)), len(e.keys)) for e in entries]
        print(table(("notebook", "preset", "seeds", "runs"), rows))
        return 0
    wanted = {entry.notebook: {"PRESET": entry.preset, "SEEDS": entry.seeds} for entry in entries}
    return run_all(wanted, figures_dir(), {"PFL_TRAIN": "0", "PFL_RUNS_DIR": os.devnull})


def parameters_of(name: str, args: argparse.Namespace) -> Parameters:
    """What a notebook gets: PRESET, and what -p gives. Raises ValueError for values of the wrong kind.

    --device goes into the OVERRIDES of notebooks that ask for runs; a walkthrough has none.
    """

    given = {parameter: value(text) for parameter, text in args.parameters}
    preset = given.setdefault("PRESET", args.preset or "quick")
    if preset not in PRESETS or args.preset not in (None, preset):
        raise ValueError(f"-p PRESET {preset}: choose one of {', '.join(PRESETS)}, the same as --preset")
    seeds, overrides = given.get("SEEDS"), given.get("OVERRIDES", {})
    if seeds is not None and not (isinstance(seeds, list) and seeds and all(type(seed) is int for seed in seeds)):
        raise ValueError(f"-p SEEDS {seeds!r}: give a list of whole numbers such as [0, 1, 2]")
    if not isinstance(overrides, dict):
        raise ValueError(f"-p OVERRIDES {overrides!r}: give a JSON object such as " + '{"rounds": 5}')
    if args.device and papers.has_runs(name):
        given["OVERRIDES"] = {**overrides, "device": args.device}
    return given


def experiment(name: str, parameters: Parameters) -> list[RunSpec]:
    """The runs that a notebook asks for; none if it is a walkthrough. Raises ValueError for wrong OVERRIDES."""
    if not papers.has_runs(name):
        return []
    return papers.specs(name, parameters["PRESET"], parameters.get("SEEDS"), parameters.get("OVERRIDES"))


def run_all(wanted: Mapping[str, Parameters], root: Path, env: Mapping[str, str], refresh: bool = False) -> int:
    """One notebook after the other (their runs are what goes in parallel); returns 1 if one failed.

    Figures go below ``root``. ``refresh``: the executed notebook takes the place of the one in notebooks/.
    """
    began, failed = perf_counter(), []
    env = {"PFL_FIGURES_DIR": str(root.resolve()), **env}
    for i, (name, parameters) in enumerate(wanted.items(), 1):
        preset = parameters["PRESET"]
        figures, copies = root / preset, data_dir() / "notebooks" / preset
        print(f"[{i}/{len(wanted)}] {name}, preset {preset}", flush=True)
        before = _files(figures)
        outcome = _refresh(name, copies, env) if refresh else _run(name, copies, parameters, env)
        made = sorted(path for path, stamp in _files(figures).items() if before.get(path) != stamp)
        lines = [f"{duration(outcome.seconds)}{', failed' if outcome.error else ''}", *outcome.error.splitlines()]
        print("\n".join(f"    {line}" for line in [*lines, *map(_short, made)]), flush=True)
        failed += [name] if outcome.error else []
    done, took = len(wanted) - len(failed), duration(perf_counter() - began)
    print(f"{done} of {len(wanted)} notebooks in {took}; executed copies in {_short(data_dir() / 'notebooks')}")
    if failed:
        print(f"failed: {', '.join(failed)}; see NAME.failed.ipynb beside the copies")
    return 1 if failed else 0


def _run(name: str, copies: Path, parameters: Parameters, env: Mapping[str, str]) -> notebooks.Outcome:
    began, error = perf_counter(), ""
    try:
        notebooks.execute(notebooks.path_of(name), copies / f"{name}.ipynb", parameters, env)
    except notebooks.NotebookError as failure:
        error = str(failure)
    return notebooks.Outcome(perf_counter() - began, error)


def _refresh(name: str, copies: Path, env: Mapping[str, str]) -> notebooks.Outcome:
    return notebooks.rewrite(name, "quick", notebooks.path_of(name), copies, env)


def _files(folder: Path) -> dict[Path, int]:
    """Files and when they were last written."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("**/*") if path.is_file()}


def _short(path: Path) -> str:
    """Relative to the folder that the user is in, where it lies below."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def plan(wanted: Mapping[str, Parameters], jobs: int) -> str:
    """A row for each notebook: stored and missing runs, and what the missing ones take."""
    from pfl_core.runs import Store
    from pfl_core.runs.estimate import Survey, Timings, estimate

    store, everything, rows, notes = Store(), {}, [], []
    timings = Timings.of(store)
    for name, parameters in wanted.items():
        survey = Survey.of(experiment(name, parameters), store)
        everything |= survey.missing
        missing = len(survey.missing) + survey.lacking
        rows.append((name, survey.stored, missing, *_costs(estimate(survey.missing.values(), timings), jobs)))
        notes += [f"{name}: {num} runs cannot be made here: {why}" for why, num in survey.reasons.items()]
    total = estimate(everything.values(), timings)
    if total.runs:
        rows.append(("together", None, total.runs, *_costs(total, jobs)))
        notes.insert(0, f"{jobs} runs at a time; times {total.basis}")
    columns = ("notebook", "runs stored", "missing", "time", "memory", "disk")
    return "\n".join([f"preset {parameters['PRESET']}", table(columns, rows), *notes])


def _costs(cost: Any, jobs: int) -> list[str | None]:
    if not cost.runs:
        return [None, None, None]
    return [duration(cost.wall(jobs)), size(cost.memory(jobs)), size(cost.disk)]

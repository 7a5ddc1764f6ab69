"""``pfl figures``: run notebooks, which write the figures, or estimate how long that takes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from pfl_core import notebooks, papers
from pfl_core.cli.arguments import add_computing, device, value
from pfl_core.cli.sweeps import show_plan
from pfl_core.cli.tables import as_json, duration, table
from pfl_core.data.registry import data_dir
from pfl_core.deadline import TimeUpError, deadline, passed
from pfl_core.study.parameters import overrides_of, seeds_of
from pfl_core.study.presets import DECIDING, PRESETS

if TYPE_CHECKING:
    from pfl_core.runs import RunSpec

Parameters = dict[str, Any]

NOT_PRESET = {"SEEDS", "OVERRIDES"}  # parameters that make a notebook's runs differ from the preset


class Drawing(NamedTuple):
    """How to run a notebook."""

    parameters: Parameters
    env: Mapping[str, str]  # added to the kernel's environment


def add(commands: argparse._SubParsersAction) -> None:
    figures = commands.add_parser(
        "figures",
        help="run notebooks and write their figures",
        description="Run notebooks and write their figures to figures/PRESET/. Missing training runs are computed and "
        "stored; stored runs are reused.",
    )
    figures.add_argument(
        "selection",
        nargs="*",
        metavar="PAPER or NOTEBOOK",
        help="e.g. fedselect/01_main_comparison, or the beginning of its name: fedselect/01 (default: all)",
    )
    figures.add_argument("--preset", choices=PRESETS, metavar="P", help=f"{', '.join(PRESETS)} (default quick)")
    add_computing(figures)
    figures.add_argument("--device", type=device, metavar="D", help="cpu (default), cuda, ...")
    figures.add_argument(
        "-p",
        dest="parameters",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="set a notebook parameter, e.g. SEEDS '[0]' or OVERRIDES '{\"rounds\": 5}'; the figures then go to "
        "figures/ in the data folder",
    )
    figures.add_argument(
        "--format", choices=("pdf", "svg"), metavar="F", help="also write each figure as pdf or svg, beside its PNG"
    )
    figures.add_argument("--list", action="store_true", help="list the notebooks; run nothing")
    figures.add_argument(
        "--dry-run", action="store_true", help="count the missing runs and estimate time, memory and disk; run nothing"
    )
    figures.add_argument(
        "--write-notebooks",
        action="store_true",
        help="update the outputs stored in notebooks/: the best stored evidence, else preset quick",
    )
    figures.add_argument(
        "--evidence",
        action="store_true",
        help="draw the figures of the best stored evidence, in data/results/ (see its manifest.json); train nothing",
    )
    figures.add_argument("--json", action="store_true", help="print what --list or --dry-run shows as a JSON list")
    figures.set_defaults(do=do_figures)


def do_figures(args: argparse.Namespace) -> int:
    if args.json and not (args.list or args.dry_run):
        raise ValueError("--json prints what --list or --dry-run shows; add one of them")
    if args.evidence:
        return draw_evidence(args)
    selected = {name: parameters_of(name, args) for name in notebooks.select(args.selection)}
    if not args.selection:  # all notebooks that have the preset
        selected = {name: p for name, p in selected.items() if papers.has_preset(name, p["PRESET"])}
    if args.write_notebooks and (args.parameters or args.device or args.preset):
        raise ValueError(
            "--write-notebooks takes presets and seeds from the evidence; give no preset, device, parameters"
        )
    if args.list:
        titles = {name: notebooks.title(name) for name in selected}
        objects = [{"name": name, "title": title} for name, title in titles.items()]
        print(as_json(objects) if args.json else table(("notebook", "title"), list(titles.items())))
        return 0
    runs: dict[str, list[RunSpec]] = {}  # empty for a walkthrough
    for name, parameters in selected.items():  # wrong parameters are reported before anything starts
        notebooks.check_parameters(name, parameters)
        wanted = (parameters["PRESET"], parameters["SEEDS"], parameters.get("OVERRIDES"))
        runs[name] = papers.specs(name, *wanted) if papers.has_runs(name) else []
    from pfl_core.runs.sweep import num_jobs

    num_jobs(args.jobs)  # a wrong PFL_JOBS stops here
    if args.dry_run or parameters["PRESET"] == "paper":  # hours or days: print the estimate first
        if not args.json:
            print(f"preset {parameters['PRESET']}")
        show_plan(runs, args, "notebook")
    if args.dry_run:
        return 0
    from pfl_core.study.plots import figures_dir

    began = perf_counter()
    drawn = evidence(list(selected)) if args.write_notebooks else {}
    compute_missing([spec for name, specs in runs.items() if name not in drawn for spec in specs], args.jobs)
    env = {"PFL_TRAIN": "1"} | _formats(args)
    tasks = {name: Drawing(parameters, env) for name, parameters in selected.items()} | drawn
    root = figures_dir()
    if NOT_PRESET & {name for name, _ in args.parameters} and "PFL_FIGURES_DIR" not in os.environ:
        root = data_dir() / "figures"  # figures/ holds the committed figures of the presets, which stay unchanged
    return draw_all(tasks, root, args.jobs, refresh=args.write_notebooks, since=began)


def compute_missing(specs: Sequence[RunSpec], jobs: int | None) -> None:
    """Compute those of the notebooks' runs that are missing, in one sweep, the longest first.

    Runs that fail are printed: the notebooks that need them will fail.
    """
    from pfl_core.runs import Store, SweepError, sweep
    from pfl_core.runs.estimate import Survey, Timings, estimate

    store = Store()
    if missing := list(Survey.of(specs, store).missing.values()):
        timings = Timings.of(store)
        try:
            sweep(missing, jobs=jobs, store=store, seconds=[estimate([spec], timings).seconds for spec in missing])
        except SweepError as error:
            print(error, file=sys.stderr)


def draw_evidence(args: argparse.Namespace) -> int:
    """Draw the notebooks of the manifest from committed records only. Raises ValueError if a record is missing."""
    if args.parameters or args.preset or args.device or args.write_notebooks:
        raise ValueError(
            "--evidence takes preset and seeds from the manifest; give papers or notebooks, and no other parameters"
        )
    from pfl_core.notebooks import manifest
    from pfl_core.runs import RESULTS
    from pfl_core.study.plots import figures_dir

    tasks = evidence(notebooks.select(args.selection))
    if args.list or args.dry_run:
        entries = [entry for entry in manifest.read(RESULTS) if entry.notebook in tasks]
        objects = [
            {"name": e.notebook, "preset": e.preset, "seeds": e.seeds, "runs": len(e.keys), "missing": e.missing}
            for e in entries
        ]
        print(as_json(objects) if args.json else table(manifest.HEAD, [entry.row for entry in entries]))
        return 0
    root = figures_dir()
    before = {path: time for preset in DECIDING for path, time in _files(root / preset).items()}
    tasks = {name: Drawing(task.parameters, {**task.env, **_formats(args)}) for name, task in tasks.items()}
    status = draw_all(tasks, root, args.jobs)
    left = [path for path, time in before.items() if path.exists() and path.stat().st_mtime_ns == time]
    if left and not args.selection:
        print("\n".join([f"drawn by none of them; delete what is out of date: {len(left)}", *map(_short, left)]))
    return status


def _formats(args: argparse.Namespace) -> dict[str, str]:
    return {"PFL_FIGURE_FORMATS": args.format} if args.format else {}


def evidence(names: Collection[str]) -> dict[str, Drawing]:
    """How to draw the best evidence of those of the notebooks that have any, from committed records only.

    Raises ValueError if a record of the manifest is missing.
    """
    from pfl_core.notebooks import manifest
    from pfl_core.runs import Store

    store = Store(root=Path(os.devnull))  # the committed records only
    entries = [entry for entry in manifest.read(store.results) if entry.notebook in names]
    for entry in entries:
        manifest.check(entry, store)
    env = {"PFL_TRAIN": "0", "PFL_RUNS_DIR": os.devnull}
    return {entry.notebook: Drawing({"PRESET": entry.preset, "SEEDS": entry.seeds}, env) for entry in entries}


def parameters_of(name: str, args: argparse.Namespace) -> Parameters:
    """A notebook's parameters: PRESET, and those given with -p. Raises ValueError for values of the wrong type.

    --device is added to the OVERRIDES of notebooks that have runs; walkthroughs have none.
    """
    given = {parameter: value(text) for parameter, text in args.parameters}
    if "TRAIN" in given:
        raise ValueError("-p TRAIN: `pfl figures` trains what is missing; --evidence draws without training")
    preset = given.setdefault("PRESET", args.preset or "quick")
    given["SEEDS"] = seeds_of(given.get("SEEDS"))  # committed notebooks have the seeds of their evidence
    if preset not in PRESETS or args.preset not in (None, preset):
        raise ValueError(f"-p PRESET {preset}: choose from {', '.join(PRESETS)}; it must not contradict --preset")
    overrides = overrides_of(given.get("OVERRIDES"))
    if "device" in overrides:
        device(str(overrides["device"]))
    if args.device and papers.has_runs(name):
        given["OVERRIDES"] = {**overrides, "device": args.device}
    return given


def draw_all(
    tasks: Mapping[str, Drawing], root: Path, jobs: int | None, refresh: bool = False, since: float | None = None
) -> int:
    """Run notebooks, ``jobs`` at the same time. Returns 1 if a notebook failed, else 0.

    Figures are written below ``root``. ``refresh``: replace the notebook in notebooks/ by its executed copy. ``since``:
    the start of the time that is printed, by default now. Raises TimeUpError if the time is up before the
    last notebook is done.
    """
    from pfl_core.runs.sweep import num_jobs

    start, before, cores = since or perf_counter(), _files(root), num_jobs(jobs)
    at_once = max(1, min(cores, len(tasks)))
    own = {"PFL_FIGURES_DIR": str(root.resolve()), "PFL_JOBS": str(cores // at_once)}
    took: list[str] = []  # of the notebooks that are done
    failed: list[str] = []
    stopped: list[str] = []  # because the time was up

    def run(name: str, task: Drawing) -> str:
        began, preset, env = perf_counter(), task.parameters["PRESET"], {**own, **task.env}
        copies = data_dir() / "notebooks" / preset
        if stopped or passed(deadline()):
            raise TimeUpError
        try:
            if refresh:
                notebooks.rewrite(name, preset, notebooks.path_of(name), copies, env, task.parameters.get("SEEDS"))
            else:
                notebooks.run_notebook(notebooks.path_of(name), copies / f"{name}.ipynb", task.parameters, env)
        except TimeUpError:
            stopped.append(name)
            raise
        return duration(perf_counter() - began)

    presets = ", ".join(sorted({task.parameters["PRESET"] for task in tasks.values()}))
    print(f"preset {presets}: {len(tasks)} notebook{'s' * (len(tasks) > 1)}", flush=True)
    with ThreadPoolExecutor(at_once) as threads:
        futures = {threads.submit(run, *item): item[0] for item in tasks.items()}
        try:
            for future in as_completed(futures):
                try:
                    took.append(future.result())
                    lines = [took[-1]]
                except notebooks.NotebookError as error:
                    failed.append(futures[future])
                    lines = ["failed", *str(error).splitlines()]
                except TimeUpError:
                    continue
                count = f"[{len(took) + len(failed)}/{len(tasks)}]"
                print(f"{count} {futures[future]}: " + "\n    ".join(lines), flush=True)
        except BaseException:  # Ctrl-C, a full disk
            threads.shutdown(wait=False, cancel_futures=True)
            notebooks.terminate()
            raise
    written = [_short(path) for path, modified in sorted(_files(root).items()) if before.get(path) != modified]
    print("\n".join(f"    {path}" for path in written))
    folder = data_dir() / "notebooks"
    copies = f"executed copies in {_short(folder)}"
    if len(took) == len(tasks) == 1:
        ((name, task),) = tasks.items()
        copies = f"open it: {_short(folder / task.parameters['PRESET'] / f'{name}.ipynb')}"
    print(f"{len(took)} of {len(tasks)} notebooks in {duration(perf_counter() - start)}; {copies}")
    if failed:
        print(f"failed: {', '.join(failed)}; see NAME.failed.ipynb in the folder of the copies")
    if len(took) + len(failed) < len(tasks):
        raise TimeUpError(f"the time is up: {len(took)} of {len(tasks)} notebooks are done; the same command continues")
    return 1 if failed else 0


def _files(folder: Path) -> dict[Path, int]:
    """All files below a folder, with their modification times."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("**/*") if path.is_file()}


def _short(path: Path) -> str:
    """The path relative to the current folder if it lies below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)

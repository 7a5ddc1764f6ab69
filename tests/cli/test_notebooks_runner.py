"""``pfl figures`` on small notebooks: checks, execution, output, files. Few of the tests start kernels."""

import errno
import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from pfl_core import notebooks, papers
from pfl_core.cli import main
from pfl_core.cli.command import parser
from pfl_core.cli.figures import parameters_of
from pfl_core.notebooks import kernels, runner
from pfl_core.notebooks.fork_server import LIBRARIES
from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.runs import RunSpec, Store, execute

sweeping = sys.modules["pfl_core.runs.sweep"]  # `pfl_core.runs.sweep` is its function
PARAMETERS = 'PRESET = "quick"  # "ci" | "quick"\nSEEDS = None\nOVERRIDES = {}'
DRAWS = """
import json, os, pathlib, sys
print("bar 1/2", file=sys.stderr)
folder = pathlib.Path(os.environ["PFL_FIGURES_DIR"]) / PRESET / "paper_a"
folder.mkdir(parents=True)
(folder / "figure.csv").write_text("numbers")
threads = os.environ["OMP_NUM_THREADS"]
print(json.dumps([PRESET, SEEDS, OVERRIDES, os.environ["PFL_JOBS"], threads, sys.executable]))
"""
SOCKETS = "__import__('logging').getLogger('tornado.general').error('Traceback of a socket that is closed')"


def write(name: str, *cells: nbformat.NotebookNode, parameters: str = PARAMETERS) -> Path:
    tagged = new_code_cell(parameters, metadata={"tags": ["parameters"]})
    notebook = new_notebook(cells=[new_markdown_cell(f"# Title of {name}"), tagged, *cells])
    notebook.metadata.kernelspec = {"name": "python3", "language": "python", "display_name": "Python 3"}
    path = notebooks.path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Three notebooks, of which one fails, and data and figures folders of their own."""
    monkeypatch.setattr("pfl_core.notebooks.catalogue.NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr("pfl_core.runs.store.RESULTS", tmp_path / "results")
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PFL_FIGURES_DIR", str(tmp_path / "figures"))
    monkeypatch.setattr("sys.path", list(sys.path))
    write("00_start", new_code_cell(SOCKETS), new_code_cell("1 / 0  # reason\n"))
    write("paper_a/01_draws", new_code_cell(DRAWS))
    write("paper_b/02_limit", new_code_cell("raise RuntimeError('\\n'.join(map(str, range(50))))"))


def asks_for(monkeypatch, *runs: RunSpec) -> None:
    """paper_a is one of the studies, and its notebook asks for these runs."""
    made = replace(PAPER, experiments={"01_draws": lambda *_: list(runs)})
    monkeypatch.setitem(sys.modules, "paper_a", SimpleNamespace(STUDY=made))
    monkeypatch.setitem(papers.STUDIES, "paper_a", "paper_a")


@pytest.fixture
def no_kernels(monkeypatch):
    """Any attempt to start a kernel fails the test."""
    monkeypatch.setattr(runner, "_papermill", lambda *arguments: pytest.fail("a notebook was started"))


def test_links_of_an_executed_copy_lead_where_those_of_the_notebook_lead(tmp_path, monkeypatch):
    text = "[a](../README.md#terms), [b](01_x.ipynb), [c](https://a.b/c), [d](#here), ![e](../figures/e.png)"
    source = write("paper_a/03_links", new_markdown_cell(text))
    copy = tmp_path / "data/notebooks/ci/paper_a/03_links.ipynb"
    monkeypatch.setattr(runner, "_papermill", lambda source, target, *rest: target.write_bytes(source.read_bytes()))
    notebooks.run_notebook(source, copy)
    links = re.findall(r"\]\((.*?)\)", nbformat.read(copy, as_version=4).cells[-1].source)
    folder = (source.parent / "..").resolve()
    assert (copy.parent / links[0]).resolve() == folder / "README.md#terms"
    assert (copy.parent / links[1]).resolve() == folder / "paper_a/01_x.ipynb"
    assert links[2:4] == ["https://a.b/c", "#here"] and (copy.parent / links[4]).resolve() == folder / "figures/e.png"


def test_figures_of_other_seeds_leave_those_of_the_preset_alone(capfd, tmp_path, monkeypatch):
    monkeypatch.delenv("PFL_FIGURES_DIR")
    asks_for(monkeypatch)
    assert main(["figures", "paper_a", "--preset", "ci", "--jobs", "1", "-p", "SEEDS", "[4]"]) == 0
    made = tmp_path / "data" / "figures" / "ci" / "paper_a" / "figure.csv"
    assert made.exists() and f"    {made}\n" in capfd.readouterr().out
    monkeypatch.setattr("pfl_core.study.plots.ROOT", tmp_path)
    assert main(["figures", "paper_a", "--preset", "ci", "--jobs", "1", "--device", "cpu"]) == 0
    assert (tmp_path / "figures" / "ci" / "paper_a" / "figure.csv").exists(), "the device changes no figure"


@pytest.mark.parametrize("forks", [True, False])
def test_one_failing_notebook_does_not_stop_the_others(capfd, tmp_path, monkeypatch, forks):
    """The failing notebook comes first."""
    monkeypatch.setattr(kernels, "FORKS", forks and kernels.FORKS)
    asks_for(monkeypatch)
    command = ["figures", "00_start", "paper_a", "--preset", "ci", "--jobs", "6", "--device", "cpu"]
    assert main([*command, "-p", "SEEDS", "[4]"]) == 1
    out, err = capfd.readouterr()
    copies = tmp_path / "data" / "notebooks" / "ci"
    assert "ZeroDivisionError: division by zero" in out and "in cell [" in out and "1 / 0" in out
    assert "1 of 2 notebooks" in out and "failed: 00_start" in out
    assert f"    {tmp_path / 'figures' / 'ci' / 'paper_a' / 'figure.csv'}\n" in out
    assert "bar 1/2" in err, "progress of the kernel is shown"
    assert "TCP" not in err and "Traceback" not in out + err
    assert sorted(path.name for path in copies.glob("**/*.ipynb")) == ["00_start.failed.ipynb", "01_draws.ipynb"]
    (printed,) = [o.text for o in outputs(copies / "paper_a" / "01_draws.ipynb") if o.get("name") == "stdout"]
    *given, python = json.loads(printed)
    assert given == ["ci", [4], {"device": "cpu"}, "3", "1"]
    assert Path(python).parent == Path(sys.executable).parent


def test_the_runs_of_all_notebooks_are_computed_first_and_each_once(capfd, monkeypatch):
    """In one sweep, the longest first. A run that fails is named, and the notebooks are drawn all the same."""
    short, long, bad = (
        PAPER.settings.spec("local", preset="ci", overrides=overrides)
        for overrides in ({"rounds": 1}, {"rounds": 2}, {"rounds": 1, "lr": 0.5})
    )
    asks_for(monkeypatch, short, long, bad, short)
    started = []

    def execute(task, *arguments, **options):
        started.append(task.key)
        if task.key == bad.key():
            raise ValueError("bad luck")
        return real(task, *arguments, **options)

    real = sweeping.execute
    monkeypatch.setattr(sweeping, "execute", execute)
    monkeypatch.setattr(runner, "_papermill", lambda source, target, *rest: nbformat.write(new_notebook(), target))
    assert main(["figures", "paper_a", "--preset", "ci", "--jobs", "1"]) == 0
    assert started[0] == long.key() and sorted(started) == sorted({run.key() for run in (short, long, bad)})
    assert "1 of 3 runs failed" in capfd.readouterr().err
    assert main(["figures", "paper_a", "--preset", "ci", "--jobs", "1"]) == 0
    assert started[3:] == [bad.key()], "the others are stored"


SLEEPS = """
import os, pathlib, time
pathlib.Path(os.environ["PFL_DATA_DIR"], f"{os.getpid()}.pid").touch()
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM between processes")
def test_ctrl_c_ends_all_notebooks_that_are_drawn(tmp_path):
    """Two at the same time, a third that has not begun."""
    for name in ("a/01", "a/02", "a/03"):
        write(name, new_code_cell(SLEEPS))
    code = (
        "import pathlib; from pfl_core.cli import main, signals; from pfl_core.notebooks import catalogue; "
        "signals.handle(); catalogue.NOTEBOOKS = pathlib.Path('notebooks'); raise SystemExit(main())"
    )
    command = [sys.executable, "-c", code, "figures", "a/", "--jobs", "2"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    data = tmp_path / "data"
    while len(kernel_files := list(data.glob("*.pid"))) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.count("\n") == 1, err
    assert len(kernel_files) == 2 and not any(runs(int(path.stem)) for path in data.glob("*.pid"))
    assert not list(data.rglob("*.ipynb"))


STOPS = """
import os
from pfl_core.deadline import deadline, time_up
assert deadline() > 1e9
raise time_up(5, 2, 7)
"""


def test_no_further_notebook_starts_when_the_time_is_up(capfd, tmp_path):
    """The kernel has the time in its environment; a stopped notebook is not a failed one."""
    write("00_start", new_code_cell(STOPS))
    assert main(["figures", "00_start", "paper_a", "--preset", "ci", "--jobs", "1", "--stop-after", "2h"]) == 3
    out, err = capfd.readouterr()
    assert err.splitlines()[-1] == "pfl: the time is up: 0 of 2 notebooks are done; the same command continues"
    assert "paper_a" not in out and not list((tmp_path / "data" / "notebooks").rglob("*.ipynb"))


def test_no_notebook_starts_after_the_time(capsys, no_kernels, monkeypatch):
    monkeypatch.setenv("PFL_DEADLINE", "1")
    assert main(["figures", "00_start", "--preset", "ci"]) == 3
    assert "the time is up: 0 of 1 notebooks are done; the same command continues" in capsys.readouterr().err


ABOUT_ITSELF = f"""
import importlib, os, signal, sys, warnings
print([name for name in ("pandas", "torch", "pfl_core") if name in sys.modules and READY])
for name in {LIBRARIES}:
    importlib.import_module(name)
import matplotlib, pandas, torch, tqdm
print([pandas.get_option("display." + name) for name in ("max_columns", "width", "html.border")])
print(matplotlib.rcParams._get_backend_or_none(), torch.get_num_threads(), tqdm.tqdm(range(1)).disable)
print(signal.getsignal(signal.SIGCHLD), signal.getsignal(signal.SIGINT), os.getsid(0) == os.getpid(), os.getcwd())
print(sys.path, sys.argv[1], sys.flags, sorted(os.environ), os.read(0, 1), sorted(w[0] for w in warnings.filters))
matplotlib.pyplot.plot([1, 2])
"""


def source(code: str) -> nbformat.NotebookNode:
    notebook = new_notebook(cells=[new_code_cell(code)])
    notebook.metadata.kernelspec = {"name": "python3", "language": "python", "display_name": "Python 3"}
    return notebook


forked = pytest.mark.skipif(not kernels.FORKS, reason="kernels are forked on Linux only")


@forked
def test_a_forked_kernel_is_as_a_fresh_one_but_for_its_imports(tmp_path, monkeypatch):
    """Settings that libraries make in a notebook; pictures, signals, session, folder, environment."""
    said = {}
    for forks in (False, True):
        monkeypatch.setattr(kernels, "FORKS", forks)
        target = tmp_path / f"{forks}.ipynb"
        notebooks.run_notebook(source(ABOUT_ITSELF.replace("READY", str(forks))), target, env={"TQDM_DISABLE": "1"})
        text, *shown = outputs(target)
        assert [output.output_type for output in shown] == ["execute_result", "display_data"]
        said[forks] = text.text.splitlines()
    assert said[True][0] == "['pandas', 'torch']", "libraries are there, our own code is not"
    assert said[True][1:] == said[False][1:] and said[True][2].endswith("1 True")


@forked
def test_kernels_that_die_leave_no_process(tmp_path):
    """The kernel alone, then the one process that it and the next would be forked from."""

    def execute(ends: str) -> None:
        noted = (
            f"import os, time\nwith open('{tmp_path}/pids', 'w') as file: print(os.getpid(), os.getppid(), file=file)"
        )
        notebooks.run_notebook(source(f"{noted}\n{ends}"), tmp_path / "copy.ipynb")

    def pids() -> tuple[int, int]:
        kernel, parent = map(int, (tmp_path / "pids").read_text(encoding="utf-8").split())
        return kernel, parent

    for victim in ("os.getpid()", "os.getppid()"):
        with pytest.raises(notebooks.NotebookError, match="its kernel died"):
            execute(f"os.kill({victim}, 9)\ntime.sleep(60)")
        kernel, parent = pids()
        assert not runs(kernel) and runs(parent) == (victim == "os.getpid()")
        execute("")
        assert (pids()[1] == parent) == runs(parent)
    kernels.fork_server.cache_clear()
    assert not any(map(runs, pids()))


def runs(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


def outputs(path: Path) -> list[nbformat.NotebookNode]:
    return [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", [])]


@pytest.mark.usefixtures("no_kernels")
class TestWithoutKernels:
    def test_list_shows_names_and_titles_in_reading_order(self, capsys):
        assert main(["figures", "--list"]) == 0
        lines = capsys.readouterr().out.splitlines()[1:]
        assert [line.split()[0] for line in lines] == ["00_start", "paper_a/01_draws", "paper_b/02_limit"]
        assert "Title of paper_a/01_draws" in lines[1]

    @pytest.mark.parametrize(
        "wanted",
        ["paper_a", "01_draws", "paper_a/01_draws", "notebooks/paper_a/01_draws.ipynb", "paper_a/01", "01", "paper_a/"],
    )
    def test_a_notebook_has_many_names(self, wanted):
        assert notebooks.select([wanted]) == ["paper_a/01_draws"]

    def test_a_beginning_that_several_notebooks_have_lists_them(self):
        with pytest.raises(ValueError, match="'paper_' .* several notebooks: paper_a/01_draws, paper_b/02_limit; give"):
            notebooks.select(["paper_"])
        write("paper_a/01")
        assert notebooks.select(["paper_a/01"]) == ["paper_a/01"], "a whole name comes first"

    @pytest.mark.parametrize("value", [(1, 2), Path("x"), {1: 2}])
    def test_a_value_that_papermill_would_distort_is_refused(self, value):
        with pytest.raises(ValueError, match="SEEDS=.* is not plain JSON"):
            notebooks.check_parameters("paper_a/01_draws", {"SEEDS": value})

    def test_a_broken_notebook_is_one_line(self, capsys):
        notebooks.path_of("paper_a/01_draws").write_text("{", encoding="utf-8")
        assert main(["figures", "paper_a"]) == 2
        assert capsys.readouterr().err.count("\n") == 1

    def test_no_notebooks_at_all(self, capsys, tmp_path, monkeypatch):
        monkeypatch.setattr("pfl_core.notebooks.catalogue.NOTEBOOKS", tmp_path / "nothing")
        assert main(["figures"]) == 2
        assert "checkout" in capsys.readouterr().err

    def test_dry_run_counts_missing_and_stored_runs(self, capsys, monkeypatch):
        runs = [PAPER.settings.spec("local", preset="ci", seed=seed, overrides={"rounds": 1}) for seed in (0, 1)]
        asks_for(monkeypatch, *runs)
        assert main(["figures", "--dry-run", "--jobs", "1"]) == 0
        rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
        assert rows["paper_a/01_draws"][1:3] == ["0", "2"] and rows["total"][2] == "2"
        assert rows["00_start"][1:] == ["0", "0", "-", "-", "-"]
        execute(runs[0], Store())
        main(["figures", "--dry-run", "paper_a"])
        out = capsys.readouterr().out
        assert {line.split()[0]: line.split()[1:3] for line in out.splitlines()}["paper_a/01_draws"] == ["1", "1"]
        assert "from stored runs of the same kind" in out

    def test_the_device_is_for_notebooks_that_ask_for_runs(self, monkeypatch):
        asks_for(monkeypatch)
        args = parser().parse_args(["figures", "--device", "cpu", "-p", "OVERRIDES", '{"rounds": 3}'])
        assert parameters_of("paper_a/01_draws", args)["OVERRIDES"] == {"rounds": 3, "device": "cpu"}
        assert parameters_of("00_start", args)["OVERRIDES"] == {"rounds": 3}

    def test_dry_run_names_the_data_that_are_not_here(self, capsys, monkeypatch):
        runs = [PAPER.settings.spec("local", preset="paper", setting="cifar10", seed=seed) for seed in (0, 1)]
        asks_for(monkeypatch, *runs)
        assert main(["figures", "--dry-run", "--preset", "paper"]) == 0
        assert "2 runs cannot be computed: data set 'cifar10' " in capsys.readouterr().out


def test_a_kernel_that_dies_before_its_first_cell_is_tried_again(tmp_path, monkeypatch):
    calls = []

    def dies_once(source, target, parameters, env):
        calls.append(target)
        if len(calls) == 1:
            raise RuntimeError("Kernel died before replying to kernel_info")
        nbformat.write(new_notebook(), target)

    monkeypatch.setattr(runner, "_papermill", dies_once)
    notebooks.run_notebook(notebooks.path_of("00_start"), tmp_path / "copy.ipynb")
    assert len(calls) == 2 and (tmp_path / "copy.ipynb").exists()


def test_a_full_disk_names_the_notebook_that_cannot_be_written(tmp_path, monkeypatch):
    """Papermill does not name it."""

    def full(source, target, parameters, env):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runner, "_papermill", full)
    with pytest.raises(OSError, match=r"copy\.ipynb cannot be written: No space left on device"):
        notebooks.run_notebook(notebooks.path_of("00_start"), tmp_path / "copy.ipynb")


def test_a_kernel_that_dies_later_is_not(tmp_path, monkeypatch):
    calls = []

    def dies(source, target, parameters, env):
        calls.append(target)
        nbformat.write(new_notebook(cells=[new_code_cell("x", execution_count=1)]), target)
        raise notebooks.NotebookError("its kernel died")

    monkeypatch.setattr(runner, "_papermill", dies)
    with pytest.raises(notebooks.NotebookError, match="its kernel died"):
        notebooks.run_notebook(notebooks.path_of("00_start"), tmp_path / "copy.ipynb")
    assert len(calls) == 1
    assert [path.name for path in tmp_path.glob("copy*")] == ["copy.failed.ipynb"]


def executed(notebook: nbformat.NotebookNode, target: Path) -> None:
    """Add the outputs and metadata that papermill adds and that cleaning removes or keeps."""
    for cell in notebook.cells:
        cell.metadata.setdefault("tags", [])
        cell.metadata["papermill"] = {"duration": 1.5}
        if cell.cell_type == "code":
            cell.execution_count = 1
            cell.outputs = [
                new_output("stream", name="stdout", text="0.123"),
                new_output("stream", name="stderr", text="bar"),
                new_output("display_data", {"image/png": "aGk=", "text/plain": "<Figure>"}),
            ]
    notebook.metadata["papermill"] = {"input_path": "here"}
    notebook.metadata["language_info"] = {"name": "python", "version": "3.11.7"}
    nbformat.write(notebook, target)


@pytest.mark.parametrize(("preset", "pictures"), [("quick", True), ("ci", False)])
def test_committed_copies_are_clean_and_hold_their_preset(tmp_path, monkeypatch, preset, pictures):
    seen = {}

    def papermill(source, target, parameters, env):
        seen.update(parameters=parameters, quiet="TQDM_DISABLE" in env)
        executed(source, target)

    monkeypatch.setattr(runner, "_papermill", papermill)
    target = tmp_path / "copies" / "01_draws.ipynb"
    notebooks.rewrite("paper_a/01_draws", preset, target, tmp_path / "scratch")
    copy, source = nbformat.read(target, 4), nbformat.read(notebooks.path_of("paper_a/01_draws"), 4)
    assert seen == {"parameters": {}, "quiet": preset == "ci"}
    assert notebooks.parameters_cell(copy).source.startswith(f'PRESET = "{preset}"  # "ci" | "quick"\nSEEDS')
    assert [cell.id for cell in copy.cells] == [cell.id for cell in source.cells]
    assert "papermill" not in json.dumps(copy) and "3.11" not in json.dumps(copy)
    assert [cell.metadata.get("tags") for cell in copy.cells] == [None, ["parameters"], None]
    text, picture = copy.cells[2].outputs
    assert text.text == "0.123" and copy.cells[2].execution_count == 1
    assert ("image/png" in picture.data) == pictures and picture.data["text/plain"] == "<Figure>"


def test_preset_and_seeds_are_set_and_the_comments_stay():
    notebook = nbformat.read(notebooks.path_of("paper_a/01_draws"), 4)
    real = notebooks.parameters_cell(notebooks.with_preset(notebook, "real", [0, 1])).source
    assert real == PARAMETERS.replace('"quick"  #', '"real"  #').replace("SEEDS = None", "SEEDS = [0, 1]")
    assert notebooks.parameters_cell(notebooks.with_preset(notebook, "quick")).source == PARAMETERS


def test_a_copy_whose_notebook_fails_stays_as_it_was(tmp_path, monkeypatch):
    def fails(source, target, parameters, env):
        raise notebooks.NotebookError("in cell [1]")

    monkeypatch.setattr(runner, "_papermill", fails)
    before = notebooks.path_of("00_start").read_bytes()
    with pytest.raises(notebooks.NotebookError):
        notebooks.rewrite("00_start", "quick", notebooks.path_of("00_start"), tmp_path / "scratch")
    assert notebooks.path_of("00_start").read_bytes() == before


def test_write_notebooks_refreshes_them_in_place(capsys, monkeypatch):
    jobs = []

    def papermill(source, target, parameters, env):
        jobs.append(env["PFL_JOBS"])
        executed(source, target)

    monkeypatch.setattr(runner, "_papermill", papermill)
    assert main(["figures", "paper_a", "--write-notebooks", "--jobs", "1"]) == 0 and jobs == ["1"]
    assert "1 of 1 notebooks" in capsys.readouterr().out
    assert [o.output_type for o in outputs(notebooks.path_of("paper_a/01_draws"))] == ["stream", "display_data"] * 2
    assert not outputs(notebooks.path_of("00_start"))


def test_a_notebook_needs_a_preset_line():
    with pytest.raises(ValueError, match="one line PRESET = ..."):
        notebooks.with_preset(nbformat.read(write("odd", parameters="SEEDS = None"), as_version=4), "ci")

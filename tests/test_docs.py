"""The recipes in docs/ work, as far as one machine can tell."""

import json
import re
import runpy
import shlex
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from pfl_core.cli import main
from pfl_core.papers.fedselect.paper import PAPER
from pfl_core.runs import Store
from pfl_core.vision import torchvision

DOCS = Path(__file__).parents[1] / "docs"
HOW_TO = (DOCS / "howto.md").read_text(encoding="utf-8")
TINY = {"--rounds": "1", "--model": "mlp", "--clients": "5", "--jobs": "1"}
# sections whose commands depend on each other, or on a notebook
OWN_TESTS = ("Take the models elsewhere", "Continue a run", "Change a figure", "Let somebody reproduce a run")


def section(heading: str) -> str:
    """The text below a heading of howto.md."""
    return HOW_TO.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def commands(text: str) -> list[list[str]]:
    """The commands of a section's blocks, without comments."""
    return [shlex.split(line, comments=True)[1:] for line in re.findall(r"^pfl .*$", text, re.MULTILINE)]


HEADINGS = [h for h in re.findall(r"^## (.+)$", HOW_TO, re.MULTILINE) if h not in OWN_TESTS]
PAGES = ("Use a method in another framework", "Complete commands with the Tab key")  # tested elsewhere


def made_small(command: list[str]) -> list[str]:
    """The command, with the options of ``TINY`` that it does not have; without a GPU, on the CPU and at preset quick.
    Notebooks are not run.
    """
    if command[0] == "figures" and "--dry-run" not in command:
        command = [*command, "--dry-run"]
    if command[0] == "run" or (command[0] == "compare" and "--seed" in command):
        for name, value in TINY.items():
            command = command if name in command else [*command, name, value]
    if not torch.cuda.is_available():
        command = [{"cuda": "cpu", "paper": "quick"}.get(word, word) for word in command]
    return command


def run_blocks(text: str, known: dict[str, object] | None = None) -> dict[str, object]:
    """Write the Python blocks that begin with a file name, and run the others, with small networks.

    ``known``: names that the blocks use. Returns these and the blocks' own.
    """
    names = known or {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        if file := re.match(r"# (\w+\.py)\n", block):
            Path(file[1]).write_text(block, encoding="utf-8")
        else:
            exec(block.replace("rounds=3", "rounds=2, model={'name': 'mlp'}"), names if known else {})
    return names


def test_the_page_has_twenty_tasks_and_lists_them():
    headings = re.findall(r"^## (.+)$", HOW_TO, re.MULTILINE)
    listed = HOW_TO.split("\n## ")[0]
    anchors = [re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings]
    assert len(headings) >= 20 and all(f"(#{anchor})" in listed for anchor in anchors)


@pytest.mark.parametrize("heading", [h for h in HEADINGS if h not in PAGES])
def test_every_task_of_the_howto_page_runs(heading, folders, capsys, monkeypatch):
    """Training runs are made small. A task is one command, or at most ten lines of a file and one command."""
    text = section(heading)
    datasets = module_from_spec(ModuleSpec("datasets", None))
    datasets.load_dataset = invented_set
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    monkeypatch.setattr(torchvision().datasets, "KMNIST", invented_images)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        assert max(len(part.strip().splitlines()) for part in block.split("\n\n\n")) <= 10
    run_blocks(text)
    with cluster() if "HOST:8786" in text else nullcontext("") as address:
        for command in commands(text):
            assert main([word.replace("tcp://HOST:8786", address) for word in made_small(command)]) == 0
            assert capsys.readouterr().out
    for name in [name for name in sys.modules if name in ("my_data", "sets", "my_net", "my_method", "my_head")]:
        del sys.modules[name]


def test_one_more_method_joins_a_notebooks_runs_and_ones_own_claim_is_judged(folders):
    runs = PAPER.runs("01_main_comparison", "ci", [0], train=True)
    known = {"PAPER": PAPER, "pd": pd, "runs": runs[runs["method"] == "fedavg"], "TRAIN": False}
    try:
        more = run_blocks(section("Change a figure"), known)
        assert set(PAPER.judge(runs, [101])["outcome"]) == {"shown"}
    finally:
        PAPER.claims.pop(101)
    assert list(more["runs"]["method"]) == ["fedavg", "ditto"] and more["runs"]["train_lr"].nunique() == 1
    for command in commands(section("Change a figure")):
        assert main(made_small(command)) == 0


def test_a_run_is_made_again_from_its_record(folders, capsys):
    assert main(["run", "fedavg", *"--model mlp --rounds 2 --clients 5 --json".split()]) == 0
    made = Store().get(json.loads(capsys.readouterr().out)["key"])
    Path("KEY.json").write_bytes(Store().path(made.key).read_bytes())
    spec = run_blocks(section("Let somebody reproduce a run"), {"once": True})["spec"]
    assert Store(root=Path("again")).get(spec.key()).series["correct"] == made.series["correct"]


def test_the_method_with_personal_parts_is_fedper(folders, capsys):
    """The one in CONTRIBUTING."""
    run_blocks((DOCS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    answers = []
    for name, option in (("my_head:OwnHead", []), ("fedper", [])):
        assert main(["run", name, *option, *"--model mlp --rounds 2 --json".split()]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    own, fedper = answers
    assert {name: own[name] for name in ("acc_mean", "loss", "upload_mb")} == pytest.approx(
        {name: fedper[name] for name in ("acc_mean", "loss", "upload_mb")}
    )


@contextmanager
def cluster():
    """The address of a Dask scheduler with one worker."""
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as made:
        yield made.scheduler_address


class invented_images:  # noqa: N801
    """Takes the place of a data set of torchvision, which would be downloaded."""

    def __init__(self, root, train, download):
        n = 200 if train else 100
        self.data, self.targets = torch.randint(0, 256, (n, 28, 28), dtype=torch.uint8), torch.arange(n) % 10


def invented_set(name, split):
    """Takes the place of ``datasets.load_dataset``."""
    n = 60 if split == "train" else 30
    columns = {"image": np.random.default_rng(0).integers(0, 256, (n, 48, 48, 3), dtype=np.uint8)}
    columns["labels"] = np.arange(n) % 3
    return SimpleNamespace(with_format=lambda kind: columns)


def test_models_can_be_taken_elsewhere(folders, capsys):
    text = section("Take the models elsewhere")
    train, export = commands(text)
    assert main([*train, "--model", "mlp", "--json"]) == 0
    key = json.loads(capsys.readouterr().out.splitlines()[-1])["key"]
    assert main([key if word == "KEY" else word for word in export]) == 0
    plain, loaded = ({} for _ in range(2))
    for block, names in zip(re.findall(r"```python\n(.*?)```", text, re.DOTALL), (plain, loaded), strict=True):
        exec(block, names)
    x = torch.rand(5, 1, 8, 8)
    assert loaded["scores"].shape == (3, 10)
    assert torch.equal(plain["net"](x), loaded["network"](x))


def test_runs_are_continued(folders, capsys):
    for command, last in zip(commands(section("Continue a run")), ([], ["after the 20 rounds"], [], []), strict=True):
        assert main([*command, "--model", "mlp", "--clients", "5"]) == 0
        assert all(text in capsys.readouterr().err for text in last)
    whole, done = (record for record in Store() if record.spec.rounds in (40, 10))
    assert not whole.partial and not done.partial


def test_the_slurm_script_writes_a_job_and_starts_the_command(tmp_path, monkeypatch):
    """Run whole, with a cluster that submits nothing, and a command that only shows what it is given."""
    jobqueue = pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed")
    (script,) = re.findall(r"```python\n(.*?)```", (DOCS / "cluster.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "slurm.py").write_text(script, encoding="utf-8")
    made, started, workers = [], [], []

    class Offline(jobqueue.SLURMCluster):
        def __init__(self, **options) -> None:
            super().__init__(**options, scheduler_options={"dashboard_address": ":0"})
            made.append(self.job_script())

        def scale(self, jobs: int) -> None:  # 0 when it closes
            workers.append(jobs)

    monkeypatch.setattr(jobqueue, "SLURMCluster", Offline)
    monkeypatch.setattr(subprocess, "run", lambda command, env, check: started.append((command, env)))
    cluster = runpy.run_path(str(tmp_path / "slurm.py"))["cluster"]
    cluster.close()
    (job,) = made
    assert workers[0] == 16
    assert job.startswith("#!") and "#SBATCH -t 04:00:00" in job and "#SBATCH --mem=4G" in job
    assert "export PFL_DATA_DIR=/shared/pfl-data OMP_NUM_THREADS=1" in job
    assert "--nthreads 1" in job
    ((command, env),) = started
    assert command[:2] == ["pfl", "figures"] and env["DASK_SCHEDULER_ADDRESS"].startswith("tcp://")

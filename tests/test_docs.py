"""The recipes in docs/ work, as far as one machine can tell."""

import json
import re
import runpy
import shlex
import subprocess
from pathlib import Path

import pytest
import torch

from pfl_core.cli import main
from pfl_core.runs import Store

DOCS = Path(__file__).parents[1] / "docs"
HOW_TO = (DOCS / "howto.md").read_text(encoding="utf-8")
TINY = "--rounds 1 --model mlp --clients 5 --jobs 1".split()
OWN_TESTS = ("Take the models elsewhere", "Continue a run")  # sections whose commands depend on each other


def section(heading: str) -> str:
    """The text below a heading of howto.md."""
    return HOW_TO.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def commands(text: str) -> list[list[str]]:
    """The commands of a section's blocks, without comments."""
    return [shlex.split(line, comments=True)[1:] for line in re.findall(r"^pfl .*$", text, re.MULTILINE)]


HEADINGS = [h for h in re.findall(r"^## (.+)$", HOW_TO, re.MULTILINE) if h not in OWN_TESTS]


@pytest.mark.parametrize("command", [c for h in HEADINGS for c in commands(section(h))], ids=" ".join)
def test_every_command_of_the_howto_page_runs(command, folders, capsys):
    """Training runs are made small."""
    trains = command[0] == "run" or command[0] == "compare" and "--seed" in command
    assert main([*command, *(TINY if trains else [])]) == 0
    assert capsys.readouterr().out


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
    assert "PRE_SPAWN_ENVIRON=\"{'MALLOC_TRIM_THRESHOLD_': None}\"" in job and "--nthreads 1" in job
    ((command, env),) = started
    assert command[:2] == ["pfl", "figures"] and env["DASK_SCHEDULER_ADDRESS"].startswith("tcp://")


def test_the_recipes_environment_leaves_the_allocator_alone(monkeypatch):
    """What dask reads from the recipe's variable removes the setting from what its nannies give to workers."""
    dask_config = pytest.importorskip("dask.config", reason="dask is not installed")
    pytest.importorskip("distributed", reason="dask is not installed")
    text = (DOCS / "cluster.md").read_text(encoding="utf-8")
    (value,) = re.findall(r'^export DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON="(.*)"$', text, re.MULTILINE)
    environment = dask_config.collect_env({"DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON": value})
    merged = dask_config.merge(
        dask_config.defaults[-1] if dask_config.defaults else {}, dask_config.config, environment
    )
    assert merged["distributed"]["nanny"]["pre-spawn-environ"]["MALLOC_TRIM_THRESHOLD_"] is None

"""The recipes in docs/ work, as far as one machine can tell."""

import re
import runpy
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


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

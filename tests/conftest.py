"""Settings of all tests: one thread and one process, no progress bars, no windows, fixed hypothesis examples.

The variables are set before any import, so that what a test starts (workers, notebook kernels) has them too.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PFL_JOBS"] = "1"  # sweeps start no workers: their imports take longer than the runs of most tests
os.environ["TQDM_DISABLE"] = "1"

import hypothesis  # noqa: E402
import matplotlib  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from jupyter_client.manager import KernelManager  # noqa: E402

from pfl_core.runs import Store  # noqa: E402
from tests import nbval_kernels, nbval_numbers  # noqa: E402

torch.set_num_threads(1)
matplotlib.use("Agg")  # not by MPLBACKEND: a notebook's kernel would lose its inline pictures
KernelManager.transport_encryption.default_value = "auto"  # else every kernel that nbval starts warns
nbval_numbers.install()
nbval_kernels.install()
hypothesis.settings.register_profile("same every time, however slow the machine", derandomize=True, deadline=None)
hypothesis.settings.load_profile("same every time, however slow the machine")


LONG = ("test_site.py", "test_cluster.py")  # begun first, so that no process is left alone with them at the end


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty data folder, no committed results, and a separate working folder."""
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr("pfl_core.runs.store.RESULTS", tmp_path / "results")
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store without committed results."""
    return Store(tmp_path / "runs", tmp_path / "results")


@pytest.fixture(autouse=True)
def figures_closed() -> Iterator[None]:
    """Closes figures after each test, without importing pyplot."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip ``@pytest.mark.realdata("cifar10", ...)`` where a file is missing; without names, where there is none."""
    for marker in item.iter_markers("realdata"):
        from pfl_core.data import data_dir

        missing = [name for name in marker.args or ["*"] if not any(data_dir().glob(f"{name}.npz"))]
        if missing:
            pytest.skip(f"no {missing[0]}.npz in the data folder (PFL_DATA_DIR, else data/)")

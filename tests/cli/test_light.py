"""Help and errors of the command are fast: the modules that they may import, and the tables of names."""

import subprocess
import sys

import pytest

from pfl_core import algorithm, registry
from pfl_core.partition import PARTITIONS
from pfl_core.registry import INSTRUMENTS, MODULES

HEAVY = {
    *("torch", "torchvision", "numpy", "pandas", "scipy", "sklearn", "matplotlib", "seaborn", "medmnist", "PIL"),
    *("pydantic", "papermill", "nbformat", "nbclient", "jupyter_client", "ipykernel", "joblib"),
}
LIGHT = """\
--help
run --help
compare --help
figures --help
methods
run --hepl
runn
run fedselectt
run fedselect --alpha 0.5
run fedselect --lr fast
run fedselect --partial-batch kept
run fedselect --paper fedselct
run fedselect --paper fedselect --preset huge
run fedselect --data cifar11
run fedselect --partition shard:2
run fedselect --device cpu --seed x
run ditto --seed 2-0
methods fedselectt
data digitz
compare fedselct
compare fedselect dito
compare ditto
compare fedselect --figure x.gif
figures fedselct
figures --preset huge
report fedselct
search fedselct
runs list --paper fedselct
runs export out --preset huge"""  # answered without torch
RUN = """
import contextlib, io, sys
import pfl_core
print(*sys.modules, sep=",")
from pfl_core.cli import main
for line in sys.stdin.read().splitlines():
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            status = main(line.split())
        except SystemExit as end:  # --help
            status = end.code
    print(status, *sys.modules, sep=",")
"""


def test_what_is_imported(monkeypatch, tmp_path):
    """Help and wrong names are answered without heavy imports; `import pfl_core` imports nothing else."""
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    given = "\n".join([LIGHT, "run fedavg --rounds 1 --quiet"])
    done = subprocess.run([sys.executable, "-c", RUN], input=given, capture_output=True, encoding="utf-8", check=True)
    first, *lines, last = (set(line.split(",")) for line in done.stdout.splitlines())
    assert not first & HEAVY and {name for name in first if name.startswith("pfl_core")} == {"pfl_core"}
    for command, loaded in zip(LIGHT.splitlines(), lines, strict=True):
        assert ("0" if "--help" in command or command == "methods" else "2") in loaded, command
        assert not HEAVY & loaded, command
    assert {"0", "torch"} <= last
    assert not {"torch._dynamo", "torch._inductor", "sympy", "matplotlib"} & last, "torch's compiler takes a second"


def test_a_method_is_looked_up_without_importing_the_others():
    code = "import sys, pfl_core.algorithm as a; a.method('fedprox'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    loaded = set(done.stdout.split())
    assert "pfl_core.algorithms.fedprox" in loaded
    assert not {"pfl_core.algorithms.fedselect.method", "pfl_core.algorithms.pfedgate.method"} & loaded


def test_every_public_name_can_be_imported():
    import pfl_core
    import pfl_core.data

    for package in (pfl_core, pfl_core.data):
        assert all(getattr(package, name) is not None for name in package.__all__)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = package.nothing


def test_the_tables_of_names_are_those_of_the_registries():
    assert {name: entry.cls.__module__ for name, entry in algorithm.methods().items()} == MODULES
    assert algorithm.registered().keys() == {*MODULES, *INSTRUMENTS}
    assert registry.PARTITIONS == tuple(PARTITIONS)

"""Help and errors of the command are fast: the modules that they may import, and the tables of names."""

import subprocess
import sys

import pytest

from pfl_core import algorithm, registry
from pfl_core.partition import PARTITIONS
from pfl_core.registry import INSTRUMENTS, METHODS

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
IMAGES = {"torchvision", "medmnist", "sklearn", "pandas", "seaborn", "pooch", "PIL"}
OTHER_METHODS = {"pfl_core.algorithms.fedselect.method", "pfl_core.algorithms.pfedgate.method"}
COMPILER = {"torch._dynamo", "torch._inductor", "sympy", "matplotlib"}  # takes a second
STEPS = {  # a statement -> what is not imported by it, nor by those before it
    "import pfl_core": HEAVY,
    **{f"run({line.split()})": HEAVY for line in LIGHT.splitlines()},
    "import pfl_core.algorithm; pfl_core.algorithm.method('fedprox')": OTHER_METHODS,
    "import pfl_core.partition": IMAGES,
    "import pfl_core.data as d; d.load('synthetic_3200'); d.names('nowhere')": IMAGES,
    "run('run fedavg --rounds 1 --quiet'.split())": COMPILER | {"torchvision"},
    "warnings.simplefilter('error'); import pfl_core.vision as v; v.torchvision().datasets; v.torchvision()": set(),
}
SCRIPT = """
import contextlib, io, sys, warnings

def run(words):
    from pfl_core.cli import main
    global status
    try:
        status = main(words)
    except SystemExit as end:  # --help
        status = end.code

for line in sys.stdin.read().splitlines():
    status = 0
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        exec(line)
    print(status, *sys.modules, sep=",")
"""


def test_what_is_imported(monkeypatch, tmp_path):
    """Help and wrong names are answered without heavy imports; torchvision's first import gives no warning."""
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    given = "\n".join(STEPS)
    done = subprocess.run([sys.executable, "-c", SCRIPT], input=given, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    loaded = {}
    for (step, absent), line in zip(STEPS.items(), done.stdout.splitlines(), strict=True):
        status, *modules = line.split(",")
        refused = step.startswith("run([") and "--help" not in step and step != "run(['methods'])"
        assert status == ("2" if refused else "0"), step
        assert not absent & set(modules), step
        loaded[step] = set(modules)
    assert {name for name in loaded["import pfl_core"] if name.startswith("pfl_core")} == {"pfl_core"}
    assert any("pfl_core.algorithms.fedprox" in modules for modules in loaded.values())
    assert {"torch", "torchvision"} <= set(modules)


def test_every_public_name_can_be_imported():
    import pfl_core
    import pfl_core.data

    for package in (pfl_core, pfl_core.data):
        assert all(getattr(package, name) is not None for name in package.__all__)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = package.nothing


def test_the_tables_of_names_are_those_of_the_registries():
    assert {name: entry.cls.__module__ for name, entry in algorithm.methods().items()} == METHODS
    assert algorithm.registered().keys() == {*METHODS, *INSTRUMENTS}
    assert registry.PARTITIONS == tuple(PARTITIONS)

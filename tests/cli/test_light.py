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
from pfl_core.cli import main
for line in sys.stdin.read().splitlines():
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            status = main(line.split())
        except SystemExit as end:  # --help
            status = end.code
    print(status, *(name for name in sys.modules), sep=",")
"""


def python(code: str, given: str = "") -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, encoding="utf-8", check=True)
    return done.stdout.splitlines()


def test_importing_the_package_imports_nothing_else():
    (line,) = python("import sys, pfl_core; print(*sys.modules, sep=',')")
    loaded = set(line.split(","))
    assert not loaded & HEAVY and {name for name in loaded if name.startswith("pfl_core")} == {"pfl_core"}


def test_help_and_wrong_names_are_answered_without_heavy_imports():
    lines = python(RUN, LIGHT)
    for command, line in zip(LIGHT.splitlines(), lines, strict=True):
        status, *loaded = line.split(",")
        assert status == ("0" if "--help" in command or command == "methods" else "2"), command
        assert not HEAVY & set(loaded), command


def test_a_run_does_not_import_torchs_compiler(monkeypatch, tmp_path):
    """It takes a second; torch's own counter of FLOPs would import it."""
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    (line,) = python(RUN, "run fedavg --rounds 1 --quiet")
    status, *loaded = line.split(",")
    assert status == "0" and "torch" in loaded
    assert not {"torch._dynamo", "torch._inductor", "sympy", "matplotlib"} & set(loaded)


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


def test_a_method_is_looked_up_without_importing_the_others():
    (line,) = python("import sys, pfl_core.algorithm as a; a.method('fedprox'); print(*sys.modules, sep=',')")
    loaded = set(line.split(","))
    assert "pfl_core.algorithms.fedprox" in loaded
    assert not {"pfl_core.algorithms.fedselect.method", "pfl_core.algorithms.pfedgate.method"} & loaded

"""pyproject.toml, constraints.txt, environment.yml and the installed packages agree; what wheel and sdist carry."""

import email
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import requires, version
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import pfl_core

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA_NAMES = {"pytorch": "torch"}
CONDA_ONLY = {"pip"}
EXTRAS = ("test", "cluster", "site", "metrics")


def parse(lines: list[str]) -> dict[str, SpecifierSet]:
    """Canonical name -> versions allowed; a name given twice would hide one of the two, so it is an error."""
    parsed = [Requirement(line) for line in lines]
    names = [canonicalize_name(requirement.name) for requirement in parsed]
    assert len(names) == len(set(names)), f"named twice: {sorted(names)}"
    return {name: requirement.specifier for name, requirement in zip(names, parsed, strict=True)}


def declared(*extras: str) -> dict[str, SpecifierSet]:
    """What these extras need. A line that several of them have counts once."""
    lines = [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    return parse([*PROJECT["dependencies"], *dict.fromkeys(lines)])


def conda() -> dict[str, SpecifierSet]:
    *lines, pip = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    named = parse([line for line in [*lines, *pip["pip"]] if not line.startswith("--editable")])
    return {CONDA_NAMES.get(name, name): specifier for name, specifier in named.items() if name not in CONDA_ONLY}


def pinned() -> dict[str, SpecifierSet]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return parse([line for line in lines if line and not line.startswith("#")])


def test_conda_users_get_what_pip_users_get():
    assert conda() == declared(*EXTRAS) | {"python": SpecifierSet(PROJECT["requires-python"])}


def test_every_dependency_is_pinned_within_its_range():
    pins = pinned()
    for name, specifier in declared(*EXTRAS).items():
        assert name in pins, f"constraints.txt does not pin {name}"
        (pin,) = pins[name]
        assert specifier.contains(pin.version), f"constraints.txt has {name}{pin}, pyproject.toml wants {specifier}"


def test_what_these_need_is_pinned_too():
    """All packages that they bring, except the CUDA libraries, which torch pins itself."""
    pins, todo, seen = pinned(), list(declared("test", "cluster", "metrics")), set()
    while todo:
        name = todo.pop()
        if name in seen or name.startswith(("nvidia-", "cuda-", "triton")):
            continue
        seen.add(name)
        assert name in pins, f"constraints.txt does not pin {name}"
        needed = [Requirement(line) for line in requires(name) or ()]
        todo += [canonicalize_name(r.name) for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
    assert len(seen) > 100 and "setuptools" in pins


def test_pins_are_exact_and_can_be_installed_anywhere():
    for name, specifier in pinned().items():
        assert [pin.operator for pin in specifier] == ["=="], f"{name}{specifier} is not one exact version"
        assert "+" not in str(specifier) and "*" not in str(specifier), (
            f"{name}{specifier} names one build or several versions"
        )


def test_installed_versions_are_in_range():
    for name, wanted in declared("test", "cluster", "metrics").items():
        assert wanted.contains(version(name)), f"{name} {version(name)} is installed, pyproject.toml wants {wanted}"


def test_one_version_number_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    newest = next(line for line in changes if line.startswith("## "))
    assert {str(citation["version"]), newest.split()[1], pfl_core.__version__} == {PROJECT["version"]}
    assert PROJECT["license"] == f"{citation['license']} AND MIT"  # MIT: the images that the package carries


def test_the_same_pythons_everywhere():
    allowed = SpecifierSet(PROJECT["requires-python"])
    pythons = [f"3.{minor}" for minor in range(100) if f"3.{minor}" in allowed]
    label = "Programming Language :: Python :: "
    assert [line.removeprefix(label) for line in PROJECT["classifiers"] if line.startswith(label)] == pythons
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    first, last = (tuple(map(int, pythons[i].split("."))) for i in (0, -1))
    assert f"not {first} <= sys.version_info[:2] <= {last})" in make
    assert f"(Python {pythons[0]} to {pythons[-1]};" in make
    assert f"$(PYTHON),{' '.join(f'python{python}' for python in pythons)} python3 python)" in make
    named = f"{', '.join(pythons[:-1])} or {pythons[-1]}"
    assert f"No Python {named} among" in make
    assert f"You need Python {named}," in (ROOT / "README.md").read_text(encoding="utf-8")


def test_wheel_and_sdist_carry_the_papers_tables_and_both_licences(tmp_path):
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("pfl_core", "data/paper"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_something.py").touch()
    build = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
    subprocess.run([sys.executable, "-W", "ignore", "-c", build], cwd=tmp_path, check=True, capture_output=True)
    tables = {path.name for path in (ROOT / "data" / "paper").iterdir()}
    (sdist,), (wheel,) = tmp_path.glob("dist/*.tar.gz"), tmp_path.glob("dist/*.whl")
    with tarfile.open(sdist) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert {f"data/paper/{name}" for name in tables} <= inside and not {n for n in inside if n.startswith("tests")}
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (metadata,) = (email.message_from_bytes(packed.read(name)) for name in names if name.endswith("/METADATA"))
    assert {f"pfl_core/study/printed/{name}" for name in tables} <= set(names)
    assert metadata.get_all("License-File") == ["LICENSE", "pfl_core/data/fashion_small.LICENSE"]

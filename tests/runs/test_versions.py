"""A run's key depends on the versions of exactly those components that compute it."""

from __future__ import annotations

import math

import pytest
from torch import nn

from pfl_core import algorithm, data, models, partition
from pfl_core.runs import RunSpec, versions
from tests.runs.outside import HERE

FEDAVG = {"name": "fedavg"}
FEDPEWS = {"method": {"name": "fedpews", "base": "fedprox"}}
COUNTS = [  # (a component of the run's versions, the spec)
    ("engine", {}),
    ("method fedavg", {}),
    ("method Momentum", {}),
    ("method fedselect", {"method": {"name": "fedselect"}}),
    ("method Alternating", {"method": {"name": "fedselect"}}),
    ("method fedpews", FEDPEWS),
    ("method fedprox", FEDPEWS),
    ("method fedavg", FEDPEWS),
    ("method star_pfl", {"method": {"name": "star_pfl_likeness"}}),
    ("network mlp", {"model": {"name": "mlp"}}),
    ("partition iid", {"partition": {"name": "iid"}}),
    ("data digits", {}),
    ("data mnist", {"data": {"name": "cifar_mnist"}}),
    ("data combine", {"data": {"name": "cifar_mnist"}}),
    ("data corrupt", {"data": {"name": "cifar10", "corrupt": True}}),
    ("data mnist", {"method": {"name": "fedmd", "public": "mnist"}}),
]


def raise_version(component: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, _, name = component.partition(" ")
    if kind == "engine":
        monkeypatch.setattr(versions, "ENGINE", 2)
    elif kind == "method":
        classes = algorithm.registered()
        bases = {c.__name__: c for cls in classes.values() for c in cls.__mro__}
        monkeypatch.setattr(classes.get(name) or bases[name], "version", 2)
    else:
        table = {"network": models.VERSIONS, "partition": partition.VERSIONS, "data": data.VERSIONS}[kind]
        monkeypatch.setitem(table, name, 2)


@pytest.mark.parametrize(("component", "fields"), COUNTS, ids=lambda x: x if isinstance(x, str) else "")
def test_a_raised_version_changes_the_key_of_the_runs_that_it_concerns(component, fields, monkeypatch):
    made, other = RunSpec(**{"method": FEDAVG, **fields}), RunSpec(method={"name": "ditto"}, model={"name": "linear"})
    before = made.key()
    assert made.versions()[component] == 1
    concerned = component in other.versions()
    others = other.key()
    raise_version(component, monkeypatch)
    assert made.key() != before
    assert (other.key() != others) == concerned


def test_a_class_between_two_others_changes_no_key(monkeypatch):
    """Bases count by their version only where it was raised, so code may be moved between classes."""
    before = RunSpec(method=FEDAVG).key()
    monkeypatch.setattr(versions, "of_class", lambda cls: {"method fedavg": 1, "method Momentum": 1, "method New": 1})
    assert RunSpec(method=FEDAVG).key() == before


def test_the_version_of_a_subclass_is_its_own(monkeypatch):
    monkeypatch.setattr(algorithm.method("fedavg"), "version", 3)
    found = RunSpec(method={"name": "ditto"}).versions()
    assert (found["method ditto"], found["method fedavg"]) == (1, 3)


def test_code_from_outside_counts_by_its_bytes():
    for fields, name in (
        ({"method": {"name": f"{HERE}:Raises"}}, f"code {HERE}"),
        ({"model": {"name": f"{HERE}:slow_net"}}, f"network {HERE}:slow_net"),
        ({"data": {"name": f"{HERE}:blobs"}}, f"data {HERE}:blobs"),
    ):
        assert len(str(RunSpec(**{"method": FEDAVG, **fields}).versions()[name])) == 32


def test_a_field_that_is_added_changes_no_key():
    """Only what is not at its default is part of the key."""
    plain = RunSpec(method={"name": "fedselect", "alpha": 0.5})
    assert plain.identity()["method"] == {"name": "fedselect", "alpha": 0.5}
    assert plain.identity()["train"] == {}
    assert set(plain.identity()) == {"method", "data", "partition", "model", "train"}
    full = plain.identity(written_out=True)
    assert full["method"]["p"] == 0.05 and full["train"]["lr"] == 0.05 and full["rounds"] == 20


def test_the_key_does_not_know_the_number_of_the_device():
    keys = [RunSpec(method=FEDAVG, device=name).key() for name in ("cpu", "cuda", "cuda:1")]
    assert keys[1] == keys[2] != keys[0]


def test_no_data_are_read_for_a_key(tmp_path, monkeypatch):
    monkeypatch.setenv("PFL_DATA_DIR", str(tmp_path))
    spec = RunSpec(method=FEDAVG, data={"name": "cifar10"})
    with pytest.raises(FileNotFoundError):
        spec.checksums()
    assert spec.key() != spec.key({"cifar10": "of another file"})


class Net(nn.Module):
    def __init__(self, in_shape, num_classes, act=nn.ReLU):
        super().__init__()
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(in_shape), num_classes), act())

    def forward(self, x):
        return self.head(x)


def test_a_network_may_be_a_class_with_defaults_that_json_does_not_know():
    spec = RunSpec(method=FEDAVG, model={"name": f"{__name__}:Net"})
    assert len(spec.key()) == 16
    with pytest.raises(ValueError, match="act"):
        RunSpec(method=FEDAVG, model={"name": f"{__name__}:Net", "act": nn.Tanh}).key()


def test_what_a_user_registers_by_name_counts_by_its_code(monkeypatch):
    monkeypatch.setitem(models.MODELS, "theirs", Net)
    found = RunSpec(method=FEDAVG, model={"name": "theirs"}).versions()
    assert len(str(found["network theirs"])) == 32


def test_a_spec_in_another_process_has_its_fields_alone():
    import pickle

    spec = RunSpec(method={"name": "fedselect"})
    assert b"_method" not in pickle.dumps(spec)
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec and again.key() == spec.key()


READER = """
from typing import ClassVar
from pfl_core.algorithms.local import Local
from tests.runs import outside

class Method(Local):
    files: ClassVar = ("numbers.csv",)

def part(data, clients, seed): ...
def net(shape, classes): return outside.slow_net(shape, classes)
def rows(): return outside.blobs(about=open("numbers.csv").read())

part.files = net.files = rows.files = ["numbers.csv"]
"""


@pytest.mark.parametrize(
    ("kind", "name"), [("method", "Method"), ("partition", "part"), ("model", "net"), ("data", "rows")]
)
def test_files_that_a_users_code_names_are_part_of_the_key(kind, name, spec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"reads_{kind}.py").write_text(READER, encoding="utf-8")
    keys, made = (
        [],
        spec(**{kind: {"name": f"reads_{kind}:{name}"}} if kind != "method" else {"method": f"reads_method:{name}"}),
    )
    for content in ("1,2", "1,3", "1,2"):
        (tmp_path / "numbers.csv").write_text(content, encoding="utf-8")
        keys.append(made.key())
    assert keys[0] == keys[2] != keys[1]
    (tmp_path / "numbers.csv").unlink()
    with pytest.raises(ValueError, match="numbers.csv"):
        made.key()

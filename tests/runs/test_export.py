"""Exported models predict what the run's record says, in plain PyTorch and through ``load_models``."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import pfl_core
from pfl_core import methods, models
from pfl_core.algorithms.fedavg import FedAvg
from pfl_core.files import atomic_write, checksum
from pfl_core.runs import Record, RunSpec, Store, assign, execute, load_data
from pfl_core.runs.export import check, describe, export_models
from pfl_core.training import Training
from tests.runs.outside import HERE

BATCH_NORM = {"name": "lenet_small"}
GATES = [
    {"gate_granularity": "client"},
    {"eval_gate": "client_train_mean"},
    {"eval_gate": "sample"},
    {"reading": "authors_code"},
    {"keep_ratio": (0.5, 0.1)},
]


def exported(spec: RunSpec, store: Store, folder: Path) -> Record:
    record = execute(spec, store)
    export_models(record, store, folder)
    return record


def test_images(spec: RunSpec, info: dict, k: int) -> tuple[Tensor, Tensor]:
    """Client k's test images, prepared as models.json says, and their labels."""
    dataset = load_data(spec)
    index = assign(spec, dataset).test[k]
    mean, std = (torch.tensor(info["normalisation"][name])[:, None, None] for name in ("mean", "std"))
    return (dataset.x[index] / 255 - mean) / std, dataset.y[index]


test_images.__test__ = False


def network(info: dict, path: Path) -> nn.Module:
    """The network in plain PyTorch."""
    options = dict(info["network"])
    net = models.build(options.pop("name"), tuple(info["input_shape"]), info["num_classes"], seed=1, **options)
    net.load_state_dict(load_file(path))
    return net.eval()


def mixture(info: dict, folder: Path, k: int, x: Tensor) -> Tensor:
    """FedEM's prediction as ``usage`` has it."""
    nets = [network(info, folder / file) for name, file in sorted(info["shared"].items())]
    weights = load_file(folder / f"client_{k}.safetensors")["mixture"]
    return sum(w * net(x).softmax(1) for w, net in zip(weights, nets, strict=True))


@torch.no_grad()
def correct(spec: RunSpec, folder: Path) -> list[int]:
    """Correct predictions of each client; in plain PyTorch, unless the gate of pFedGate reads the batch."""
    info, counts = json.loads((folder / "models.json").read_text(encoding="utf-8")), []
    for entry in info["clients"]:
        k = entry["client"]
        x, y = test_images(spec, info, k)
        if entry["network"]:
            scores = network(info, folder / entry["file"])(x)
        elif spec.method["name"] == "fedem":
            scores = mixture(info, folder, k, x)
        else:
            scores = pfl_core.load_models(folder)[k].predict(x)
        counts.append(int((scores.argmax(1) == y).sum()))
    return counts


def in_record(record: Record) -> list[int]:
    return record.values("correct").iloc[-1].astype(int).tolist()


@pytest.mark.parametrize("name", sorted(methods()))
def test_every_method_exports_what_was_scored(name, spec, store, tmp_path):
    """With batch norm. A client is novel, and others were not sampled yet: they adapt first."""
    made = spec(name, **methods()[name].ci, model=BATCH_NORM, rounds=2, participation=0.4, novel=0.25)
    record = exported(made, store, tmp_path / "models")
    assert correct(made, tmp_path / "models") == in_record(record)
    saved = pfl_core.load_models(tmp_path / "models")
    for model, count in zip(saved, in_record(record), strict=True):
        x, y = test_images(made, saved.info, model.client)
        assert (model.predict(x).argmax(1) == y).sum() == count
        entry = saved.info["clients"][model.client]
        assert (entry["correct"], entry["count"]) == (count, len(y))
        if entry["network"]:
            torch.testing.assert_close(model.network(x), model.predict(x))


@pytest.mark.parametrize("options", GATES, ids=str)
def test_gates_are_exported_in_every_way_of_scoring(options, spec, store, tmp_path):
    made = spec("pfedgate", **{"lr_gate": 0.5} | options, rounds=2)
    record = exported(made, store, tmp_path / "models")
    saved = pfl_core.load_models(tmp_path / "models")
    found = [(m.predict(x).argmax(1) == y).sum() for m in saved for x, y in [test_images(made, saved.info, m.client)]]
    assert found == in_record(record)
    fixed = "gate_granularity" in options or options.get("eval_gate") == "client_train_mean"
    assert all(entry["network"] == fixed for entry in saved.info["clients"])
    assert fixed == ("state dict" in saved.info["usage"])


# ---- where the models come from -------------------------------------------------------------------------------------


def test_models_of_a_stored_run_are_computed_again_and_its_record_stays(spec, store, tmp_path):
    record = execute(spec(rounds=3), store)
    before, computed = {path.name: path.read_bytes() for path in store.root.iterdir()}, []
    export_models(record, store, tmp_path / "models", on_round=computed.append)
    assert computed == [1, 2, 3] and correct(record.spec, tmp_path / "models") == in_record(record)
    assert {path.name: path.read_bytes() for path in store.root.iterdir()} == before


def test_a_kept_state_is_used_and_stays(spec, store, tmp_path):
    record = execute(spec(rounds=3), store, keep_state=True)
    export_models(record, store, tmp_path / "models", on_round=lambda done: pytest.fail("computed again"))
    assert correct(record.spec, tmp_path / "models") == in_record(record)
    assert store.checkpoint(record.key).exists()


def test_models_of_a_stopped_run_are_those_of_its_last_round(spec, store, tmp_path):
    record = execute(spec(rounds=5), store, until=2)
    assert export_models(record, store, tmp_path / "models")["rounds"] == 2
    assert correct(record.spec, tmp_path / "models") == in_record(record)


def test_a_state_of_a_later_round_than_the_record_is_not_exported(spec, store, tmp_path):
    record = execute(spec(rounds=3), store, until=1, keep_state=True)
    execute(spec(rounds=3), store, until=2, record=False, keep_state=True)
    with pytest.raises(ValueError, match="round 2 .* 1"):
        export_models(record, store, tmp_path / "models")


def test_a_record_of_other_data_is_not_exported(spec, store, tmp_path, monkeypatch):
    record = execute(spec(rounds=1), store)
    monkeypatch.setattr("pfl_core.runs.RunSpec.checksums", lambda self: {"blobs": "other"})
    with pytest.raises(ValueError, match=record.key):
        export_models(record, store, tmp_path / "models")
    assert not (tmp_path / "models").exists()


# ---- the folder -----------------------------------------------------------------------------------------------------


def test_a_folder_has_the_models_of_one_run(spec, store, tmp_path):
    one, other = (execute(spec(rounds=1, seed=seed), store) for seed in (0, 1))
    export_models(one, store, tmp_path / "models")
    files = {path.name: path.read_bytes() for path in (tmp_path / "models").iterdir()}
    assert sorted(files) == [*(f"client_{k}.safetensors" for k in range(4)), "models.json", "shared.safetensors"]
    export_models(one, store, tmp_path / "models")
    with pytest.raises(ValueError, match=one.key):
        export_models(other, store, tmp_path / "models")
    assert {path.name: path.read_bytes() for path in (tmp_path / "models").iterdir()} == files
    with pytest.raises(ValueError, match="models.json is a file"):
        check(one.spec, one.key, tmp_path / "models" / "models.json")


@dataclass(frozen=True)
class Voting(FedAvg):
    """Predicts in its own way."""

    def predict(self, fed, state, k, theta_k, x):
        return fed.logits(theta_k, x).relu()


def test_a_method_that_predicts_in_its_own_way_says_how_it_is_saved(spec, store, tmp_path):
    made = spec(f"{__name__}:Voting", rounds=1)
    with pytest.raises(ValueError, match="Voting.client_model .*Voting.predict_exported"):
        check(made, made.key(), tmp_path / "models")


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self, in_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        width = torch.Size(in_shape).numel()
        self.first, self.second, self.head = (nn.Linear(width, n) for n in (width, width, num_classes))
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x.flatten(1)).relu()).relu())


def test_tied_weights(spec, store, tmp_path):
    record = exported(spec("local", model={"name": f"{__name__}:Tied"}, rounds=2), store, tmp_path / "models")
    assert correct(record.spec, tmp_path / "models") == in_record(record)
    state_dict = load_file(tmp_path / "models" / "client_0.safetensors")
    assert torch.equal(state_dict["first.weight"], state_dict["second.weight"])


def test_pretrained_weights_are_not_needed_to_load_models(spec):
    made = spec(model={"name": "resnet18", "pretrained": True}, data={"name": f"{HERE}:blobs", "colours": 3})
    assert describe(made, made.key(), 1)["network"] == {"name": "resnet18", "stem": None, "pretrained": False}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("models.json", None, "no models.json"),
        ("models.json", b"{", "models.json"),
        ("models.json", b"[]", "models.json"),
        ("models.json", b'{"format": 9}', "format 9"),
        ("client_1.safetensors", None, "client_1.safetensors"),
        ("client_1.safetensors", b"nothing", "client_1.safetensors"),
    ],
)
def test_a_damaged_folder_is_named(file, content, message, spec, store, tmp_path):
    exported(spec(rounds=1), store, tmp_path / "models")
    path = tmp_path / "models" / file
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        _ = pfl_core.load_models(tmp_path / "models")[1]


def test_every_flipped_bit_is_noticed(spec, store, tmp_path):
    exported(spec(rounds=1), store, tmp_path / "models")
    stream = random.Random(0)
    for path in sorted((tmp_path / "models").iterdir()):
        content = path.read_bytes()
        for at in stream.sample(range(len(content)), 40):
            path.write_bytes(content[:at] + bytes([content[at] ^ (1 << stream.randrange(8))]) + content[at + 1 :])
            with pytest.raises(ValueError, match=path.name):
                saved = pfl_core.load_models(tmp_path / "models")
                _ = list(saved), saved.shared
        path.write_bytes(content)


def renamed(file: str) -> Callable[[dict], None]:
    """The first client's file has this name, in all places."""

    def change(info: dict) -> None:
        old, info["clients"][0]["file"] = info["clients"][0]["file"], file
        info["files"][file] = info["files"].pop(old)

    return change


FORGED = {
    "clients in another order": (lambda info: info["clients"].reverse(), "clients"),
    "a client that is missing": (lambda info: info["clients"].pop(0), "clients"),
    "a file outside": (renamed("../secret.safetensors"), "secret.safetensors"),
    "an absolute path": (renamed("/secret.safetensors"), "secret.safetensors"),
    "a file without a sum": (lambda info: info["files"].pop("shared.safetensors"), "its models"),
    "another shape": (lambda info: info["shapes"].update({"hidden1.weight": [2, 48]}), "tensors"),
    "another network": (lambda info: info["network"].update(hidden=[7]), "tensors"),
    "a module": (lambda info: info["network"].update(name="subprocess:call"), r"add code=\['subprocess:call'\]"),
    "a method's module": (lambda info: info["method"].update(name="os:system"), r"add code=\['os:system'\]"),
    "no network": (lambda info: info.pop("network"), "cannot be used: 'network'"),
    "no name": (lambda info: info.update(method=[]), "cannot be used"),
    "a shape that is none": (lambda info: info.update(input_shape="abc"), "cannot be used"),
    "no files": (lambda info: info.update(files=None), "cannot be read"),
    "clients of another kind": (lambda info: info.update(clients={"a": 1}), "cannot be read"),
}


@pytest.mark.parametrize("kind", FORGED)
def test_what_models_json_says_is_checked(kind, spec, store, tmp_path):
    """Also with a checksum that fits. Nothing is imported that the caller did not name."""
    exported(spec(rounds=1), store, tmp_path / "models")
    path, (change, message) = tmp_path / "models" / "models.json", FORGED[kind]
    info = json.loads(path.read_bytes())
    change(info)
    del info["sha256"]
    path.write_text(json.dumps(info | {"sha256": checksum(info)}), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        pfl_core.load_models(tmp_path / "models")


def test_code_of_the_caller_is_named(spec, store, tmp_path):
    made = spec("local", model={"name": f"{__name__}:Tied"}, rounds=1)
    exported(made, store, tmp_path / "models")
    with pytest.raises(ValueError, match="trust"):
        pfl_core.load_models(tmp_path / "models")
    assert len(pfl_core.load_models(tmp_path / "models", code=[made.model["name"]])) == 4


@dataclass(frozen=True)
class Misnamed(FedAvg):
    """Names a model like a client's."""

    def shared_models(self, fed, state):
        return {"client_0": state.shared}


def test_a_shared_model_does_not_take_the_name_of_a_clients(spec, store, tmp_path):
    with pytest.raises(ValueError, match="Misnamed.shared_models: 'client_0'"):
        exported(spec(f"{__name__}:Misnamed", rounds=1), store, tmp_path / "models")
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("after", [0, 3, 5])
def test_an_export_that_stops_half_way_leaves_the_earlier_one(after, spec, store, tmp_path, monkeypatch):
    """Of another round of the same run: one or the other, never both."""
    folder, made = tmp_path / "models", spec(rounds=2)
    export_models(execute(made, store, until=1), store, folder)
    before, written = {path.name: path.read_bytes() for path in folder.iterdir()}, []
    longer = execute(made, store)

    def write(path: Path, content: bytes) -> None:
        if len(written) == after:
            raise OSError("the disk is full")
        written.extend([path] if path.parent != tmp_path else [])  # not the probe
        atomic_write(path, content)

    monkeypatch.setattr("pfl_core.exports.atomic_write", write)
    with pytest.raises(OSError, match="full"):
        export_models(longer, store, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    monkeypatch.undo()
    export_models(longer, store, folder)
    assert pfl_core.load_models(folder).info["rounds"] == 2 and sorted(before) == sorted(
        p.name for p in folder.iterdir()
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models", "runs"], "nothing is left behind"


def test_a_folder_with_other_files_is_refused_and_an_empty_one_is_used(spec, store, tmp_path):
    record = execute(spec(rounds=1), store)
    (tmp_path / "empty").mkdir()
    export_models(record, store, tmp_path / "empty")
    (tmp_path / "empty" / "notes.txt").touch()
    with pytest.raises(ValueError, match="notes.txt"):
        check(record.spec, record.key, tmp_path / "empty")


@pytest.mark.parametrize("name", ["digits", "synthetic_3200"])
def test_samples_are_prepared_as_for_training(name, spec, store, tmp_path):
    """Features stay as they are."""
    data = {"name": name} | ({"normalise": "half"} if name == "digits" else {})
    made = spec(rounds=1, data=data, partition={"name": "iid"}, train=Training(lr=0.1), clients=5)
    exported(made, store, tmp_path / "models")
    dataset, saved = load_data(made), pfl_core.load_models(tmp_path / "models")
    assert torch.equal(saved.prepare(dataset.x[:9]), dataset.prepare(dataset.x[:9]))
    assert saved[0].predict(saved.prepare(dataset.x[:9]).float()).shape == (9, dataset.num_classes)
    assert (saved.info["normalisation"] is None) == (name == "synthetic_3200")

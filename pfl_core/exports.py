"""Trained models as files: a state dict for each client in safetensors, and ``models.json`` beside them.

A folder has ``client_K.safetensors`` for each client K, the models that belong to no single client
(``shared.safetensors``; FedEM: ``component_M.safetensors``), and ``models.json``. It describes them: method, network,
data, normalisation, each client's correct test predictions, the shapes of the network's tensors, and checksums, which
are verified when models are loaded. Each model has all entries that ``load_state_dict`` expects, with batch-norm
statistics. Batch counters (``num_batches_tracked``) are 0.

Models are exported as they are scored: after the aggregation of the last round, and after fine-tuning for evaluation,
for methods that do so. Their correct predictions are the metric ``correct`` of the run's record.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from pfl_core import models
from pfl_core.algorithm import Algorithm, ClientModel, State, build
from pfl_core.data.dataset import standardised
from pfl_core.federation import Federation, Split
from pfl_core.federation.federation import EVAL_BATCH
from pfl_core.files import atomic_write, checksum, parsed, remove

INFO = "models.json"
FORMAT = 2  # of the folder; a reader refuses others. Format 1 had no checksums
NAME = r"[A-Za-z0-9_]+"  # of a model that belongs to no single client
FILE = re.compile(rf"{NAME}\.safetensors")  # in the folder itself


def read_info(folder: Path) -> dict[str, Any]:
    """The content of ``models.json``. Raises ValueError if the folder has none, or one that cannot be read."""
    path = folder / INFO
    try:
        info = parsed(path.read_bytes())
        if (number := info["format"]) == FORMAT:
            _check_info(info)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder} has no {INFO}; give a folder written by `pfl run ... --save-models`") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({error}); export the models again") from None
    if number != FORMAT:
        raise ValueError(f"{path} has format {number}, this version reads {FORMAT}; use the version that wrote it")
    return info


def _check_info(info: dict[str, Any]) -> None:
    """Raise ValueError, LookupError, TypeError or AttributeError unless ``models.json`` is as it was written."""
    if info["sha256"] != checksum({name: part for name, part in info.items() if name != "sha256"}):
        raise ValueError("its checksum does not match")
    if [entry["client"] for entry in info["clients"]] != list(range(len(info["clients"]))):
        raise ValueError("its clients are not 0, 1, 2, ...")
    if {*info["files"]} != {*(entry["file"] for entry in info["clients"]), *info["shared"].values()}:
        raise ValueError("its files are not those of its models")
    if wrong := [file for file in info["files"] if not FILE.fullmatch(file)]:
        raise ValueError(f"{wrong[0]!r} is not the name of a file beside it")


def check(folder: Path, key: str, algorithm: Algorithm) -> None:
    """Raise ValueError if the models of run ``key`` cannot be written to this folder, or its method has no export."""
    cls = type(algorithm)
    if cls.predict is not Algorithm.predict and cls.predict_exported is Algorithm.predict_exported:
        raise ValueError(
            f"{cls.__name__} predicts in its own way; to save its models, define {cls.__name__}.client_model and "
            f"{cls.__name__}.predict_exported"
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder for the models")
    if os.path.ismount(folder):
        raise ValueError(f"{folder} is a mount point, which cannot be replaced; give a folder in it")
    earlier = read_info(folder) if (folder / INFO).exists() else None
    if earlier and earlier["key"] != key:
        raise ValueError(f"{folder} has the models of run {earlier['key']}; give another folder")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if others := names - ({INFO, *earlier["files"]} if earlier else set()):
        raise ValueError(f"{folder} has other files, such as {min(others)}; give a new folder for the models")
    probe = _beside(folder.resolve())
    atomic_write(probe, b"")
    remove(probe)


def save_models(
    folder: Path, algorithm: Algorithm, fed: Federation, state: State, t: int, info: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the models with which all clients are evaluated after round t (from 0); returns ``models.json``.

    ``state``: with clients adapted that never took part. ``info``: what ``models.json`` says of the run (see
    ``runs.export``). All files are written to a new folder, which then takes the place of an earlier export of this
    run: a folder has the models of one round. Raises as ``check``, and OSError if a file cannot be written.
    """
    check(folder, info["key"], algorithm)
    folder = folder.resolve()
    staging, earlier = _beside(folder), _beside(folder)
    try:
        content = _write_models(staging, algorithm, fed, state, t, info)
        if folder.exists():
            os.rename(folder, earlier)
        os.rename(staging, folder)
    except OSError as error:
        if earlier.exists():
            os.rename(earlier, folder)
        raise OSError(f"the models cannot be written to {folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    if earlier.exists():
        for name in (INFO, *(read_info(earlier)["files"] if (earlier / INFO).exists() else ())):
            remove(earlier / name)
        with suppress(OSError):  # somebody else has put a file there
            earlier.rmdir()
    return content


def _beside(folder: Path) -> Path:
    """A new name in the same folder, so that it can be renamed at once."""
    return folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.part")


def _write_models(
    folder: Path, algorithm: Algorithm, fed: Federation, state: State, t: int, info: Mapping[str, Any]
) -> dict[str, Any]:
    net, key, sums = _network(info), info["key"], {}
    shapes = {name: list(tensor.shape) for name, tensor in net.state_dict().items()}
    shared = algorithm.shared_models(fed, state)
    clients: list[dict[str, Any]] = []
    for name, theta in shared.items():
        if not re.fullmatch(NAME, name) or re.fullmatch("client_[0-9]+", name):
            raise ValueError(f"{type(algorithm).__name__}.shared_models: {name!r} cannot be the name of a file")
        sums[f"{name}.safetensors"] = _write(folder / f"{name}.safetensors", _state_dict(net, fed, theta), f"run {key}")
    for rows in fed.chunks(torch.arange(fed.num_clients)):
        chunk = torch.arange(fed.num_clients)[rows]
        theta = algorithm.evaluation_models(fed, state, chunk, t)
        for k, theta_k in zip(chunk.tolist(), theta, strict=True):
            model = algorithm.client_model(fed, state, k, theta_k)
            tensors = dict(model.tensors) if model.theta is None else _state_dict(net, fed, model.theta)
            file = f"client_{k}.safetensors"
            sums[file] = _write(folder / file, tensors, f"run {key}, client {k}")
            clients.append({"client": k, "file": file, "network": model.theta is not None})
            clients[-1] |= _score(algorithm, fed, k, model, shared)
    content = {
        "format": FORMAT,
        **info,
        "scored": "after the aggregation of the last round, as the metric `correct` of the record",
        "usage": algorithm.usage,
        "shapes": shapes,
        "shared": {name: f"{name}.safetensors" for name in shared},
        "clients": clients,
        "files": sums,
    }
    content = json.loads(json.dumps(content))  # a checksum is of what is read
    content["sha256"] = checksum(content)
    atomic_write(folder / INFO, json.dumps(content, indent=1).encode() + b"\n")
    return content


@torch.no_grad()
def _score(algorithm: Algorithm, fed: Federation, k: int, model: ClientModel, shared: Mapping[str, Tensor]) -> dict:
    """Correct predictions and number of the client's test samples."""
    x, y = fed.splits["test"].client(k)
    correct = 0
    for part, labels in zip(x.split(EVAL_BATCH), y.split(EVAL_BATCH), strict=True):
        correct += int((algorithm.predict_exported(fed, k, model, shared, part).argmax(1) == labels).sum())
    return {"correct": correct, "count": len(y)}


def _network(info: Mapping[str, Any]) -> nn.Module:
    """The network that ``info`` describes, newly initialised."""
    network = dict(info["network"])
    return models.build(network.pop("name"), tuple(info["input_shape"]), info["num_classes"], info["seed"], **network)


def _state_dict(net: nn.Module, fed: Federation, theta: Tensor) -> dict[str, Tensor]:
    """The state dict of ``net`` with the weights and statistics theta [e]."""
    net.load_state_dict(fed.layout.unflatten(theta), strict=False)  # without batch counters, which stay 0
    return net.state_dict()


def _write(path: Path, tensors: Mapping[str, Tensor], of: str) -> str:
    """Write a file and return its SHA-256."""
    # copies: safetensors refuses tensors that share memory
    own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    content = save(own, {"of": of})  # one entry: safetensors writes several in random order
    atomic_write(path, content)
    return hashlib.sha256(content).hexdigest()


def load_models(folder: str | Path, code: Collection[str] = ()) -> SavedModels:
    """The models that ``pfl run ... --save-models`` or ``pfl runs export --models`` wrote to a folder.

    Each file is read when its client is requested. ``code``: networks and methods from outside the package
    (``module:name``) that the folder may name; no other module is imported, because that runs its code. Raises
    ValueError for a folder without ``models.json``, and for files that changed or do not fit the network.

    >>> models = load_models("models")          # doctest: +SKIP
    >>> models[0].network                       # client 0: an nn.Module in evaluation mode
    >>> models[0].predict(models.prepare(x))    # class scores [B, C] of images x [B, c, h, w] uint8
    """
    folder = Path(folder)
    saved = SavedModels(folder, read_info(folder))
    try:
        for name in (saved.info["network"]["name"], saved.info["method"]["name"]):
            if ":" in name and name not in code:
                raise ValueError(f"it needs {name}, code of another package; if you trust it, add code=[{name!r}]")
        if saved._shapes != {name: tuple(shape) for name, shape in saved.info["shapes"].items()}:
            raise ValueError(f"network {saved.info['network']['name']} has other tensors here; export the models again")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / INFO} cannot be used: {error}") from None
    return saved


@dataclass(frozen=True, eq=False)
class SavedModels(Sequence["SavedModel"]):
    """The saved models of all clients: ``models[k]`` is that of client k, ``info`` the content of ``models.json``."""

    folder: Path
    info: dict[str, Any]

    def __len__(self) -> int:
        return len(self.info["clients"])

    def __getitem__(self, k: int) -> SavedModel:  # type: ignore[override]  # no slices
        """The model of client k, from 0. Raises IndexError for an unknown client, ValueError for a damaged file."""
        entry = self.info["clients"][k]
        tensors = self._read(entry["file"], entry["network"])
        model = ClientModel(self._fed.layout.flatten(tensors)) if entry["network"] else ClientModel(tensors=tensors)
        return SavedModel(entry["client"], tensors, model, self)

    def __iter__(self) -> Iterator[SavedModel]:
        return (self[k] for k in range(len(self)))

    @cached_property
    def shared(self) -> dict[str, dict[str, Tensor]]:
        """The state dicts of the models that belong to no single client, by name."""
        return {name: self._read(file, True) for name, file in self.info["shared"].items()}

    def network(self, state_dict: Mapping[str, Tensor]) -> nn.Module:
        """The network with these weights, in evaluation mode."""
        net = _network(self.info)
        net.load_state_dict(state_dict)
        return net.eval()

    def prepare(self, x: Tensor) -> Tensor:
        """Images x [B, c, h, w] uint8 as the networks were trained on them: (x / 255 - mean) / std, float32.

        Features as well: (x - mean) / std where the data set has these, else unchanged.
        """
        norm = self.info["normalisation"]
        return x if norm is None else standardised(x, norm["mean"], norm["std"])

    @cached_property
    def _fed(self) -> Federation:
        """The network and its layout, and clients without data."""
        nothing = torch.zeros(0, *self.info["input_shape"]), torch.zeros(0, dtype=torch.int64)
        splits = {"train": Split.of([nothing] * len(self))}
        return Federation(_network(self.info), splits, seed=self.info["seed"], rounds=self.info["rounds"])

    @cached_property
    def _algorithm(self) -> Algorithm:
        method = dict(self.info["method"])
        return build(method.pop("name"), method)

    @cached_property
    def _shared_rows(self) -> dict[str, Tensor]:
        return {name: self._fed.layout.flatten(tensors) for name, tensors in self.shared.items()}

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the network's state dict."""
        return {name: tuple(tensor.shape) for name, tensor in _network(self.info).state_dict().items()}

    def _read(self, file: str, is_network: bool) -> dict[str, Tensor]:
        try:
            content = (self.folder / file).read_bytes()
            if hashlib.sha256(content).hexdigest() != self.info["files"][file]:
                raise ValueError("its checksum does not match")
            tensors = load(content)
            if is_network and self._shapes != {name: tuple(tensor.shape) for name, tensor in tensors.items()}:
                raise ValueError("its tensors are not those of the network")
        except (OSError, ValueError, SafetensorError) as error:
            raise ValueError(f"{self.folder / file} cannot be read ({error}); export the models again") from None
        return tensors


@dataclass(frozen=True, eq=False)
class SavedModel:
    """The saved model of one client."""

    client: int
    tensors: dict[str, Tensor]  # the client's file: a state dict, unless the method uses it in another way (``usage``)
    _model: ClientModel
    _models: SavedModels

    @property
    def network(self) -> nn.Module:
        """A new network with the client's weights, in evaluation mode.

        Raises ValueError if the client is not a single network.
        """
        if self._model.theta is None:
            raise ValueError(f"client {self.client} is not a single network: {self._models.info['usage']}")
        return self._models.network(self.tensors)

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Class scores [B, C] of prepared samples x [B, ...], by the method's own rule.

        The class with the highest score is predicted. Samples are scored in batches of 256, as in a run.
        """
        models, rule = self._models, self._models._algorithm.predict_exported
        shared = models._shared_rows
        return torch.cat([rule(models._fed, self.client, self._model, shared, part) for part in x.split(EVAL_BATCH)])

"""Builds the federation of a spec: loads the data, assigns samples to clients, builds the network."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from pfl_core import data, models
from pfl_core.algorithm import Algorithm
from pfl_core.data import Dataset
from pfl_core.federation import Federation, Split
from pfl_core.partition import Partition, partition
from pfl_core.partition.from_csv import count_clients
from pfl_core.runs.spec import RunSpec, check_device, options
from pfl_core.seeding import generator

SPLITS = ("train", "val", "test")


@lru_cache(maxsize=2)
def _load(name: str, settings: str, checksum: str) -> Dataset:
    return data.load(name, **json.loads(settings))


def load_data(spec: RunSpec) -> Dataset:
    """The spec's data set. The two last used data sets stay in memory."""
    name, settings = spec.data["name"], options(spec.data, "corrupt", "corrupt_severity")
    return _load(name, json.dumps(settings, sort_keys=True), data.checksum(name, **settings))


def assign(spec: RunSpec, dataset: Dataset) -> Partition:
    """The samples of each client. The seed is the partition's ``seed`` option if it has one, else the run's seed."""
    settings = options(spec.partition)
    if ":" in spec.partition["name"]:  # a user's function gets a copy: the data set stays in memory for later runs
        dataset = copy.deepcopy(dataset)
    return partition(spec.partition["name"], dataset, spec.clients, settings.pop("seed", spec.seed), **settings)


def with_all_clients(spec: RunSpec) -> RunSpec:
    """The spec with as many clients as its partition has by itself: one for each source, or for each name in a file."""
    if spec.partition["name"] == "csv":
        return replace(spec, clients=count_clients(spec.partition["file"]))
    if spec.partition["name"] == "by_source":
        order = spec.partition.get("order")
        num_clients = int(load_data(spec).source.max()) + 1 if order is None else len(order)
        if num_clients == 1 and order is None:
            raise ValueError(f"by_source: {spec.data['name']} has one source; choose another partition, e.g. iid")
        return replace(spec, clients=num_clients)
    return spec


def build(spec: RunSpec, threads: int = 1) -> tuple[Algorithm, Federation, Partition]:
    """The algorithm, the federation and the partition of a run. ``threads``: see ``Federation``.

    Raises ValueError if data, partition and network are not compatible.
    """
    check_device(spec.device)
    dataset = load_data(spec)
    assigned = assign(spec, dataset)
    # samples of every client, for each split that is not empty
    splits = {
        name: Split.of([(_prepare(spec, dataset, name, k, index), dataset.y[index]) for k, index in enumerate(parts)])
        for name, parts in ((name, getattr(assigned, name)) for name in SPLITS)
        if any(len(index) for index in parts)
    }
    shape = tuple(splits["train"].x.shape[1:])
    net = models.build(spec.model["name"], shape, dataset.num_classes, spec.seed, **options(spec.model))
    models.check_outputs(spec.model["name"], net, shape, dataset.num_classes)
    fed = Federation(
        net, splits, seed=spec.seed, rounds=spec.rounds, train=spec.train, device=spec.device, threads=threads
    )
    return spec.build_method(), fed, assigned


def run_warnings(spec: RunSpec, algorithm: Algorithm, fed: Federation) -> list[str]:
    """Settings with which a run does nothing, or measures little: one line each, for the user."""
    texts = [fed.small_batches(), fed.traced.warning, _uneven_columns(fed.splits["train"].x)]
    if ":" in (name := spec.model["name"]):
        frozen = sum(p.numel() for p in fed.network.parameters()) - fed.num_params
        texts.append(f"network {name}: {fed.num_params} trainable parameters, {frozen} frozen; head: {fed.layout.head}")
    texts += [
        f"training: {name}=0, so clients train only if the method has a value of its own"
        for name in ("lr", "epochs", "clip_norm")
        if getattr(spec.train, name) == 0
    ]
    if spec.train.precision == "bf16" and not has_bf16(spec.device_kind):
        texts.append("training: this processor has no bfloat16 arithmetic, so precision=bf16 can be 30 times slower")
    if spec.novel and not len(spec.schedule.novel_clients(fed.num_clients, spec.seed)):
        texts.append(f"novel={spec.novel:g}: none of {fed.num_clients} clients, so nothing changes; give more")
    if fed.num_clients > 1 and len(spec.schedule.clients(fed.num_clients, spec.seed, 0)) == 1:
        texts.append(
            f"participation={spec.participation}: 1 of {fed.num_clients} clients takes part in a round, so nothing is "
            "averaged, and scores before aggregation are those of one client; give a larger participation"
        )
    texts += [text for method in (algorithm, *algorithm.inner_algorithms) for text in method.warnings(fed)]
    return [text for text in texts if text]


def has_bf16(device: str) -> bool:
    """Whether the device computes in bfloat16, rather than imitate it."""
    return device != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _uneven_columns(x: Tensor) -> str:
    """A warning if the columns of features x [n, f] differ in size by a factor of 100 or more."""
    if x.ndim != 2 or len(x) < 2 or not len(spreads := (std := x.std(dim=0))[std > 0]):
        return ""
    ratio = float(spreads.max() / spreads.min())
    if ratio < 100:
        return ""
    return f"data: columns differ by a factor of {ratio:.3g}, so the largest decide; give --set data.normalise=standard"


def _prepare(spec: RunSpec, dataset: Dataset, split: str, k: int, index: Tensor) -> Tensor:
    """Client k's preprocessed samples of one split. With ``corrupt``, clients get in turn the corruptions that suit."""
    x = dataset.x[index]
    if spec.data.get("corrupt"):
        kinds = [kind for kind in data.CORRUPTIONS if kind != "saturate" or x.shape[1] == 3]
        stream = generator(spec.seed, "corrupt", split, k)
        x = data.corrupt(x, kinds[k % len(kinds)], spec.data.get("corrupt_severity", 3), stream)
    return dataset.prepare(x)

"""Partitions by the indices that they assign; networks by their initial weights and one gradient."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pfl_core import models
from pfl_core.data import Dataset
from pfl_core.partition import PARTITIONS, partition
from tests.golden.digest import Numbers, checksum, digest
from tests.golden.methods import filled, gauss, stored

Part = Mapping[str, Any]  # {"name": ..., its options}


def named(part: Part) -> tuple[str, dict[str, Any]]:
    return part["name"], {k: v for k, v in part.items() if k != "name"}


# ---- partitions -----------------------------------------------------------------------------------------------------

SEED, TRAIN, PER_TEST = 3, 25_000, 10_000
OWN: tuple[tuple[Part, int], ...] = (  # what no record has; and the number of clients
    ({"name": "iid"}, 7),
    ({"name": "iid", "val": 0.1, "pool": "joined", "test": 0.3}, 7),
    ({"name": "iid", "train_per_class": 20, "test_per_class": 10}, 3),
    ({"name": "shards"}, 10),
    ({"name": "shards", "classes_per_client": 3, "allow_duplicate_classes": True, "pool": "joined"}, 10),
    (
        {
            "name": "shards",
            **{"classes_per_client": 2, "train_per_class": 50, "test_per_class": 100, "allow_duplicate_classes": True},
        },
        10,
    ),
    ({"name": "dirichlet"}, 10),
    ({"name": "dirichlet", "alpha": 0.3, "min_size": 50, "val": 0.2, "train_per_class": 200, "test_per_class": 30}, 5),
    ({"name": "dirichlet", "variant": "fedem"}, 10),
    ({"name": "dirichlet", "variant": "fedem", "groups": 4, "data_fraction": 0.1, "min_size": 30}, 20),
    ({"name": "dirichlet", "variant": "per_class"}, 6),
    ({"name": "paired_dirichlet"}, 20),
    ({"name": "paired_dirichlet", "alpha": 1.0, "split_seed": 5}, 6),
    ({"name": "by_source", "order": [1, 0], "train_per_class": 100, "test_per_class": 50}, 2),
    ({"name": "by_source", "pool": "joined", "test": 0.5}, 2),
    ({"name": "by_class", "order": "shuffled", "train_per_class": 200, "test_per_class": 100}, 5),
    ({"name": "by_class", "clients_per_group": 3, "classes_per_group": 1, "val": 0.1}, 12),
    ({"name": "pathological", "shards": 3, "data_fraction": 0.9}, 10),
    ({"name": "paired_sample", "images": 50, "split_seed": 5}, 6),
    ({"name": "label_groups"}, 8),
    ({"name": "csv", "file": "samples by number modulo 7", "val": 0.1}, 7),
)


@cache
def labels() -> Dataset:
    """Ten classes of slightly different sizes in two sources, without pictures: partitions look at labels alone."""
    stream, n = torch.Generator().manual_seed(0), TRAIN + PER_TEST
    y, source = (torch.randint(0, high, (n,), generator=stream) for high in (10, 2))
    return Dataset("labels", torch.zeros(n, 1), y, source, torch.arange(n) >= TRAIN, 10, tuple("0123456789"))


def partitions() -> tuple[str, ...]:
    cases = [*stored("partition"), *OWN, *(({"name": name}, 0) for name in PARTITIONS if name not in _names(OWN))]
    return tuple(dict.fromkeys(f"{clients} clients {json.dumps(part, sort_keys=True)}" for part, clients in cases))


def _names(cases: tuple[tuple[Part, int], ...]) -> set[str]:
    return {part["name"] for part, _ in cases}


def partition_numbers(text: str) -> Numbers:
    clients, _, part = text.partition(" clients ")
    name, options = named(json.loads(part))
    if name == "csv":
        return _with_file(lambda file: _dealt(name, int(clients), options | {"file": file}))
    return _dealt(name, int(clients), options)


def _with_file(numbers: Callable[[str], Numbers]) -> Numbers:
    """Numbers of a partition whose file gives sample i to client i mod 7."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "clients.csv")
        lines = ["index,client", *(f"{i},{i % 7}" for i in range(TRAIN + PER_TEST))]
        file.write_text("\n".join(lines), encoding="utf-8")
        return numbers(str(file))


def _dealt(name: str, clients: int, options: dict[str, Any]) -> Numbers:
    dealt = partition(name, labels(), clients, options.pop("seed", SEED), **options)
    return {split: checksum(*map(_bytes, getattr(dealt, split))) for split in ("train", "val", "test")} | {
        "clients, dropped": [dealt.num_clients, dealt.dropped]
    }


def partition_component(text: str) -> str:
    return f"partition {json.loads(text.partition(' clients ')[2])['name']}"


def _bytes(x: Tensor) -> bytes:
    return x.contiguous().numpy().tobytes()


# ---- networks -------------------------------------------------------------------------------------------------------

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
SHAPES = {
    **{"fc_pews": (5,), "linear": (6,), "mlp": (1, 8, 8), "resnet18": (3, 16, 16)},
    **{"lenet_star": GREY, "leaf_cnn": GREY},
}
MORE: tuple[tuple[Part, tuple[int, ...]], ...] = (
    ({"name": "cnn_small"}, (1, 8, 8)),
    ({"name": "mlp", "hidden": [64, 32]}, (6,)),
    ({"name": "resnet18"}, (3, 48, 48)),
    ({"name": "resnet18", "stem": "imagenet"}, (3, 32, 32)),
    ({"name": "resnet18", "stem": "cifar"}, (3, 8, 8)),
    ({"name": "lenet_small"}, (1, 8, 8)),
)


def networks() -> tuple[str, ...]:
    """Every registered network, those of records, and their options."""
    plain = [{"name": name} for name in models.MODELS] + [part for part, _ in stored("model")]
    cases = [(part, SHAPES.get(part["name"], COLOUR)) for part in plain] + list(MORE)
    return tuple(dict.fromkeys(f"{'x'.join(map(str, s))} {json.dumps(part, sort_keys=True)}" for part, s in cases))


def network_numbers(text: str) -> Numbers:
    """Initial weights in single precision, where processors draw the last bit differently; a gradient in double.

    The gradient is taken at other weights, drawn in double precision, or their last bits would be in it.
    """
    sizes, _, part = text.partition(" ")
    shape, (name, options) = tuple(map(int, sizes.split("x"))), named(json.loads(part))
    net = models.build(name, shape, 4, SEED, **options)
    found = {"layers": checksum(repr(net).encode())} | digest(_joined(net.parameters()), "start")
    net = filled(net)
    loss = cross_entropy(net(gauss(3, *shape, seed=0)), torch.arange(3))
    slopes = torch.autograd.grad(loss, list(net.parameters()))
    return found | digest({"loss": loss, "gradient": _joined(slopes)})


def _joined(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([x.reshape(-1) for x in tensors])


def network_component(text: str) -> str:
    return f"network {json.loads(text.partition(' ')[2])['name']}"

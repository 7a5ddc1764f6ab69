"""Label shift with a fixed number of classes per client (FedSelect and most of its baselines)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pfl_core.options import Part, PositiveInt
from pfl_core.partition.base import Partition, assemble, grouped, ordered, per_class_limits, pools
from pfl_core.seeding import generator, shuffled

if TYPE_CHECKING:
    from pfl_core.data import Dataset


def shards(
    data: "Dataset",
    num_clients: int,
    seed: int,
    *,
    classes_per_client: int = 2,
    train_per_class: PositiveInt | None = None,
    test_per_class: PositiveInt | None = None,
    allow_duplicate_classes: bool = False,
    pool: str = "official",
    val: Part = 0.0,
    test: Part = 0.2,
    val_per_class: PositiveInt | None = None,
) -> Partition:
    """Each client has s distinct classes, each class has s N / C clients.

    Distinct classes and equal numbers are not in the paper. In the authors' code, a client may get two shards of one
    class; ``allow_duplicate_classes`` selects this.

    A class is shuffled and cut into equal shards, one for each of its clients. A client uses the first
    ``train_per_class`` (``test_per_class``) images of its shard, or all (None), so that smaller numbers give subsets.
    ``val_per_class`` (not in the paper): the images that follow those for training are used for validation. Training
    does not change, because no client trains on them.

    Raises ValueError if s N / C is not an integer, a shard has too few images, or both ``val`` and ``val_per_class``
    are given.
    """
    if val_per_class is not None and (val or train_per_class is None):
        raise ValueError(
            f"shards: val_per_class={val_per_class} counts the images after those of train_per_class; give both, no val"
        )
    holders = _holders(data.num_classes, num_clients, classes_per_client)
    assign_classes = _assign_any if allow_duplicate_classes else _assign_distinct
    stream = generator(seed, "partition", "shards")
    classes_of = assign_classes(data.num_classes, num_clients, classes_per_client, holders, stream)
    per_class = per_class_limits(pool, train_per_class, test_per_class)

    def cut(indices: Tensor, name: str, start: int, stop: int | None) -> Sequence[Tensor]:
        """Images ``start:stop`` of the shards of each client."""
        mixed = shuffled(indices, seed, "partition", "shards", name)
        classes = grouped(mixed, data.y, data.num_classes)
        _check_enough([len(c) for c in classes], holders, stop, name)
        left = [list(members.tensor_split(holders)) for members in classes]  # shards not yet assigned, by class
        return [torch.cat([left[c].pop(0)[start:stop] for c in classes_k]) for classes_k in classes_of]

    def assign(indices: Tensor, name: str) -> Sequence[Tensor]:
        return cut(indices, name, 0, per_class[name])

    samples = pools(data, pool)
    part = assemble(data, seed, samples, assign, val, test)
    if val_per_class is None or train_per_class is None:
        return part
    unused = cut(samples["train"], "train", train_per_class, train_per_class + val_per_class)
    return replace(part, val=ordered(unused))


def _holders(num_classes: int, num_clients: int, classes_per_client: int) -> int:
    """Number of clients of each class, s N / C."""
    if not 1 <= classes_per_client <= num_classes:
        raise ValueError(
            f"shards: classes_per_client={classes_per_client} is outside 1..{num_classes}, the number of classes"
        )
    holders, rest = divmod(classes_per_client * num_clients, num_classes)
    if rest:
        raise ValueError(
            f"shards: {num_clients} clients x {classes_per_client} classes do not divide evenly over the {num_classes} "
            f"classes; choose them so that their product is a multiple of {num_classes}"
        )
    return holders


def _check_enough(sizes: list[int], holders: int, required: int | None, name: str) -> None:
    """Raise ValueError if a shard of a class has fewer than ``required`` images (None: fewer than one)."""
    for c, size in enumerate(sizes):
        if size // holders < (required or 1):
            raise ValueError(
                f"shards: class {c} has {size} {name} images for its {holders} clients, so at most {size // holders} "
                f"each, not {required or 1}"
            )


def _assign_distinct(num_classes: int, num_clients: int, s: int, holders: int, rng: torch.Generator) -> list[list[int]]:
    """s distinct classes for each client, drawn client by client with probabilities proportional to remaining shards.

    A class with as many remaining shards as remaining clients must go to each of them. These classes are taken first,
    so that all shards are assigned at the end.
    """
    left = torch.full((num_classes,), holders)  # remaining shards of each class
    classes_of: list[list[int]] = [[] for _ in range(num_clients)]
    for served, k in enumerate(torch.randperm(num_clients, generator=rng).tolist()):
        forced = left == num_clients - served
        classes = torch.where(forced)[0].tolist()
        if len(classes) < s:
            weight = torch.where(forced, 0, left).double()
            classes += torch.multinomial(weight, s - len(classes), generator=rng).tolist()
        left[classes] -= 1
        classes_of[k] = classes
    return classes_of


def _assign_any(num_classes: int, num_clients: int, s: int, holders: int, rng: torch.Generator) -> list[list[int]]:
    """s random shards for each client; classes may repeat (the authors' code)."""
    shards = torch.arange(num_classes).repeat(holders)  # the class of each shard
    return shards[torch.randperm(len(shards), generator=rng)].reshape(num_clients, s).tolist()

"""Label shift with a fixed number of classes on each client (FedSelect and most of its baselines)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pfl_core.partition.base import Partition, assemble, counts, grouped, ordered, pools, shuffled
from pfl_core.seeding import generator

if TYPE_CHECKING:
    from pfl_core.data import Dataset


def shards(
    data: "Dataset",
    num_clients: int,
    seed: int,
    *,
    classes_per_client: int = 2,
    train_per_class: int | None = None,
    test_per_class: int | None = None,
    allow_duplicate_classes: bool = False,
    pool: str = "official",
    val: float = 0.0,
    test: float = 0.2,
    val_per_class: int | None = None,
) -> Partition:
    """Every client has s distinct classes, every class has s N / C clients (fedselect.md 8, 'Our resolutions').

    A class is shuffled and cut into even shards, one for each of its clients; of its shard a client keeps the first
    ``train_per_class`` (``test_per_class``) images, None keeps all. So a smaller count gives a subset of a larger one.
    ``val_per_class``: so many images of its shard behind those for training are for validation (ours): images that no
    client has, so that training is the same with and without them.
    ``allow_duplicate_classes`` deals the shards as the authors' code does: a client may get two of one class.
    Raises ValueError if s N / C is no whole number, a shard holds fewer images than asked for, or validation images are
    asked for twice.
    """
    if val_per_class is not None and (val or train_per_class is None or val_per_class < 1):
        raise ValueError(
            f"shards: val_per_class={val_per_class} counts images behind those of train_per_class: give both, at "
            "least 1, and no val"
        )
    holders = _holders(data.num_classes, num_clients, classes_per_client)
    hand = _deal_any if allow_duplicate_classes else _deal_distinct
    hands = hand(data.num_classes, num_clients, classes_per_client, holders, generator(seed, "partition", "shards"))
    per_class = counts(pool, train_per_class, test_per_class)

    def cut(indices: Tensor, name: str, start: int, stop: int | None) -> Sequence[Tensor]:
        mixed = shuffled(indices, seed, "partition", "shards", name)
        classes = grouped(mixed, data.y, data.num_classes)
        _check_enough([len(c) for c in classes], holders, stop, name)
        piles = [list(members.tensor_split(holders)) for members in classes]
        return [torch.cat([piles[c].pop(0)[start:stop] for c in hand_k]) for hand_k in hands]

    def assign(indices: Tensor, name: str) -> Sequence[Tensor]:
        return cut(indices, name, 0, per_class[name])

    samples = pools(data, pool)
    made = assemble(data, seed, samples, assign, val, test)
    if val_per_class is None:
        return made
    unused = cut(samples["train"], "train", train_per_class, train_per_class + val_per_class)
    return replace(made, val=ordered(unused))


def _holders(num_classes: int, num_clients: int, classes_per_client: int) -> int:
    """Clients of each class, s N / C."""
    if not 1 <= classes_per_client <= num_classes:
        raise ValueError(f"shards: classes_per_client={classes_per_client} is outside 1..{num_classes}, all classes")
    holders, rest = divmod(classes_per_client * num_clients, num_classes)
    if rest:
        raise ValueError(
            f"shards: {num_clients} clients x {classes_per_client} classes do not divide evenly over the {num_classes} "
            f"classes; choose them so that their product is a multiple of {num_classes}"
        )
    return holders


def _check_enough(sizes: list[int], holders: int, wanted: int | None, name: str) -> None:
    for c, size in enumerate(sizes):
        if size // holders < (wanted or 1):
            raise ValueError(
                f"shards: class {c} has {size} {name} images for its {holders} clients, so at most {size // holders} "
                f"each and not {wanted or 1}"
            )


def _deal_distinct(num_classes: int, num_clients: int, s: int, holders: int, rng: torch.Generator) -> list[list[int]]:
    """Client by client, s distinct classes, a class the likelier the more of its shards are left.

    A class with as many shards as there are clients still to serve must be taken by each of them; taking those first,
    the deal always comes out even.
    """
    left = torch.full((num_classes,), holders)
    hands: list[list[int]] = [[] for _ in range(num_clients)]
    for served, k in enumerate(torch.randperm(num_clients, generator=rng).tolist()):
        due = left == num_clients - served
        hand = torch.where(due)[0].tolist()
        if len(hand) < s:
            weight = torch.where(due, 0, left).double()
            hand += torch.multinomial(weight, s - len(hand), generator=rng).tolist()
        left[hand] -= 1
        hands[k] = hand
    return hands


def _deal_any(num_classes: int, num_clients: int, s: int, holders: int, rng: torch.Generator) -> list[list[int]]:
    """A shuffled deck of shards, s to each client (the authors' code)."""
    deck = torch.arange(num_classes).repeat(holders)
    return deck[torch.randperm(len(deck), generator=rng)].reshape(num_clients, s).tolist()

"""The two partitions that pFedGate takes from FedEM, and their 6:2:2 split.

Both pool the official training and test images. The Dirichlet partition draws from Python's and NumPy's legacy
generators in the order of the released code, so that the authors' seed (12345) gives the authors' clients.
"""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from pfl_core.options import PositiveFloat, PositiveInt, Share
from pfl_core.partition.base import Partition, ordered
from pfl_core.seeding import permutation, shuffled

if TYPE_CHECKING:
    from pfl_core.data import Dataset


def fedem(
    data: "Dataset",
    num_clients: int,
    seed: int,
    *,
    alpha: PositiveFloat = 0.4,
    groups: int | None = None,
    data_fraction: Share = 1.0,
    min_size: int = 10,
    split_seed: int | None = None,
) -> Partition:
    """Each group of classes is divided among the clients by p ~ Dir(alpha); sizes of clients vary.

    ``groups=None``: one group per class. Clients with fewer than ``min_size`` samples are dropped and counted.
    ``split_seed`` fixes the partition for all seeds of a run (authors' code: 12345).
    Raises ValueError for ``groups`` out of range, or if every client is dropped.
    """
    data_seed = seed if split_seed is None else split_seed
    num_groups = data.num_classes if groups is None else groups
    if not 1 <= num_groups <= data.num_classes:
        raise ValueError(f"dirichlet: groups={groups} is outside 1..{data.num_classes}, the number of classes")
    mixer, sampler = random.Random(data_seed), np.random.RandomState(data_seed)
    members = _grouped_subset(data, num_groups, data_fraction, mixer)
    clients: list[list[int]] = [[] for _ in range(num_clients)]
    for group in members:
        # The sizes of the clients' pieces of this group are multinomial.
        share = sampler.dirichlet(np.full(num_clients, alpha))
        cuts = np.cumsum(sampler.multinomial(len(group), share))
        for client, start, stop in zip(clients, [0, *cuts[:-1]], cuts, strict=True):
            client.extend(group[start:stop])
    kept = [client for client in clients if len(client) >= max(min_size, 1)]
    if not kept:
        raise ValueError(f"dirichlet: none of {num_clients} clients has {min_size} samples; use fewer clients")
    return split_622(kept, data_seed, dropped=num_clients - len(kept))


def _grouped_subset(data: "Dataset", groups: int, fraction: float, mixer: random.Random) -> list[list[int]]:
    """The shuffled samples of each group of classes; random draws in the order of the authors' code."""
    classes = list(range(data.num_classes))
    mixer.shuffle(classes)
    # groups of nearly equal size, the smaller ones first
    parts = [part[::-1].tolist() for part in np.array_split(classes[::-1], groups)][::-1]
    group_of = {c: g for g, part in enumerate(parts) for c in part}
    members: list[list[int]] = [[] for _ in range(groups)]
    labels = data.y.tolist()
    for i in mixer.sample(range(len(labels)), int(len(labels) * fraction)):
        members[group_of[labels[i]]].append(i)
    for group in members:
        mixer.shuffle(group)
    return members


def pathological(
    data: "Dataset",
    num_clients: int,
    seed: int,
    *,
    shards: PositiveInt = 2,
    data_fraction: Share = 1.0,
) -> Partition:
    """Sort by label, cut into N x ``shards`` equal shards, assign ``shards`` random ones to each client (Figure 4).

    With all images of a balanced set, a client has at most ``shards`` labels; with ``data_fraction=0.9`` a shard may
    have two. The authors' code shuffles the shards without a seed; here the seed decides.
    Raises ValueError if there are too few samples.
    """
    order = shuffled(torch.arange(len(data.y)), seed, "partition", "pathological")
    subset = order[: int(len(order) * data_fraction)]
    if len(subset) < num_clients * shards:
        raise ValueError(f"pathological: {len(subset)} samples cannot fill {num_clients} clients x {shards} shards")
    pieces = subset[data.y[subset].argsort(stable=True)].tensor_split(num_clients * shards)
    order = permutation(len(pieces), seed, "partition", "deal")
    rows = order.reshape(num_clients, shards).tolist()  # [N][shards], the numbers of each client's shards
    return split_622([torch.cat([pieces[i] for i in row]).tolist() for row in rows], seed)


def split_622(clients: Sequence[Sequence[int]], seed: int, dropped: int = 0) -> Partition:
    """Per client, 20 % of the samples for testing, then a quarter of the rest for validation.

    Draws as in the authors' code, which calls scikit-learn's ``train_test_split`` twice with the same seed.
    """
    train, val, test = [], [], []
    for client in clients:
        held_out, rest = _held_out(torch.tensor(client), len(client) - int(0.8 * len(client)), seed)
        val_part, train_part = _held_out(rest, len(rest) - int(0.75 * len(rest)), seed)
        train.append(train_part)
        val.append(val_part)
        test.append(held_out)
    return Partition(ordered(train), ordered(val), ordered(test), dropped=dropped, joined=True)


def _held_out(indices: torch.Tensor, num: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(``num`` random indices, the others), each in random order."""
    mixed = indices[torch.from_numpy(np.random.RandomState(seed).permutation(len(indices)))]
    return mixed[:num], mixed[num:]

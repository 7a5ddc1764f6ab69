"""The two splits of FedEM that pFedGate took over, and their 6:2:2 division (pfedgate.md section 10).

Both pool the official training and test images. The Dirichlet split uses Python's Mersenne Twister and NumPy's legacy
generator side by side, so that the authors' seed (12345) gives the authors' clients.
"""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from pfl_core.partition.base import Partition, ordered, shuffled
from pfl_core.seeding import generator

if TYPE_CHECKING:
    from pfl_core.data import Dataset


def fedem(
    data: "Dataset",
    num_clients: int,
    seed: int,
    *,
    alpha: float = 0.4,
    groups: int | None = None,
    data_fraction: float = 1.0,
    min_size: int = 10,
    split_seed: int | None = None,
) -> Partition:
    """Each group of classes (None: each class) is handed out by client shares from Dir(alpha): client sizes vary.

    Clients with fewer than ``min_size`` samples are dropped and counted. ``split_seed`` keeps the split the same for
    all seeds of a run (the authors': 12345). Raises ValueError for values out of range, or if every client is dropped.
    """
    fixed = seed if split_seed is None else split_seed
    num_groups = data.num_classes if groups is None else groups
    if not 1 <= num_groups <= data.num_classes:
        raise ValueError(f"dirichlet: groups={groups} is outside 1..{data.num_classes}, the number of classes")
    if alpha <= 0:
        raise ValueError(f"dirichlet: alpha={alpha} must be above 0")
    mixer, sampler = random.Random(fixed), np.random.RandomState(fixed)
    members = _grouped_subset(data, num_groups, data_fraction, mixer)
    clients: list[list[int]] = [[] for _ in range(num_clients)]
    for group in members:
        share = sampler.dirichlet(np.full(num_clients, alpha))
        cuts = np.cumsum(sampler.multinomial(len(group), share))
        for client, start, stop in zip(clients, [0, *cuts[:-1]], cuts, strict=True):
            client.extend(group[start:stop])
    kept = [client for client in clients if len(client) >= max(min_size, 1)]
    if not kept:
        raise ValueError(f"dirichlet: none of {num_clients} clients has {min_size} samples; use fewer clients")
    return split_622(kept, fixed, dropped=num_clients - len(kept))


def _grouped_subset(data: "Dataset", groups: int, fraction: float, mixer: random.Random) -> list[list[int]]:
    """The samples of each group of classes, shuffled; every draw in the order of the authors' code."""
    classes = list(range(data.num_classes))
    mixer.shuffle(classes)
    group_of = {c: g for g, part in enumerate(_near_equal(classes, groups)) for c in part}
    members: list[list[int]] = [[] for _ in range(groups)]
    labels = data.y.tolist()
    for i in mixer.sample(range(len(labels)), _subset_size(len(labels), fraction)):
        members[group_of[labels[i]]].append(i)
    for group in members:
        mixer.shuffle(group)
    return members


def pathological(
    data: "Dataset",
    num_clients: int,
    seed: int,
    *,
    shards: int = 2,
    data_fraction: float = 1.0,
) -> Partition:
    """Sort by label, cut into N x ``shards`` equal runs, deal them at random (pfedgate.md section 10, Figure 4).

    With all images of a balanced set a client has at most ``shards`` labels; with ``data_fraction=0.9`` runs straddle
    classes. The authors' code shuffles the runs unseeded; here they are seeded. Raises ValueError for no shards, and if
    there are too few samples for so many runs.
    """
    if shards < 1:
        raise ValueError(f"pathological: shards={shards} must be at least 1")
    order = shuffled(torch.arange(len(data.y)), seed, "partition", "pathological")
    subset = order[: _subset_size(len(order), data_fraction)]
    runs = subset[data.y[subset].argsort(stable=True)].tensor_split(num_clients * shards)
    if not len(runs[-1]):
        raise ValueError(f"pathological: {len(subset)} samples cannot fill {num_clients} clients x {shards} shards")
    deal = torch.randperm(len(runs), generator=generator(seed, "partition", "deal")).reshape(num_clients, shards)
    return split_622([torch.cat([runs[i] for i in row]).tolist() for row in deal.tolist()], seed)


def split_622(clients: Sequence[Sequence[int]], seed: int, dropped: int = 0) -> Partition:
    """Per client 80 % / 20 % for training and testing, then a quarter of the training part for validation.

    The same draws as in the authors' code, which calls scikit-learn's ``train_test_split`` twice with one seed.
    """
    parts = []
    for client in clients:
        held, kept = _held_out(torch.tensor(client), len(client) - int(0.8 * len(client)), seed)
        val, train = _held_out(kept, len(kept) - int(0.75 * len(kept)), seed)
        parts.append((train, val, held))
    return Partition(*map(ordered, zip(*parts, strict=True)), dropped=dropped, joined=True)


def _held_out(indices: torch.Tensor, num: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(``num`` of them, the rest), in a random order."""
    mixed = indices[torch.from_numpy(np.random.RandomState(seed).permutation(len(indices)))]
    return mixed[:num], mixed[num:]


def _near_equal(items: list[int], num: int) -> list[list[int]]:
    """``num`` runs whose sizes differ by at most one, the shorter ones first."""
    bounds = [i * (len(items) // num) + max(0, i - (num - len(items) % num)) for i in range(num + 1)]
    return [items[start:stop] for start, stop in zip(bounds, bounds[1:], strict=False)]


def _subset_size(num: int, fraction: float) -> int:
    if not 0 < fraction <= 1:
        raise ValueError(f"data_fraction={fraction} is outside (0, 1]")
    return int(num * fraction)

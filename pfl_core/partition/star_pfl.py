"""Star-PFL's partition: pairs of neighbouring clients share a slice of the data. Reproduces the released code.

Also that of its Figure 2 (groups of clients with different labels), and a subset for runs without a GPU.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pfl_core.data.dataset import subset
from pfl_core.options import PositiveFloat, PositiveInt
from pfl_core.partition.base import Partition, grouped, ordered
from pfl_core.seeding import permutation, shuffled

if TYPE_CHECKING:
    from pfl_core.data import Dataset

DRAWS = 10_000  # attempts for a pair; a few are enough unless there are very few samples


def paired_dirichlet(
    data: "Dataset",
    num_clients: int,
    seed: int,
    *,
    alpha: PositiveFloat = 0.1,
    split_seed: int | None = None,
) -> Partition:
    """Cut the data into N / 2 random slices; divide each slice's classes among two lists by Dir(alpha, alpha).

    Then all lists are concatenated and cut into N equal parts, one per client. So all clients have the same size. A
    class of a slice is shared by two clients only, so that clients have several classes even for small alpha. Official
    training and test images are pooled; each class is split 60 / 20 / 20. ``split_seed`` fixes the partition for all
    seeds of a run (authors' code: 5). Raises ValueError for an odd number of clients and too few samples.
    """
    if num_clients < 2 or num_clients % 2:
        raise ValueError(f"paired_dirichlet: {num_clients} clients cannot be paired; give an even number")
    rng = np.random.RandomState(seed if split_seed is None else split_seed)
    labels, num = data.y.numpy(), len(data.y)
    rows = np.arange(num)
    rng.shuffle(rows)
    size = int(2 / num_clients * num)  # of a slice; the last slice also takes the remainder
    starts = [g * size for g in range(num_clients // 2)]
    lists: list[np.ndarray] = []
    for start, stop in zip(starts, [*starts[1:], num], strict=True):
        lists += _pair(rows[start:stop], labels, data.num_classes, alpha, rng)
    joined, n_k = torch.from_numpy(np.concatenate(lists)), int(1 / num_clients * num)
    return split_by_class(data, [joined[k * n_k : (k + 1) * n_k] for k in range(num_clients)])


def paired_sample(
    data: "Dataset",
    num_clients: int,
    seed: int,
    *,
    images: int,
    alpha: PositiveFloat = 0.1,
    split_seed: int | None = None,
) -> Partition:
    """Not in the paper: ``paired_dirichlet`` on N x ``images`` random images.

    ``images`` counts all three splits of a client. ``split_seed`` also fixes which images are drawn. Raises ValueError
    if the data set has fewer images.
    """
    wanted = images * num_clients
    if not 0 < wanted <= len(data.y):
        raise ValueError(
            f"paired_sample: images={images} for {num_clients} clients; {data.name!r} has {len(data.y)} in all"
        )
    order = permutation(len(data.y), seed if split_seed is None else split_seed, "partition", "sample")
    drawn = order[:wanted].sort().values
    part = paired_dirichlet(subset(data, drawn), num_clients, seed, alpha=alpha, split_seed=split_seed)
    # The indices of ``part`` refer to the subset.
    train, val, test = (tuple(drawn[index] for index in clients) for clients in (part.train, part.val, part.test))
    return Partition(train, val, test, joined=True)


def label_groups(
    data: "Dataset",
    num_clients: int,
    seed: int,
    *,
    groups: PositiveInt = 4,
    labels_per_group: PositiveInt = 1,
    images: PositiveInt | None = None,
) -> Partition:
    """Client k is in group k // (N / groups). The labels of the groups are disjoint; the clients of a group share them.

    ``seed`` selects the labels. Each client gets at most ``images`` images (None: all), split 60 / 20 / 20 by class.
    The paper states neither the number of groups nor their size.
    Raises ValueError if clients do not divide evenly into groups or there are too few labels.
    """
    size, rest = divmod(num_clients, groups)
    if rest or not size:
        raise ValueError(f"label_groups: {num_clients} clients do not divide into {groups} groups")
    if groups * labels_per_group > data.num_classes:
        raise ValueError(f"label_groups: {groups} x {labels_per_group} labels of {data.num_classes}; use fewer groups")
    labels = permutation(data.num_classes, seed, "partition", "label groups")
    classes = grouped(shuffled(torch.arange(len(data.y)), seed, "partition", "label groups"), data.y, data.num_classes)
    clients = []
    for g in range(groups):
        group_labels = labels[g * labels_per_group : (g + 1) * labels_per_group].tolist()
        parts_of = zip(*(classes[c].tensor_split(size) for c in group_labels), strict=True)  # for each client
        most = None if images is None else images // labels_per_group
        clients += [torch.cat([part[:most] for part in parts]) for parts in parts_of]
    return split_by_class(data, clients)


def _pair(rows: np.ndarray, labels: np.ndarray, num_classes: int, alpha: float, rng: np.random.RandomState) -> list:
    """Two lists that divide the rows, drawn again until the smaller one has at least a quarter of them."""
    for _ in range(DRAWS):
        pair = _draw_pair(rows, labels, num_classes, alpha, rng)
        if min(map(len, pair)) >= max(1, int(0.5 * len(rows) / 2)):
            return pair
    raise ValueError(
        f"paired_dirichlet: in {DRAWS} draws one of two clients had less than a quarter of {len(rows)} "
        "samples; use more data"
    )


def _draw_pair(
    rows: np.ndarray, labels: np.ndarray, num_classes: int, alpha: float, rng: np.random.RandomState
) -> list:
    """Divide class after class among two lists; a list that has half of the rows gets no more."""
    pair = [rows[:0], rows[:0]]
    for c in range(num_classes):
        members = rows[labels[rows] == c]
        # A list with half of the rows gets share 0.
        share = rng.dirichlet([alpha, alpha]) * [len(part) < len(rows) / 2 for part in pair]
        total = share.sum()
        cut = int(share[0] / total * len(members)) if total > 0 else 0  # if both have half: all to the second list
        pair = [np.concatenate(parts) for parts in zip(pair, (members[:cut], members[cut:]), strict=True)]
    return pair


def split_by_class(data: "Dataset", clients: list[Tensor]) -> Partition:
    """Split each class of a client in data order: the first 60 % training, the next 20 % test, the rest validation."""
    parts: list[tuple[Tensor, ...]] = []
    for client in clients:
        classes = [_split_622(members) for members in grouped(client.sort().values, data.y, data.num_classes)]
        parts.append(tuple(torch.cat(pieces) for pieces in zip(*classes, strict=True)))
    train, test, val = zip(*parts, strict=True)
    return Partition(ordered(train), ordered(val), ordered(test), joined=True)


def _split_622(members: Tensor) -> tuple[Tensor, ...]:
    """(train, test, validation) of the n samples of a class: int(0.6 n), int(0.2 n) and the rest."""
    n = len(members)
    return members.split([int(0.6 * n), int(0.2 * n), n - int(0.6 * n) - int(0.2 * n)])

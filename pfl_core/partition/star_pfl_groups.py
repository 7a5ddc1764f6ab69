"""Star-PFL's Figure 2: groups of clients, each with labels of its own (star_pfl.md section 10, N2)."""

from typing import TYPE_CHECKING

import torch

from pfl_core.partition.base import Partition, grouped, shuffled
from pfl_core.partition.paired import split_by_class
from pfl_core.seeding import generator

if TYPE_CHECKING:
    from pfl_core.data import Dataset


def label_groups(
    data: "Dataset",
    num_clients: int,
    seed: int,
    *,
    groups: int = 4,
    labels_per_group: int = 1,
    images: int | None = None,
) -> Partition:
    """Client k is in group k // (N / groups); a group holds labels that no other has, dealt evenly to its clients.

    The labels are drawn by ``seed``; each client keeps at most ``images`` of them (None: all), 60 / 20 / 20 by class.
    The paper gives neither the number of groups nor their size. Raises ValueError if clients or labels do not suffice.
    """
    size, rest = divmod(num_clients, groups)
    if rest or not size:
        raise ValueError(f"label_groups: {num_clients} clients do not divide into {groups} groups")
    if groups * labels_per_group > data.num_classes:
        raise ValueError(f"label_groups: {groups} x {labels_per_group} labels of {data.num_classes}; use fewer groups")
    labels = torch.randperm(data.num_classes, generator=generator(seed, "partition", "label groups"))
    classes = grouped(shuffled(torch.arange(len(data.y)), seed, "partition", "label groups"), data.y, data.num_classes)
    clients = []
    for g in range(groups):
        own = labels[g * labels_per_group : (g + 1) * labels_per_group].tolist()
        hands = zip(*(classes[c].tensor_split(size) for c in own), strict=True)
        most = None if images is None else images // labels_per_group
        clients += [torch.cat([part[:most] for part in hand]) for hand in hands]
    return split_by_class(data, clients)

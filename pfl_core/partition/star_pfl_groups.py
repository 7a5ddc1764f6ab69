"""Star-PFL's Figure 2: groups of clients with different labels."""

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
    labels = torch.randperm(data.num_classes, generator=generator(seed, "partition", "label groups"))
    classes = grouped(shuffled(torch.arange(len(data.y)), seed, "partition", "label groups"), data.y, data.num_classes)
    clients = []
    for g in range(groups):
        group_labels = labels[g * labels_per_group : (g + 1) * labels_per_group].tolist()
        parts_of = zip(*(classes[c].tensor_split(size) for c in group_labels), strict=True)  # for each client
        most = None if images is None else images // labels_per_group
        clients += [torch.cat([part[:most] for part in parts]) for parts in parts_of]
    return split_by_class(data, clients)

"""Simple partitions: IID, by source, by class."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pfl_core.options import Part, PositiveInt
from pfl_core.partition.base import Partition, assemble, capped, grouped, limited, per_class_limits, pools
from pfl_core.seeding import shuffled

if TYPE_CHECKING:
    from pfl_core.data import Dataset


def iid(
    data: "Dataset",
    num_clients: int,
    seed: int,
    *,
    pool: str = "official",
    val: Part = 0.0,
    test: Part = 0.2,
    train_per_class: PositiveInt | None = None,
    test_per_class: PositiveInt | None = None,
) -> Partition:
    """Random parts of equal size, up to one sample (the IID case of McMahan et al. 2017).

    ``train_per_class`` and ``test_per_class``: number of official images of each class, over all clients.
    """

    def assign(indices: Tensor, name: str) -> Sequence[Tensor]:
        return shuffled(indices, seed, "partition", "iid", name).tensor_split(num_clients)

    return assemble(data, seed, limited(data, seed, pool, train_per_class, test_per_class), assign, val, test)


def by_source(
    data: "Dataset",
    num_clients: int,
    seed: int,
    *,
    order: Sequence[int] | None = None,
    pool: str = "official",
    val: Part = 0.0,
    test: Part = 0.2,
    train_per_class: PositiveInt | None = None,
    test_per_class: PositiveInt | None = None,
) -> Partition:
    """Client k has one source (source set, domain or writer): the k-th of ``order``, by default 0, 1, ...

    ``train_per_class`` and ``test_per_class`` count images of each class of a source (FedPeWS: 400 and 200). For
    FedSelect's Office-Home use ``pool="joined", test=0.5``.
    Raises ValueError if ``order`` (default: all sources) does not name one source for each client.
    """
    num_sources = int(data.source.max()) + 1
    chosen = list(range(num_sources)) if order is None else list(order)
    if len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(num_sources)):
        raise ValueError(f"by_source: order={chosen} must name different sources of 0..{num_sources - 1}")
    if len(chosen) != num_clients:
        what = f"{data.name} has" if order is None else "order names"
        raise ValueError(
            f"by_source: {what} {len(chosen)} sources, one for each client, but the run has {num_clients} clients; "
            f"give --clients {len(chosen)}"
        )
    per_class = per_class_limits(pool, train_per_class, test_per_class)

    def assign(indices: Tensor, name: str) -> Sequence[Tensor]:
        sources = grouped(indices, data.source, num_sources)
        return [capped(data, sources[s], per_class[name], seed, name) for s in chosen]

    return assemble(data, seed, pools(data, pool), assign, val, test)


def by_class(
    data: "Dataset",
    num_clients: int,
    seed: int,
    *,
    order: str = "cyclic",
    clients_per_group: PositiveInt = 1,
    classes_per_group: PositiveInt | None = None,
    pool: str = "official",
    val: Part = 0.0,
    test: Part = 0.2,
    train_per_class: PositiveInt | None = None,
    test_per_class: PositiveInt | None = None,
) -> Partition:
    """Disjoint classes for each client, or for each of G groups of clients that share their classes evenly.

    ``order="cyclic"``: group g gets the classes g, g + G, ... (FedPeWS's synthetic sets: even and odd classes, or class
    i for client i). ``order="shuffled"``: C / G random classes for each group (FedPeWS's non-overlapping classes).
    ``clients_per_group`` > 1 gives several clients the same labels, as in Star-PFL's Figure 2; ``classes_per_group``
    uses only so many classes of each group (None: all).
    Raises ValueError if clients or classes do not divide evenly.
    """
    num_groups, rest = divmod(num_clients, clients_per_group)
    if rest or num_groups > data.num_classes:
        raise ValueError(
            f"by_class: {num_clients} clients in groups of {clients_per_group} need full groups, at most "
            f"{data.num_classes} of them (one for each class)"
        )
    classes = [group[:classes_per_group] for group in _group_classes(data.num_classes, num_groups, order, seed)]
    if classes_per_group is not None and min(map(len, classes)) < classes_per_group:
        raise ValueError(
            f"by_class: {num_groups} groups cannot have {classes_per_group} of {data.num_classes} classes each"
        )

    def assign(indices: Tensor, name: str) -> Sequence[Tensor]:
        members = grouped(shuffled(indices, seed, "partition", "by_class", name), data.y, data.num_classes)
        # Each class of a group is cut into one piece per client; a client gets one piece of every class.
        groups = [[members[c].tensor_split(clients_per_group) for c in group] for group in classes]
        return [torch.cat(pieces) for group in groups for pieces in zip(*group, strict=True)]

    return assemble(data, seed, limited(data, seed, pool, train_per_class, test_per_class), assign, val, test)


def _group_classes(num_classes: int, groups: int, order: str, seed: int) -> list[list[int]]:
    """The classes of each group."""
    if order == "cyclic":
        return [list(range(g, num_classes, groups)) for g in range(groups)]
    if order != "shuffled":
        raise ValueError(f"by_class: order={order!r} is neither 'cyclic' nor 'shuffled'")
    if num_classes % groups:
        raise ValueError(f"by_class: {num_classes} classes do not divide evenly over {groups} clients or groups")
    return shuffled(torch.arange(num_classes), seed, "partition", "classes").reshape(groups, -1).tolist()

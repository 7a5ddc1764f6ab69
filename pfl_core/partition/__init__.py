"""Partitions of a data set among clients, by name.

Official test images are used for testing only, unless a partition pools training and test images first, as in two of
the papers (``Partition.joined``).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pfl_core.options import check_options, needed
from pfl_core.partition.base import Partition, verify
from pfl_core.partition.dirichlet import dirichlet
from pfl_core.partition.fedem import pathological
from pfl_core.partition.from_csv import from_csv, with_checksum
from pfl_core.partition.shards import shards
from pfl_core.partition.simple import by_class, by_source, iid
from pfl_core.partition.star_pfl import label_groups, paired_dirichlet, paired_sample
from pfl_core.plugins import find, users_code

if TYPE_CHECKING:
    from pfl_core.data import Dataset

__all__ = ["PARTITIONS", "VERSIONS", "Partition", "partition", "with_checksum"]

PARTITIONS: dict[str, Callable[..., Partition]] = {
    "iid": iid,
    "shards": shards,
    "dirichlet": dirichlet,
    "paired_dirichlet": paired_dirichlet,
    "by_source": by_source,
    "by_class": by_class,
    "pathological": pathological,
    "paired_sample": paired_sample,
    "label_groups": label_groups,
    "csv": from_csv,
}
VERSIONS: dict[str, int] = {}  # partition -> version, by default 1 (see runs/versions.py)


def partition(name: str, data: "Dataset", num_clients: int, seed: int, **options: Any) -> Partition:
    """Divide ``data`` among clients by a named rule, or by your own rule ``package.module:function``.

    Raises ValueError for unknown names and options, for options that do not fit the data, and for a rule of your own
    that fails or returns a wrong partition (see ``verify``).
    """
    rule = find("partition", name, PARTITIONS)
    check_options(f"partition {name!r}", rule, options, reserved=3)
    if missing := [option for option in needed(rule) if option not in options] if name in PARTITIONS else []:
        raise ValueError(f"partition {name!r} needs {missing[0]}; give it with --set partition.{missing[0]}=VALUE")
    if num_clients < 1:
        raise ValueError(f"partition {name!r}: num_clients={num_clients} must be at least 1")
    if num_clients > len(data.y):  # building a list for each of them could fill the memory
        raise ValueError(
            f"partition {name!r}: {num_clients} clients, but {data.name} has {len(data.y)} samples; use fewer clients"
        )
    with users_code("partition", name, seed):
        part = rule(data, num_clients, seed, **options)
    verify(part, data, name, num_clients)
    return part

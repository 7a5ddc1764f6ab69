"""Star-PFL's partition of a subset of a large data set. Not in the paper: for runs without a GPU."""

from typing import TYPE_CHECKING

import torch

from pfl_core.data.dataset import subset
from pfl_core.partition.base import Partition
from pfl_core.partition.paired import paired_dirichlet
from pfl_core.seeding import generator

if TYPE_CHECKING:
    from pfl_core.data import Dataset


def paired_sample(
    data: "Dataset",
    num_clients: int,
    seed: int,
    *,
    images: int,
    alpha: float = 0.1,
    split_seed: int | None = None,
) -> Partition:
    """``paired_dirichlet`` on N x ``images`` random images; ``images`` counts all three splits of a client.

    ``split_seed`` also fixes which images are drawn. Raises ValueError if the data set has fewer images.
    """
    wanted, stream = images * num_clients, generator(seed if split_seed is None else split_seed, "partition", "sample")
    if not 0 < wanted <= len(data.y):
        raise ValueError(
            f"paired_sample: images={images} for {num_clients} clients; {data.name!r} has {len(data.y)} in all"
        )
    drawn = torch.randperm(len(data.y), generator=stream)[:wanted].sort().values
    part = paired_dirichlet(subset(data, drawn), num_clients, seed, alpha=alpha, split_seed=split_seed)
    # The indices of ``part`` refer to the subset.
    train, val, test = (tuple(drawn[index] for index in clients) for clients in (part.train, part.val, part.test))
    return Partition(train, val, test, joined=True)

"""Star-PFL's split on a part of a large set: so many images a client (ours, for stand-ins without a GPU)."""

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
    """``paired_dirichlet`` on ``images`` random images for each client; in all of their 60 / 20 / 20.

    Which images are drawn goes with the split, so ``split_seed`` keeps them, too.
    Raises ValueError if the set has fewer.
    """
    wanted, stream = images * num_clients, generator(seed if split_seed is None else split_seed, "partition", "sample")
    if not 0 < wanted <= len(data.y):
        raise ValueError(
            f"paired_sample: images={images} for {num_clients} clients; {data.name!r} has {len(data.y)} in all"
        )
    drawn = torch.randperm(len(data.y), generator=stream)[:wanted].sort().values
    part = paired_dirichlet(subset(data, drawn), num_clients, seed, alpha=alpha, split_seed=split_seed)
    splits = (tuple(drawn[index] for index in clients) for clients in (part.train, part.val, part.test))
    return Partition(*splits, joined=True)
